"""While applications run: what is stored of their facts, and what is reported once, with real Spark."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from blocklist.detection import follow_mode
from blocklist.detection.follow_mode import BatchDecision, FactStore, LogFollower
from blocklist.detection.heuristics import Judgement
from blocklist.detection.pipeline import Analysis
from blocklist.detection.proposals import JudgedNodes
from blocklist.detection.schemas import FACTS
from blocklist.model.errors import BlocklistError
from tests.detection.command import now
from tests.detection.synthetic_logs import event_log

ROLLED = "/logs/eventlog_v2_app-1"


def frame(spark: SparkSession, *facts: Mapping[str, Any]) -> DataFrame:
    rows = [{"app": "app-1", "file": "/logs/app-1", **fact} for fact in facts]
    return spark.createDataFrame(rows, FACTS)


def task(time: int, **columns: Any) -> dict[str, Any]:
    fixed = {"kind": "task", "outcome": "Success", "executor": "1", "stage": 1, "attempt": 0}
    return {**fixed, "host": "n1", "launched": time - 10, "time": time, **columns}


def test_what_a_log_says_of_itself_in_its_first_part_is_kept_as_long_as_a_later_part_has_events(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last, old = (f"{ROLLED}/events_1_app-1", f"{ROLLED}/events_9_app-1", "/logs/app-2")
    store = FactStore(spark, tmp_path)
    itself = {"kind": "environment", "detail": "k8s://https://api"}
    store.add(0, frame(spark, {"file": first, **itself}, task(100, file=first), {"file": old, **itself}))
    store.add(1, frame(spark, task(2000, file=last)))
    monkeypatch.setattr(follow_mode, "COMPACT_AFTER", 1)
    kept = store.since(1000).select("file", "kind").collect()
    assert sorted(map(tuple, kept)) == [(first, "environment"), (last, "task")]
    assert [path.name for path in tmp_path.glob("*-*")] == ["until-1"]


def test_events_that_a_compacted_part_repeats_count_once(spark: SparkSession, tmp_path: Path) -> None:
    first, compacted = f"{ROLLED}/events_1_app-1", f"{ROLLED}/events_2_app-1.compact"
    store = FactStore(spark, tmp_path)
    again = task(2000, partition=1)
    store.add(0, frame(spark, *(task(2000, partition=number, file=first) for number in range(3)), again, again))
    store.add(1, frame(spark, *(task(2000, partition=number, file=compacted) for number in (1, 2, 3))))
    partitions = [row["partition"] for row in store.since(1000).where("app = 'app-1'").collect()]
    assert sorted(partitions) == [0, 1, 1, 1, 2, 3], "once, apart from those of another log"


class Reports:
    """A follower with what it decides on and reports."""

    def __init__(self, spark: SparkSession, checkpoint: Path, known: Mapping[str, str]) -> None:
        self.hosts: list[str] = []
        self.problems: list[str] = []
        self.follower = LogFollower(
            spark, checkpoint, self._decide, lambda *_: None, self.problems.extend, known_nodes=lambda: known
        )

    def _decide(self, analysis: Analysis) -> BatchDecision:
        nodes: Sequence[Any] = analysis.summaries({})
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

    def refuse(_: Analysis) -> BatchDecision:
        raise BlocklistError("The service is too old.")

    follower = LogFollower(spark, tmp_path / "checkpoint", refuse, lambda *_: None, lambda _: None)
    with pytest.raises(BlocklistError, match=r"^The service is too old\.$"):
        follower.run([str(logs)])
