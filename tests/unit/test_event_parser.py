"""Lines of event logs become facts; a field with an impossible value counts as missing, a broken line is reported."""

from __future__ import annotations

import json
import time
from typing import Any

import pyarrow as pa
import pytest

from blocklist.detection.event_parser import FactParser, application_name, parse_lines
from blocklist.detection.log_file import BOMB, LONG_LINE
from blocklist.detection.schemas import COLUMNS

TASK: dict[str, Any] = {
    "Event": "SparkListenerTaskEnd",
    "Stage ID": 3,
    "Stage Attempt ID": 1,
    "Task End Reason": {"Reason": "Success"},
    "Task Info": {"Launch Time": 100, "Finish Time": 350, "Host": "n1", "Executor ID": "7", "Speculative": False},
    "Task Metrics": {
        "Executor Run Time": 200,
        "Executor CPU Time": 150_999_999,
        "Shuffle Read Metrics": {"Remote Bytes Read": 10, "Local Bytes Read": 5},
        "Shuffle Write Metrics": {"Shuffle Bytes Written": 9, "Shuffle Write Time": 7_999_999},
        "Input Metrics": {"Bytes Read": 77, "Records Read": 7},
    },
}


def facts(*lines: bytes | dict[str, Any], file: str = "file:/logs/app-1") -> list[dict[str, Any]]:
    parser = FactParser(file)
    parser.add(it if isinstance(it, bytes) else json.dumps(it, separators=(",", ":")).encode() for it in lines)
    rows = [row for batch in parser.batches() for row in batch.to_pylist()]
    assert all(list(row) == list(COLUMNS) for row in rows)
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def changed(path: str, value: object) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(json.dumps(TASK))
    *parents, name = path.split(".")
    at = event
    for parent in parents:
        at = at[parent]
    at[name] = value
    return event


def test_a_task_has_its_numbers() -> None:
    (fact,) = facts(TASK)
    assert fact == {
        "kind": "task",
        "file": "file:/logs/app-1",
        "app": "app-1",
        "time": 350,
        "launched": 100,
        "duration": 250,
        "host": "n1",
        "executor": "7",
        "stage": 3,
        "attempt": 1,
        "outcome": "Success",
        "speculative": False,
        "run_ms": 200,
        "cpu_ms": 150,
        "shuffle_bytes": 15,
        "remote_bytes": 10,
        "written_bytes": 9,
        "write_ms": 7,
        "input_bytes": 77,
        "input_records": 7,
    }


@pytest.mark.parametrize("value", [-1, 2**63 - 1, 2**63, 2**70, 0.5, "7", [], {}, True])
@pytest.mark.parametrize(
    ("path", "column"),
    [("Task Metrics.Executor Run Time", "run_ms"), ("Task Metrics.Input Metrics.Bytes Read", "input_bytes")],
)
def test_an_impossible_number_counts_as_missing(path: str, column: str, value: object) -> None:
    (fact,) = facts(changed(path, value))
    assert column not in fact
    assert fact["cpu_ms"] == 150


@pytest.mark.parametrize("path", ["Task Info.Host", "Task End Reason.Reason", "Stage ID", "Task Info.Finish Time"])
@pytest.mark.parametrize("value", [None, {}, -(10**30)])
def test_a_task_without_a_required_field_is_a_broken_line(path: str, value: object) -> None:
    (fact,) = facts(changed(path, value))
    assert fact["kind"] == "broken"
    assert fact["detail"] == "", "nobody is shown what a file has"


@pytest.mark.parametrize("is_open", [False, True])
def test_only_the_incomplete_last_line_of_a_log_in_progress_is_not_reported(is_open: bool) -> None:
    incomplete = b'{"Event":"SparkListenerTaskEnd","Stage'
    lines = [LONG_LINE, BOMB, incomplete, json.dumps(TASK, separators=(",", ":")).encode(), incomplete]
    columns = {"file": ["file:/logs/app-1"] * len(lines), "value": lines, "open": [is_open] * len(lines)}
    batches = parse_lines([pa.RecordBatch.from_pydict(columns)])
    kinds = [row["kind"] for batch in batches for row in batch.to_pylist()]
    assert kinds == ["task", *["broken"] * (3 if is_open else 4)]


@pytest.mark.parametrize("text", ["\ud800", "\x00", "é" * 1000])
def test_any_text_is_kept_as_valid_text(text: str) -> None:
    (fact,) = facts(changed("Task Info.Host", text))
    assert fact["kind"] == "task"
    fact["host"].encode()


def test_bytes_that_are_no_text_are_replaced() -> None:
    line = json.dumps(changed("Task Info.Host", "HOST"), separators=(",", ":")).encode().replace(b"HOST", b"\xff")
    (fact,) = facts(line)
    assert fact["host"] == "\ufffd"


