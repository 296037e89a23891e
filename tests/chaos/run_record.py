"""The record of a run, and its violations."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.attribution import attribute
from tests.chaos.change_log import read_log
from tests.chaos.contract import violations
from tests.chaos.operation import Operation
from tests.chaos.workload import NODES


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """`logs` are the change logs of the replicas at the end, `watched_changes` what each watcher received."""

    seed: str
    operations: Sequence[Operation]
    logs: Sequence[list[Any]]
    watched_changes: Sequence[list[Any]]
    anomalies: Sequence[str]
    streams: int
    faults: Counter[str]

    def violations(self) -> list[str]:
        """Violations of the contract."""
        log = self.logs[0]
        different = [f"replica {n} has another log" for n, other in enumerate(self.logs) if other != log]
        return [*different, *self.anomalies, *violations(self.operations, log, self.watched_changes, NODES)]

    def summary(self) -> Iterator[str]:
        """Figures of the run, one per line."""
        yield f"seed {self.seed}"
        for (kind, what), number in sorted(Counter(map(_outcome, self.operations)).items()):
            yield f"{number:>8} {kind}: {what}"
        yield f"{len(self.operations):>8} operations in all"
        yield f"{len(self.logs[0]):>8} revisions"
        unknown = [operation for operation in self.operations if operation.unknown]
        yield f"{len(unknown):>8} changes without an answer or with a 503, happened: {self._committed_unknown()}"
        yield f"{self.streams:>8} streams of {len(self.watched_changes)} watchers"
        for fault, number in sorted(self.faults.items()):
            yield f"{number:>8} times {fault}"

    def save(self, folder: Path) -> None:
        """Write the record to files in a folder."""
        (folder / "operations.txt").write_text("\n".join(map(str, self.operations)))
        for number, log in enumerate(self.logs):
            (folder / f"log-{number}.jsonl").write_text("\n".join(map(json.dumps, log)))

    def _committed_unknown(self) -> int:
        made = attribute(self.operations, read_log(self.logs[0])).by_revision.values()
        return len({id(change.operation) for change in made if change.operation.unknown})


def _outcome(operation: Operation) -> tuple[str, str]:
    return operation.kind, "no answer" if operation.status is None else str(operation.status)
