"""What an application reports of its executors and refusals."""

from __future__ import annotations

from blocklist.spark.heartbeat_report import MAX_EXECUTORS, MAX_REFUSED, Executor, make_report

KNOWN_AS = {"n1.example.com": "n1"}


def executor(own: str, host: str, running: int = 0) -> Executor:
    return Executor(id=own, host=host, running=running)


def test_an_executor_is_reported_under_the_blocked_id_else_under_its_host_s_name() -> None:
    report = make_report("app-1", [executor("1", "n1.example.com"), executor("2", "n2.example.com")], KNOWN_AS, {})
    assert report.task_managers == {"app-1:1": "n1", "app-1:2": "n2.example.com"}


def test_running_tasks_are_told_of_blocked_nodes_alone() -> None:
    report = make_report("app-1", [executor("1", "n1.example.com", 3), executor("2", "n2", 5)], KNOWN_AS, {})
    assert report.running_tasks == {"app-1:1": 3}


def test_what_is_no_id_is_left_out_unless_a_blocked_id_stands_for_it() -> None:
    executors = [executor("1", "[::1]", 1), executor("2", "n2"), executor("no id", "n2")]
    assert make_report("app-1", executors, {}, {}).task_managers == {"app-1:2": "n2"}
    assert make_report("app-1", executors, {"[::1]": "::1"}, {}).task_managers == {"app-1:1": "::1", "app-1:2": "n2"}
    assert make_report("an application", executors, {}, {}).task_managers == {}


def test_of_too_many_executors_those_on_blocked_nodes_are_reported() -> None:
    executors = [executor(str(number), "n2") for number in range(MAX_EXECUTORS)]
    report = make_report("app-1", [*executors, executor("x", "n1.example.com", 7)], KNOWN_AS, {})
    assert len(report.task_managers) == MAX_EXECUTORS
    assert (report.task_managers["app-1:x"], report.running_tasks) == ("n1", {"app-1:x": 7})


def test_refusals_are_cut_to_what_the_service_takes() -> None:
    report = make_report("app-1", [], {}, {f"n{number:04}": "é" * 400 for number in range(MAX_REFUSED + 1)})
    assert len(report.refused) == MAX_REFUSED
    assert report.refused["n0000"] == "é" * 300
