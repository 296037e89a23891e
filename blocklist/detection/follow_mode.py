"""Analyses applications while they run: Structured Streaming over their event logs, with a checkpoint."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from blocklist.detection.application_store import WINDOW_MS, ApplicationStore, operational_errors
from blocklist.detection.applications import KnownNodes
from blocklist.detection.heuristics import NodeVerdict
from blocklist.detection.log_file import file_owner
from blocklist.detection.proposals import JudgedNodes, Proposal, Release
from blocklist.detection.reader import FORMAT, EventLogSource
from blocklist.detection.schemas import Omission
from blocklist.model.errors import BlocklistError

TRIGGER_SECONDS: Final = 5
"""Seconds between two batches."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchDecision:
    """What a batch leads to: whom to block, and whose claims to remove."""

    judged: JudgedNodes
    releases: Sequence[Release]


Decide = Callable[[ApplicationStore], BatchDecision]
OnUpdates = Callable[[Sequence[Proposal], Sequence[Release], Sequence[str]], None]
"""Receives proposals, releases and sentences about near misses that were not reported before."""
OnProblems = Callable[[Sequence[str]], None]
"""Receives a sentence for each line, log and pod that is left out and was not reported before."""


class LogFollower:
    """Reads new lines, analyses their applications, and reports new verdicts on the last 24 hours.

    A verdict is reported once; again only if it becomes more severe, has evidence from after the end of its block, or
    is new after the node was unblocked. A near miss, or a problem, is reported when it begins. All state is in
    `checkpoint`: after a restart nothing is read or reported twice. What is new counts as reported once `on_updates`
    has returned; its exceptions are raised, and the batch is repeated at the next start.
    """

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: Path,
        decide: Decide,
        on_updates: OnUpdates,
        on_problems: OnProblems,
        known_nodes: KnownNodes = dict,
        *,
        are_logs_trusted: bool = False,
    ) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._decide = decide
        self._on_updates = on_updates
        self._on_problems = on_problems
        self._store = ApplicationStore(
            checkpoint / "applications.duckdb", known_nodes, file_owner, are_logs_trusted=are_logs_trusted
        )
        self._reported = ReportedVerdicts(checkpoint / "told.json")
        self._near_misses = ReportedNames(checkpoint / "near-misses.json")
        self._releases = ReportedNames(checkpoint / "releases.json")
        self._problems = ReportedNames(checkpoint / "problems.json")
        self._error: BlocklistError | None = None
        self._lock = threading.Lock()
        self._quiet_from = math.inf

    def run(self, paths: Sequence[str]) -> None:
        """Run until SIGINT or SIGTERM. Raises the BlocklistError of a batch, else what the stream raises."""
        self._spark.dataSource.register(EventLogSource)
        facts = self._spark.readStream.format(FORMAT).option("paths", json.dumps(list(paths))).load()
        query = (
            facts.writeStream.foreachBatch(self._try_batch)
            .option("checkpointLocation", str(self._checkpoint / "stream"))
            .trigger(processingTime=f"{TRIGGER_SECONDS} seconds")
            .start()
        )
        ended: list[int] = []
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda got, _: ended.append(got))
        try:
            while query.isActive and not ended:
                query.awaitTermination(1)
                self._analyse_while_quiet()
            if not query.isActive:
                query.awaitTermination()  # Raises what has ended it since the last wait.
        except StreamingQueryException:
            if self._error is not None:
                raise self._error from None
            raise
        except BlocklistError:
            query.stop()
            raise
        # Stop between two batches: an interrupted one would be repeated.
        while query.isActive and query.status["isTriggerActive"]:
            time.sleep(0.1)
        query.stop()

    def _try_batch(self, facts: DataFrame, number: int) -> None:
        """Keep the error of a batch: Spark's own has it deep in a long text."""
        try:
            with self._lock, operational_errors():
                self.add_batch(facts, number)
        except BlocklistError as error:
            self._error = error
            raise
        self._quiet_from = time.monotonic() + 2 * TRIGGER_SECONDS

    def _analyse_while_quiet(self) -> None:
        """Analyse applications that wait while no log grows: Spark makes no batch then."""
        if time.monotonic() > self._quiet_from:
            with self._lock, operational_errors():
                if self._store.analyse_more():
                    self._report()

    def add_batch(self, facts: DataFrame, number: int) -> None:
        """Store a batch, analyse applications, decide on all in the window, and report what is new."""
        batch = self._checkpoint / "batch"
        facts.write.mode("overwrite").parquet(str(batch))
        if self._store.add(number, batch):
            self._report()

    def _report(self) -> None:
        self._report_problems(self._store.name_applications())
        decision = self._decide(self._store)
        judgement = decision.judged.judgement
        released = {it.host for it in decision.releases}
        self._reported.forget(released)
        proposals = [
            it for it in decision.judged.proposals if it.verdict.host not in released and self._reported.is_new(it)
        ]
        near_misses = {**judgement.left_open, **judgement.near_misses}
        sentences = [near_misses[host] for host in near_misses if host not in self._near_misses.names]
        releases = [it for it in decision.releases if it.host not in self._releases.names]
        if proposals or releases or sentences:
            self._on_updates(proposals, releases, sentences)
        self._reported.add([it.verdict for it in proposals])
        self._near_misses.set(near_misses)
        self._releases.set(released)

    def _report_problems(self, problems: Sequence[Omission]) -> None:
        new = [it.sentence for it in problems if it.subject not in self._problems.names]
        if new:
            self._on_problems(new)
        self._problems.set(it.subject for it in problems)


class ReportedVerdicts:
    """A file with the last reported verdict of each node."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, list[int]] = {}
        if isinstance(known := _read(path), dict):
            self._known = known

    def is_new(self, proposal: Proposal) -> bool:
        verdict = proposal.verdict
        if verdict.host not in self._known:
            return True
        severity, end, seen = self._known[verdict.host]
        is_after_unblock = seen < proposal.unblocked_at and not proposal.stale
        return verdict.severity > severity or verdict.last_evidence >= end or is_after_unblock

    def add(self, verdicts: Sequence[NodeVerdict]) -> None:
        if verdicts:
            since = time.time_ns() // 1_000_000 - WINDOW_MS
            new = {it.host: [int(it.severity), it.end, it.last_evidence] for it in verdicts}
            # After a block that ended before the window, any verdict is new.
            self._known = {host: it for host, it in self._known.items() if it[1] >= since} | new
            _replace(self._path, self._known)

    def forget(self, hosts: Iterable[str]) -> None:
        if released := [host for host in hosts if host in self._known]:
            self._known = {host: it for host, it in self._known.items() if host not in released}
            _replace(self._path, self._known)


class ReportedNames:
    """A file with what was reported last: hosts, or subjects of problems."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.names: frozenset[str] = frozenset()
        if isinstance(names := _read(path), list):
            self.names = frozenset(names)

    def set(self, names: Iterable[str]) -> None:
        now = frozenset(names)
        if now != self.names:
            self.names = now
            _replace(self._path, sorted(now))


def _read(path: Path) -> Any:
    """None if the file is missing, or damaged, as after the end of a machine: what it said is reported once more."""
    with suppress(FileNotFoundError, ValueError):
        return json.loads(path.read_text(encoding="utf-8"))
    return None


def _replace(path: Path, content: Mapping[str, Sequence[int]] | Sequence[str]) -> None:
    """Write a file whole or not at all."""
    new = path.with_suffix(".new")
    new.parent.mkdir(parents=True, exist_ok=True)
    with new.open("w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())  # before its name is taken: else the machine may end with an empty file
    new.replace(path)
