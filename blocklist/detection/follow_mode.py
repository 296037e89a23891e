"""Analyses applications while they run: Structured Streaming over their event logs, with a checkpoint."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from blocklist.detection import streaming_source
from blocklist.detection.event_parser import parse_lines
from blocklist.detection.fact_store import FactStore
from blocklist.detection.heuristics import NodeVerdict, Rules, Severity, judge
from blocklist.detection.pipeline import Analysis
from blocklist.detection.schemas import FACTS

TRIGGER_SECONDS: Final = 5
"""Seconds between two batches."""
WINDOW_MS: Final = 24 * 3_600_000
"""Length of the window that is analysed, up to now."""

OnVerdicts = Callable[[Sequence[NodeVerdict]], None]
Groups = Callable[[Sequence[str]], Mapping[str, str]]
"""The kind of machine of each host, as far as it is known."""


class LogFollower:
    """Reads new lines, analyses the last 24 hours and reports new verdicts.

    A verdict is reported once; again only if it becomes more severe or has evidence from after the end of its block.
    All state is in `checkpoint`: after a restart nothing is read or reported twice. A verdict counts as reported once
    `on_verdicts` has returned; its exceptions are raised, and the batch is repeated at the next start.
    """

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: Path,
        rules: Rules,
        on_verdicts: OnVerdicts,
        groups: Groups = lambda _: {},
    ) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._rules = rules
        self._on_verdicts = on_verdicts
        self._groups = groups
        self._store = FactStore(spark, checkpoint / "facts")
        self._reported = ReportedVerdicts(checkpoint / "told.json")

    def run(self, paths: Sequence[str]) -> None:
        """Run until SIGINT or SIGTERM. Raises what the stream raises."""
        self._spark.dataSource.register(streaming_source.EventLogSource)
        logs = self._spark.readStream.format(streaming_source.FORMAT).option("paths", json.dumps(list(paths))).load()
        # The source yields complete lines only, so no line is truncated because its log is in progress.
        facts = logs.withColumn("open", F.lit(False)).mapInArrow(parse_lines, FACTS)
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
        # Stop between two batches: an interrupted one would be repeated.
        while query.isActive and query.status["isTriggerActive"]:
            time.sleep(0.1)
        query.stop()

    def _batch(self, facts: DataFrame, number: int) -> None:
        if not self._store.add(number, facts):
            return
        now = time.time_ns() // 1_000_000
        with Analysis.of(self._store.since(now - WINDOW_MS)) as analysis:
            summaries = analysis.summaries()
            groups = self._groups([node.host for node in summaries])
            judged = judge(summaries, self._rules, lambda verdict: verdict.end <= now, groups)
        if new := [verdict for verdict in judged.verdicts if self._reported.is_new(verdict)]:
            self._on_verdicts(new)
            self._reported.add(new)


class ReportedVerdicts:
    """A file with the last reported verdict of each node."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, list[int]] = {}
        with suppress(FileNotFoundError):
            self._known = json.loads(path.read_text(encoding="utf-8"))

    def is_new(self, verdict: NodeVerdict) -> bool:
        severity, end = self._known.get(verdict.host, (0, 0))
        return verdict.severity > Severity(severity or 1) or not severity or verdict.last_evidence >= end

    def add(self, verdicts: Sequence[NodeVerdict]) -> None:
        self._known |= {verdict.host: [int(verdict.severity), verdict.end] for verdict in verdicts}
        new = self._path.with_suffix(".new")
        new.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(json.dumps(self._known), encoding="utf-8")
        new.replace(self._path)
