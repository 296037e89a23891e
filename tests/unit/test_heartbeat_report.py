"""What an application reports about its executors and refusals."""

from __future__ import annotations

from blocklist.spark.heartbeat_report import MAX_EXECUTORS, MAX_REFUSED, Executor, make_report

NODE_IDS = {"n1.example.com": "n1"}


def executor(id_: str, host: str, running: int = 0) -> Executor:
    return Executor(id=id_, host=host, running=running)


def test_an_executor_is_reported_under_the_blocked_id_else_under_its_host_s_name() -> None:
    report = make_report("app-1", [executor("1", "n1.example.com"), executor("2", "n2.example.com")], NODE_IDS, {})
    assert report.task_managers == {"app-1:1": "n1", "app-1:2": "n2.example.com"}


def test_running_tasks_are_reported_for_blocked_nodes_only() -> None:
    report = make_report("app-1", [executor("1", "n1.example.com", 3), executor("2", "n2", 5)], NODE_IDS, {})
    assert report.running_tasks == {"app-1:1": 3}


def test_a_host_without_a_valid_id_is_omitted_unless_it_matches_a_blocked_id() -> None:
    executors = [executor("1", "[::1]", 1), executor("2", "n2"), executor("no id", "n2")]
    assert make_report("app-1", executors, {}, {}).task_managers == {"app-1:2": "n2"}
    assert make_report("app-1", executors, {"[::1]": "::1"}, {}).task_managers == {"app-1:1": "::1", "app-1:2": "n2"}
    assert make_report("an application", executors, {}, {}).task_managers == {}


def test_above_the_maximum_executors_on_blocked_nodes_come_first() -> None:
    executors = [executor(str(number), "n2") for number in range(MAX_EXECUTORS)]
    report = make_report("app-1", [*executors, executor("x", "n1.example.com", 7)], NODE_IDS, {})
    assert report.task_managers is not None
    assert len(report.task_managers) == MAX_EXECUTORS
    assert (report.task_managers["app-1:x"], report.running_tasks) == ("n1", {"app-1:x": 7})


def test_refusals_are_limited_to_the_services_maximum() -> None:
    report = make_report("app-1", [], {}, {f"n{number:04}": "é" * 400 for number in range(MAX_REFUSED + 1)})
    assert report.refused is not None
    assert len(report.refused) == MAX_REFUSED
    assert report.refused["n0000"] == "é" * 300
