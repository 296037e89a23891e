"""While applications run: what is kept of each, and what is reported once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from benchmarks.detection_quality.event_log import write_event_logs
from benchmarks.detection_quality.runs import draw_run
from blocklist.detection import application_store, follow_mode
from blocklist.detection.application_store import ApplicationStore
from blocklist.detection.event_parser import arrow_schema
from blocklist.detection.follow_mode import BatchDecision, LogFollower, ReportedNames, ReportedVerdicts
from blocklist.detection.heuristics import Judgement, judge
from blocklist.detection.node_summary import Metric, NodeSummary
from blocklist.detection.proposals import JudgedNodes, release
from blocklist.detection.schemas import FACTS
from blocklist.detection.slowness import Rules, Severity
from blocklist.model.errors import BlocklistError
from tests.detection.analysing import analyse, parsed
from tests.detection.command import now
from tests.detection.synthetic_logs import event_log
from tests.detection.test_applications import UNKNOWN

ROLLED = "/logs/eventlog_v2_app-1"


def frame(spark: SparkSession, *facts: Mapping[str, Any]) -> DataFrame:
    return spark.createDataFrame(rows(*facts), FACTS)


def rows(*facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"app": "app-1", "file": "/logs/app-1", **fact} for fact in facts]


def task(time: int, **columns: Any) -> dict[str, Any]:
    fixed = {"kind": "task", "outcome": "Success", "executor": "1", "stage": 1, "attempt": 0}
    return {**fixed, "host": "n1", "launched": time - 10, "time": time, **columns}


class Store:
    """A store with what is added to it, batch by batch."""

    def __init__(self, folder: Path) -> None:
        self.store = ApplicationStore(folder / "applications.duckdb", dict, lambda _: None)
        self._folder = folder / "batch"
        self._folder.mkdir(exist_ok=True)
        self.number = 0

    def add(self, facts: pa.Table) -> None:
        pq.write_table(facts, self._folder / "facts.parquet")
        assert self.store.add(self.number, self._folder)
        self.number += 1

    def add_rows(self, *facts: Mapping[str, Any]) -> None:
        self.add(pa.Table.from_pylist(rows(*facts), arrow_schema()))

    def add_in_turn(self, logs: Mapping[str, Sequence[Sequence[str]]]) -> None:
        """A batch for each part, of all applications."""
        for parts in zip(*logs.values(), strict=True):
            self.add(parsed({f"/logs/{app}": part for app, part in zip(logs, parts, strict=True)}))

    def summaries(self, ignored: Mapping[str, int] | None = None) -> list[NodeSummary]:
        self.store.name_applications()
        return self.store.summaries(ignored)

    def tasks(self) -> dict[str, int]:
        return {node.host: node.tasks for node in self.summaries()}


def growing(logs: Mapping[str, Sequence[str]], batches: int) -> Iterator[dict[str, Sequence[str]]]:
    """What is new in each batch; each log begins some batches later than the one before it."""
    for batch in range(batches + len(logs) - 1):
        some = {}
        for late, (file, lines) in enumerate(logs.items()):
            begin, end = (len(lines) * max(0, min(batches, at - late)) // batches for at in (batch, batch + 1))
            some[file] = lines[begin:end]
        yield {file: lines for file, lines in some.items() if lines}


def compared(nodes: Sequence[NodeSummary]) -> list[tuple[Any, ...]]:
    """What verdicts and releases rest on."""
    return [
        (
            it.host,
            it.tasks,
            it.applications,
            it.share,
            sorted((kind, counts) for kind, counts in it.failures.items()),
            sorted((replace(own, slowdown=round(own.slowdown, 9)) for own in it.comparisons), key=str),
        )
        for it in nodes
    ]


def test_logs_that_grow_show_what_whole_logs_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a restart, and if evidence from before a moment within an application does not count."""
    monkeypatch.setattr(application_store, "WINDOW_MS", now())
    files = write_event_logs(draw_run("bad memory: tasks fail there", 1), tmp_path)
    logs = {f"file:{path}": path.read_text().splitlines() for path in files}
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    store = Store(folder)
    for new in growing(logs, 3):
        number, store = store.number, Store(folder)
        store.number = number
        store.add(parsed(new))
    (whole := tmp_path / "whole").mkdir()
    analysis = analyse(whole, parsed(logs))
    found = analysis.summaries()
    busy = max(found, key=lambda it: it.tasks)
    middle = sorted(it.last for it in busy.comparisons)[len(busy.comparisons) // 2]
    ignored = {busy.host: middle - 1000, found[0].host: middle}
    assert compared(store.summaries()) == compared(found)
    assert judge(store.summaries(), Rules()).verdicts == judge(found, Rules()).verdicts != []
    assert compared(store.summaries(ignored)) == compared(analysis.summaries(ignored)) != compared(found)


def long_log(app: str, parts: int, slow_from: int) -> list[list[str]]:
    """The lines of an application of six stages in each part; n3 is slow from a part on. It ends now."""
    found = []
    for part in range(parts):
        lines = event_log(app, now() - (parts - part) * 60_000, slow="n3" if part >= slow_from else None)
        for stage in reversed(range(6)):
            lines = [it.replace(f'"Stage ID":{stage},', f'"Stage ID":{part * 6 + stage},') for it in lines]
        found.append(lines if part == 0 else lines[2:])
    return found


def long_logs(slow_from: int) -> dict[str, list[list[str]]]:
    return {app: long_log(app, 10, slow_from) for app in ("app-1", "app-2", "app-3")}


@pytest.fixture
def keeps_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three stages of 18 tasks."""
    monkeypatch.setattr(application_store, "KEPT_TASKS", 3 * 19)
    monkeypatch.setattr(application_store, "KEPT_STAGES", 3)


@pytest.mark.usefixtures("keeps_few")
def test_of_an_application_that_runs_long_the_latest_stages_are_compared(tmp_path: Path) -> None:
    """A host that becomes slow is found as soon, and by what the same stages show alone."""
    logs, store = long_logs(slow_from=8), Store(tmp_path)
    store.add_in_turn(logs)
    (tmp_path / "latest").mkdir()
    latest = Store(tmp_path / "latest")
    kept = {f"/logs/{app}": [*parts[0][:2], *(it for part in parts[8:] for it in part)] for app, parts in logs.items()}
    latest.add(parsed(kept))
    (verdict,) = judge(store.summaries(), Rules(min_span_ms=0)).verdicts
    (expected,) = judge(latest.summaries(), Rules(min_span_ms=0)).verdicts
    assert (verdict.host, verdict.severity) == (expected.host, expected.severity) == ("n3", Severity.SLOW)
    assert set(store.tasks().values()) == {3 * 10 * 18}
    (stored,) = store.store.rows("SELECT count(*) AS facts FROM stored")
    assert stored["facts"] < 3 * 3 * 57


@pytest.mark.usefixtures("keeps_few")
def test_a_host_is_slow_since_before_the_stages_that_are_compared(tmp_path: Path) -> None:
    """Those of a busy application may take seconds. What was before it was unblocked by hand does not count."""
    store = Store(tmp_path)
    store.add_in_turn(long_logs(slow_from=0))
    (verdict,) = judge(store.summaries(), Rules()).verdicts
    assert verdict.last_evidence - verdict.first_evidence >= 9 * 60_000
    unblocked = now() - 7 * 60_000
    (verdict,) = judge(store.summaries({"n3": unblocked}), Rules()).verdicts
    assert verdict.first_evidence == unblocked
    assert judge(store.summaries({"n3": now() - 5 * 60_000}), Rules()).verdicts == []


@pytest.mark.usefixtures("keeps_few")
def test_failures_in_earlier_stages_of_an_application_that_runs_on_still_count(tmp_path: Path) -> None:
    parts = long_log("app-1", 10, slow_from=99)
    event = json.loads(parts[0][5])
    event["Task End Reason"] = {"Reason": "ExceptionFailure", "Class Name": "x", "Description": "Input/output error"}
    parts[0][5] = json.dumps(event)
    whole, store = Store(tmp_path), Store(tmp_path)
    for own in parts:
        store.add(parsed({"/logs/app-1": own}))
    whole.store = ApplicationStore(tmp_path / "whole.duckdb", dict, lambda _: None)
    whole.add(parsed({"/logs/app-1": [it for own in parts for it in own]}))
    (failures,) = (it.failures for it in store.summaries() if it.failures)
    assert failures == next(it.failures for it in whole.summaries() if it.failures)


def test_no_more_is_analysed_in_a_batch_than_fits_and_the_rest_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the start, all is."""
    monkeypatch.setattr(application_store, "FACTS_AT_ONCE", 200)
    logs = {f"/logs/app-{number}": event_log(f"app-{number}", now() - 100_000) for number in range(4)}
    store = Store(tmp_path)
    store.add(parsed({file: lines[:60] for file, lines in logs.items()}))
    before = store.tasks()
    assert sum(before.values()) == sum("TaskEnd" in it for lines in logs.values() for it in lines[:60])
    store.add(parsed({file: lines[60:] for file, lines in logs.items()}))
    assert sum(before.values()) < sum(store.tasks().values()) < 4 * 108
    while store.store.analyse_more():
        pass
    assert sum(store.tasks().values()) == 4 * 108


def test_a_block_ends_early_once_as_many_applications_as_its_cause_names_find_the_node_as_good(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def run(app: str, minutes_ago: int, slow: str | None = None) -> None:
        store.add(parsed({f"/logs/{app}": event_log(app, now() - minutes_ago * 60_000, slow=slow)}))

    def released() -> list[str]:
        recent = store.summaries({"n3": now() - 70 * 60_000})
        return [it.host for node in recent if node.host == "n3" and (it := release(node, Rules()))]

    for app, minutes_ago in (("app-1", 110), ("app-2", 100), ("app-3", 80)):
        run(app, minutes_ago, slow="n3")
    (verdict,) = judge(store.summaries(), Rules()).verdicts
    assert verdict.cause.endswith("ends early once 2 applications over 6 minutes find it as good as its peers")
    run("app-4", 50)
    assert released() == []
    run("app-5", 40)
    assert released() == ["n3"]
    assert judge(store.summaries(), Rules()).verdicts == []


def test_what_a_log_says_of_itself_counts_as_long_as_a_later_part_has_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application_store, "FORGET_AFTER", 2)
    first, last, old = (f"{ROLLED}/events_1_app-1", f"{ROLLED}/events_9_app-1", "/logs/app-2")
    pods = {"kind": "environment", "detail": "k8s://https://api"}
    named = {"kind": "executor", "host": "10.1.0.5", "detail": "worker-5"}
    yesterday = now() - 25 * 3_600_000
    store = Store(tmp_path)
    store.add_rows({"file": first, **pods}, {"file": first, **named}, task(yesterday, file=first, host="10.1.0.5"))
    store.add_rows(task(yesterday, file=old, app="app-2"), task(now(), file=last, host="10.1.0.5"))
    store.add_rows(task(now(), file=last, host="10.1.0.5"))
    assert store.tasks() == {"worker-5": 2}


def test_a_pod_of_an_application_that_runs_longer_than_the_window_keeps_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several pods that had the address before the window, the last one counts."""
    monkeypatch.setattr(application_store, "FORGET_AFTER", 1)
    pods = {"kind": "environment", "detail": "k8s://https://api"}
    days = 24 * 3_600_000
    begun = [
        {"kind": "executor", "time": now() - ago * days, "host": "10.1.0.5", "detail": f"worker-{node}"}
        for ago, node in ((4, 1), (2, 3), (3, 2))
    ]
    store = Store(tmp_path)
    store.add_rows(pods, *begun)
    for tasks in (1, 2):
        store.add_rows(task(now(), host="10.1.0.5"))
        assert store.tasks() == {"worker-3": tasks}


def test_what_has_left_the_window_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    monkeypatch.setattr(application_store, "FORGET_AFTER", 1)
    store.add_rows({"kind": "broken", "detail": ""}, task(now(), message="x"))
    assert store.tasks() == {"n1": 1}
    assert [it.subject for it in store.store.name_applications()] == ["lines of /logs/app-1"]
    monkeypatch.setattr(application_store, "WINDOW_MS", -3_600_000)
    monkeypatch.setattr(application_store, "QUIET_SECONDS", -3600)
    store.add_rows(task(now() + 7_200_000, file="/logs/app-2", app="app-2", host="n2"))
    assert store.tasks() == {}
    assert store.store.name_applications() == []


def test_the_database_is_opened_anew_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What DuckDB keeps in memory of temporary tables is freed then, and nothing is lost."""
    monkeypatch.setattr(application_store, "FORGET_AFTER", 2)
    store = Store(tmp_path)
    opened = []
    for number in range(1, 5):
        store.add_rows(task(now()))
        assert store.tasks() == {"n1": number}
        opened.append(store.store._db)
    assert [it is opened[0] for it in opened] == [True, True, False, False]


def test_events_that_a_compacted_part_repeats_count_once(tmp_path: Path) -> None:
    first, compact = f"{ROLLED}/events_1_app-1", f"{ROLLED}/events_2_app-1.compact"
    time = now()
    again = task(time, partition=1, host="n2", app="app-2", file="/logs/app-2")
    store = Store(tmp_path)
    store.add_rows(*(task(time, partition=number, file=first) for number in range(3)), again, again)
    store.add_rows(*(task(time, partition=number, file=compact) for number in (1, 2, 3)))
    assert store.tasks() == {"n1": 4, "n2": 2}, "once, apart from those of another log"


def test_an_impossible_index_of_a_task_ends_nothing(tmp_path: Path) -> None:
    """One line of a log would end the analysis of all, and again after each restart."""
    start = event_log("app-1", now() - 100_000)
    (line, *_) = (it for it in start if '"SparkListenerTaskEnd"' in it)
    event = json.loads(line)
    event["Task Info"]["Index"] = 2**63 - 1
    event["Task End Reason"] = {"Reason": "ExceptionFailure", "Class Name": "java.io.IOException", "Description": ""}
    store = Store(tmp_path)
    store.add(parsed({"/logs/app-1": [*start, json.dumps(event)]}))
    assert sum(store.tasks().values()) == sum("SparkListenerTaskEnd" in it for it in start) + 1


def test_stages_and_attempts_may_have_any_number(tmp_path: Path) -> None:
    """They are names: nothing is computed from them. The number of a stage's tasks is compared only."""
    numbers = [2**63 - 1, -(2**63), -1, 2**31, 2**62, 0]
    events = [json.loads(line) for line in event_log("app-1", now() - 100_000, slow="n3")]
    for event in events:
        for stage in (event, event.get("Stage Info", {})):
            if "Stage ID" in stage:
                stage["Stage ID"] = stage["Stage Attempt ID"] = numbers[stage["Stage ID"]]
    events[2]["Stage Info"]["Number of Tasks"] = 2**63 - 1
    store = Store(tmp_path)
    store.add(parsed({"/logs/app-1": [json.dumps(event) for event in events]}))
    (node,) = (it for it in store.summaries() if it.host == "n3")
    assert {it.metric: it.slow_stages for it in node.comparisons}[Metric.COMPUTE] == len(numbers) - 1


def test_events_of_a_log_that_is_read_from_its_start_again_count_once(tmp_path: Path) -> None:
    """Such as one that is copied to the folder again and again: for a moment it is shorter than before."""
    lines = event_log("app-1", now() - 100_000)
    store = Store(tmp_path)
    store.add(parsed({"/logs/app-1": lines}))
    once = store.tasks()
    store.add(parsed({"/logs/app-1": lines[:30]}))
    store.add(parsed({"/logs/app-1": lines[30:]}))
    assert store.tasks() == once


def owned_store(folder: Path, owners: Mapping[str, str], **options: bool) -> Store:
    """A store of logs of these owners, by file."""
    store = Store(folder)
    store.store = ApplicationStore(folder / f"owned-{len(options)}.duckdb", dict, owners.get, **options)
    return store


def test_of_copies_of_one_owner_each_application_counts_once(tmp_path: Path) -> None:
    lines = event_log("app-1", now() - 100_000)
    store = owned_store(tmp_path, {"/a/app-1": "ann", "/b/app-1": "ann", "/b/app-2": "bob"})
    store.add(parsed({"/a/app-1": lines, "/b/app-1": lines[:30], "/b/app-2": event_log("app-2", now() - 100_000)}))
    (copy,) = store.store.name_applications()
    assert copy.sentence.startswith("/b/app-1 is skipped: a copy of /a/app-1")
    assert set(store.tasks().values()) == {36}
    assert store.store.log_owners() == {"app-1": "ann", "app-2": "bob"}
    assert set(store.store.owners().values()) == {2}


def test_a_copy_with_more_lines_does_not_replace_the_log_of_an_owner_who_was_first(tmp_path: Path) -> None:
    """Even if the copy's file was there before, and says whose application it is only later."""
    lines = event_log("app-1", now() - 100_000)
    forged = [*lines, *(line.replace('"n1"', '"n9"') for line in lines[2:])]
    store = owned_store(tmp_path, {"/a/app-1": "ann", "/b/app-1": "bob"})
    store.add(parsed({"/b/app-1": forged[:1]}))
    store.add(parsed({"/a/app-1": lines[:30]}))
    store.add(parsed({"/a/app-1": lines[30:], "/b/app-1": forged[1:]}))
    assert [it.sentence for it in store.store.name_applications()] == [
        "/b/app-1 is skipped: a copy of /a/app-1, the log of application app-1."
    ]
    assert set(store.tasks().values()) == {18}
    assert store.store.log_owners() == {"app-1": "ann"}


def test_no_log_takes_the_name_of_an_application_of_another_owner(tmp_path: Path) -> None:
    """By the name of its file, or by an App ID like the name of one of several applications with the same App ID."""
    began = now() - 100_000
    owners = {"/a/1/eventlog": "ann", "/a/app-2": "ann"} | dict.fromkeys(
        ("/b/app-1", "/b/other", "/b/forged", f"/b/app-2 ({began})"), "bob"
    )
    lines = event_log("app-2", began)
    store = owned_store(tmp_path, owners)
    store.add(parsed({"/a/1/eventlog": event_log("app-1", began), "/a/app-2": lines}))
    store.add(
        parsed(
            {
                "/b/app-1": event_log("app-1", began)[2:],
                "/b/other": event_log("app-2", began - 1),
                "/b/forged": event_log(f"app-2 ({began})", began),
                f"/b/app-2 ({began})": lines[2:],
            }
        )
    )
    assert store.store.name_applications() == []
    found = store.store.log_owners()
    assert len(found) == len(owners)
    assert {app for app, owner in found.items() if owner == "ann"} == {"app-1", f"app-2 ({began})"}


def test_what_the_file_of_another_owner_had_under_the_same_name_is_forgotten(tmp_path: Path) -> None:
    """Such as one that was made before the application began, and deleted: it is not the word of the owner now."""
    for number, before in enumerate(("bob", "")):
        owners = {"/a/app-1": before}
        (folder := tmp_path / str(number)).mkdir()
        store = owned_store(folder, owners)
        store.add(parsed({"/a/app-1": event_log("app-1", now() - 200_000, hosts=["n7", "n8", "n9"])}))
        owners["/a/app-1"] = "ann"
        store.add(parsed({"/a/app-1": event_log("app-1", now() - 100_000)}))
        assert store.tasks().keys() == {f"n{number}" for number in range(1, 7)}
        assert store.store.log_owners() == {"app-1": "ann"}


def test_an_application_that_several_owners_have_from_the_start_is_left_out_unless_logs_are_trusted(
    tmp_path: Path,
) -> None:
    lines = event_log("app-1", now() - 100_000)
    owners = {"/a/app-1": "ann", "/b/app-1": "bob"}
    logs = parsed({"/a/app-1": lines, "/b/app-1": [*lines, lines[-1]]})
    store = owned_store(tmp_path, owners)
    store.add(logs)
    assert [it.sentence for it in store.store.name_applications()] == [
        f"Application app-1 is left out: {UNKNOWN}: /a/app-1 and /b/app-1."
    ]
    assert store.tasks() == {}
    trusted = owned_store(tmp_path, owners, are_logs_trusted=True)
    trusted.add(logs)
    (copy,) = trusted.store.name_applications()
    assert copy.sentence.startswith("/a/app-1 is skipped: a copy of /b/app-1")


def test_a_checkpoint_of_which_a_part_is_missing_or_older_is_refused(tmp_path: Path) -> None:
    """Spark would begin again with batch 0, which was stored before: what is new would be left out for days."""
    store = Store(tmp_path)
    for _ in range(3):
        store.add_rows(task(now()))
    for number in (0, 1, 4):
        store.number = number
        with pytest.raises(BlocklistError, match=r"^Batch \d follows batch 2: a part of the checkpoint is missing"):
            store.add_rows(task(now()))
    store.number = 2
    store.add_rows(task(now()))
    assert store.tasks() == {"n1": 3}


def test_a_checkpoint_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "applications.duckdb"
    for statement in ("CREATE TABLE logs (id BIGINT)", "CREATE TABLE version AS SELECT 1 AS number"):
        path.unlink(missing_ok=True)
        with duckdb.connect(str(path)) as made_before:
            made_before.execute(statement)
        with pytest.raises(BlocklistError, match=r"was made by another version of blocklist\. Delete the folder"):
            ApplicationStore(path, dict, lambda _: None)
    path.unlink()
    for _ in range(2):
        ApplicationStore(path, dict, lambda _: None)


def test_the_folder_of_a_checkpoint_may_have_any_name(tmp_path: Path) -> None:
    for name in ("a[1]", "a*", "a'\" b"):
        folder = tmp_path / name
        folder.mkdir()
        store = Store(folder)
        store.add_rows(task(now()))
        assert store.tasks() == {"n1": 1}, name


def test_a_checkpoint_that_another_process_has_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "applications.duckdb"
    code = "import duckdb, sys; it = duckdb.connect(sys.argv[1]); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin
        assert other.stdout
        other.stdout.readline()
        with pytest.raises(BlocklistError, match=r"^The checkpoint cannot be used: .*lock"):
            ApplicationStore(path, dict, lambda _: None)
        other.stdin.close()


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"null"])
def test_a_damaged_file_of_what_was_reported_ends_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "names.json"
    path.write_bytes(content)
    ReportedVerdicts(path).forget([])
    names = ReportedNames(path)
    assert names.names == frozenset()
    names.set(["n1"])
    assert ReportedNames(path).names == {"n1"}


