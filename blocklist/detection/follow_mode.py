"""Judges applications while they run: Structured Streaming over their event logs, with a checkpoint."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody knows them

from blocklist.detection import event_parser, streaming_source
from blocklist.detection.fact_store import FactStore
from blocklist.detection.heuristics import NodeVerdict, Rules, Severity, judge
from blocklist.detection.pipeline import Analysis

TRIGGER_SECONDS: Final = 5
"""Seconds between two looks at the logs."""
WINDOW_MS: Final = 24 * 3_600_000
"""Milliseconds of the past that are judged."""

OnVerdicts = Callable[[Sequence[NodeVerdict]], None]


class LogFollower:
    """Reads what is new, judges the last 24 hours, and tells each verdict once: again only when it became worse, or
    when there is evidence from after its block.

    All that it knows is in `checkpoint`: after a restart nothing is read twice and nothing told twice. A verdict counts
    as told when `tell` has returned; an error in it is raised, and the batch comes again at the next start.
    """

    def __init__(self, spark: SparkSession, checkpoint: Path, rules: Rules, on_verdicts: OnVerdicts) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._rules = rules
        self._on_verdicts = on_verdicts
        self._store = FactStore(spark, checkpoint / "facts")
        self._reported = ReportedVerdicts(checkpoint / "told.json")

    def run(self, paths: Sequence[str]) -> None:
        """Go on until SIGINT or SIGTERM. Raises what the stream raises."""
        self._spark.dataSource.register(streaming_source.EventLogSource)
        logs = self._spark.readStream.format(streaming_source.FORMAT).option("paths", json.dumps(list(paths))).load()
        # A line is complete when it is read: none is cut off because its log is still open.
        facts = event_parser.facts(logs.withColumn("open", F.lit(False)))
        query = (
            facts.writeStream.foreachBatch(self._batch)
            .option("checkpointLocation", str(self._checkpoint / "stream"))
            .trigger(processingTime=f"{TRIGGER_SECONDS} seconds")
            .start()
        )
        ended: list[int] = []
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda got, _: ended.append(got))
        while query.isActive and not ended:
            query.awaitTermination(1)
        # Between two batches: one that is cut off would only come again.
        while query.isActive and query.status["isTriggerActive"]:
            time.sleep(0.1)
        query.stop()

    def _batch(self, facts: DataFrame, number: int) -> None:
        if not self._store.add(number, facts):
            return
        with Analysis.of(self._store.since(time.time_ns() // 1_000_000 - WINDOW_MS)) as evidence:
            verdicts, _ = judge(evidence.summaries(), self._rules)
        if new := [verdict for verdict in verdicts if self._reported.is_new(verdict)]:
            self._on_verdicts(new)
            self._reported.add(new)


class ReportedVerdicts:
    """What was told: a file with each node's last verdict."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, list[int]] = {}
        with suppress(FileNotFoundError):
            self._known = json.loads(path.read_text(encoding="utf-8"))

    def is_new(self, verdict: NodeVerdict) -> bool:
        severity, end = self._known.get(verdict.host, (0, 0))
        return verdict.severity > Severity(severity or 1) or not severity or verdict.last_evidence >= end

    def add(self, verdicts: Sequence[NodeVerdict]) -> None:
        self._known |= {own.host: [int(own.severity), own.end] for own in verdicts}
        new = self._path.with_suffix(".new")
        new.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(json.dumps(self._known), encoding="utf-8")
        new.replace(self._path)