def test_other_events_are_ignored_and_deep_ones_are_broken() -> None:
    deep = b'{"Event":"SparkListenerTaskEnd","a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert [fact["kind"] for fact in facts(b'{"Event":"SparkListenerJobStart","x":1}', b"", deep)] == ["broken"]


def test_an_application_has_its_id_and_attempt() -> None:
    event = {"Event": "SparkListenerApplicationStart", "App Name": "etl", "Timestamp": 5, "App ID": "application_1_2"}
    (first,) = facts(event)
    (second,) = facts(event | {"App Attempt ID": "2"})
    assert (first["app_id"], second["app_id"]) == ("application_1_2", "application_1_2_2")
    assert first["detail"] == "etl"


def test_an_executor_has_its_host_and_the_node_that_it_names() -> None:
    event = {"Event": "SparkListenerExecutorAdded", "Timestamp": 1, "Executor ID": "1"}
    pod = {"Host": "10.1.2.3", "Total Cores": 1, "Log Urls": {}, "Attributes": {"NODE_NAME": "worker-1"}}
    (process,) = facts(event | {"Executor Info": {"Host": "N1", "Total Cores": 1}})
    assert (process["host"], process["time"], process.get("detail")) == ("n1", 1, None)
    (fact,) = facts(event | {"Executor Info": pod})
    assert (fact["host"], fact["detail"]) == ("10.1.2.3", "worker-1")


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("file:/logs/app-1.zstd.inprogress", "app-1"),
        ("file:/logs/eventlog_v2_app-1/events_3_app-1.lz4", "app-1"),
        ("dbfs:/cluster-logs/0123/eventlog/0123-driver/8877/eventlog-2026-11-20--10-00.gz", "8877"),
        ("file:/logs/event_log_0", "event_log_0"),
        ("file:/logs/app-20261121172626-0000", "app-20261121172626-0000"),
        ("file:/logs/local-1795279379996.inprogress", "local-1795279379996"),
        ("file:/logs/application_1700000000000_0001_2", "application_1700000000000_0001_2"),
        ("file:/logs/application_1700000000000_0001", "application_1700000000000_0001"),
        ("file:/eventlog_v2_application_17_0001_1/events_12_application_17_0001_1", "application_17_0001_1"),
        ("file:/eventlog_v2_spark-0a1b/events_1_spark-0a1b.compact", "spark-0a1b"),
        ("file:/a b [x] {1}/app-1", "app-1"),
    ],
)
def test_an_application_without_an_id_is_named_by_its_path(file: str, name: str) -> None:
    assert application_name(file) == name


def test_many_tasks_keep_their_order_and_what_each_of_them_lacks() -> None:
    paths = ["Stage Attempt ID", "Task Info.Index", "Task Info.Speculative", "Task Info.Locality", "Task Metrics"]
    odd = [changed(path, None) for path in paths]
    full = [changed("Task Info.Index", number) for number in range(1000)]
    mixed = [event for number, task in enumerate(full) for event in (task, odd[number % len(odd)])]
    parser = FactParser("file:/logs/app-1")
    for at in range(0, len(mixed), 150):
        parser.add(json.dumps(event, separators=(",", ":")).encode() for event in mixed[at : at + 150])
    (batch,) = parser.batches()
    found = batch.to_pylist()
    assert found[::2] == [{**found[0], "partition": number} for number in range(1000)]
    kinds = [{name for name, value in fact.items() if value is None} for fact in found[1 : 2 * len(odd) : 2]]
    assert found[1::2] == found[1 : 2 * len(odd) : 2] * 200
    assert "attempt" in kinds[0] - kinds[1]
    assert "partition" in kinds[0] & kinds[1]
    assert {"run_ms", "cpu_ms", "input_bytes"} <= kinds[4] - kinds[0]
    assert [fact["stage"] for fact in found] == [3] * len(mixed)


def test_a_time_in_the_future_is_reported_and_is_no_evidence() -> None:
    """It would outlast each unblock by hand."""
    now = time.time_ns() // 1_000_000
    ahead = {"Event": "SparkListenerApplicationStart", "App Name": "a", "App ID": "app-1", "Timestamp": now + 7_200_000}
    late = [changed(f"Task Info.{name} Time", now + 7_200_000) for name in ("Launch", "Finish")]
    found = facts(TASK, changed("Task Info.Finish Time", now + 60_000), *late, ahead)
    assert [fact["kind"] for fact in found] == ["task", "task", "broken", "broken", "broken"]
    assert {fact.get("detail") for fact in found[2:]} == {"(a time in the future: is a clock wrong?)"}