class Reports:
    """A follower with what it decides on and reports."""

    def __init__(self, spark: SparkSession, checkpoint: Path, known: Mapping[str, str]) -> None:
        self.hosts: list[str] = []
        self.problems: list[str] = []
        self.follower = LogFollower(
            spark, checkpoint, self._decide, lambda *_: None, self.problems.extend, known_nodes=lambda: known
        )

    def _decide(self, store: ApplicationStore) -> BatchDecision:
        nodes: Sequence[Any] = store.summaries({})
        self.hosts = [node.host for node in nodes]
        judgement = Judgement(verdicts=(), left_open={}, near_misses={})
        return BatchDecision(judged=JudgedNodes(summaries=nodes, judgement=judgement, proposals=()), releases=())


def test_pods_are_looked_up_and_what_is_left_out_is_reported_once(spark: SparkSession, tmp_path: Path) -> None:
    reports = Reports(spark, tmp_path, {"10.1.0.5": "worker-5"})
    kubernetes = {"kind": "environment", "detail": "k8s://https://api"}
    broken = {"kind": "broken", "detail": ""}
    tasks = [task(now(), host=host) for host in ("10.1.0.5", "10.1.0.6")]
    reports.follower.add_batch(frame(spark, kubernetes, broken, *tasks), 0)
    assert reports.hosts == ["worker-5"]
    lines, pods = reports.problems
    assert lines == "/logs/app-1: 1 broken line was skipped."
    assert pods.startswith("Pods of application app-1 on unknown nodes are left out: 1.")
    restarted = Reports(spark, tmp_path, {})
    restarted.follower.add_batch(frame(spark, broken, broken, {**broken, "app": "app-2", "file": "/logs/app-2"}), 1)
    assert restarted.hosts == []
    assert restarted.problems == ["/logs/app-2: 1 broken line was skipped."]


def test_what_waits_is_analysed_while_no_log_grows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application_store, "FACTS_AT_ONCE", 1)
    monkeypatch.setattr(follow_mode, "TRIGGER_SECONDS", -1)
    reports = Reports(spark, tmp_path, {})
    for number, hosts in enumerate((["n1"], ["n2", "n3"])):
        tasks = [task(now(), host=host, app=f"app-{host}", file=f"/logs/app-{host}") for host in hosts]
        reports.follower._try_batch(frame(spark, *tasks), number)
    assert reports.hosts == ["n1", "n2"]
    reports.follower._analyse_while_quiet()
    assert reports.hosts == ["n1", "n2", "n3"]


@pytest.fixture
def handlers() -> Iterator[None]:
    """A follower that runs handles signals."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_an_error_of_the_service_ends_it_in_its_own_words(spark: SparkSession, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "app-1").write_text("".join(event_log("app-1", now() - 100_000)))

    def refuse(_: ApplicationStore) -> BatchDecision:
        raise BlocklistError("The service is too old.")

    follower = LogFollower(spark, tmp_path / "checkpoint", refuse, lambda *_: None, lambda _: None)
    with pytest.raises(BlocklistError, match=r"^The service is too old\.$"):
        follower.run([str(logs)])
