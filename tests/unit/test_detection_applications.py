"""An application is identified by its App ID and attempt, not by where its log lies."""

from __future__ import annotations

from blocklist.detection.applications import FileFacts, applications, pod_nodes, pod_problems


def file(path: str, app_id: str | None = None, began: int | None = 1, facts: int = 10, name: str = "") -> FileFacts:
    return FileFacts(file=path, name=name or path.rpartition("/")[2], app_id=app_id, began=began, facts=facts)


def test_files_with_different_ids_are_different_applications_whatever_their_names() -> None:
    found = applications([file("file:/logs/event_log_0", "app-1"), file("file:/logs/event_log_1", "app-2")])
    assert found.of_file == {"file:/logs/event_log_0": "app-1", "file:/logs/event_log_1": "app-2"}
    assert found.problems == []


def test_of_copies_of_one_log_the_longest_counts() -> None:
    found = applications([file("a", "app-1", facts=3), file("b", "app-1", facts=9), file("c", "app-1", facts=9)])
    assert found.of_file == {"a": None, "b": "app-1", "c": None}
    assert {it.sentence for it in found.problems} == {
        f"{log} is skipped: a copy of b, the log of application app-1." for log in "ac"
    }


def test_two_applications_with_one_id_began_at_different_times() -> None:
    found = applications([file("a", "local-1", began=5), file("b", "local-1", began=7)])
    assert found.of_file == {"a": "local-1 (5)", "b": "local-1 (7)"}


def test_the_parts_of_a_rolled_log_belong_to_the_application_that_its_first_part_names() -> None:
    folder = "file:/logs/eventlog_v2_x"
    parts = [file(f"{folder}/events_{number}_x", "app-9" if number == 1 else None) for number in (1, 2, 3)]
    assert set(applications(parts).of_file.values()) == {"app-9"}


def test_the_parts_of_a_databricks_log_belong_together() -> None:
    folder = "dbfs:/logs/0123-driver/8877"
    names = ("eventlog", "eventlog-2026-11-20--10-30.gz", "eventlog-2026-11-20--10-00.gz")
    parts = [file(f"{folder}/{name}", "app-9" if name.endswith("00.gz") else None, name="8877") for name in names]
    assert set(applications(parts).of_file.values()) == {"app-9"}


def test_without_an_id_the_name_counts_or_the_path_if_the_name_is_used_twice() -> None:
    found = applications([file("a/event_log"), file("b/event_log"), file("b/other")])
    assert found.of_file == {"a/event_log": "a/event_log", "b/event_log": "b/event_log", "b/other": "other"}


def test_attempts_are_different_applications() -> None:
    found = applications([file("a", "application_1_1_1", began=1), file("b", "application_1_1_2", began=2)])
    assert set(found.of_file.values()) == {"application_1_1_1", "application_1_1_2"}


def test_a_pod_is_looked_up_in_the_inventory_only_if_no_executor_reported_its_node() -> None:
    """Two nodes had the first address; the inventory knows only the one that has it now."""
    reported = [("10.1.0.1", "n1"), ("10.1.0.1", "n2"), ("10.1.0.2", "n3")]
    executors = [{"app": "app-1", "host": host, "detail": node} for host, node in reported]
    used = [{"app": "app-1", "host": f"10.1.0.{number}"} for number in (1, 2, 3)]
    found = pod_nodes(executors, used, lambda: {"10.1.0.1": "n2", "10.1.0.2": "n9", "10.1.0.3": "n4"})
    assert found.of_address == {("app-1", "10.1.0.2"): "n3", ("app-1", "10.1.0.3"): "n4"}
    (problem,) = pod_problems(found.unknown)
    assert problem.sentence.startswith("Pods of application app-1 on unknown nodes are left out: 1.")
