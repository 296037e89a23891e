"""Members: the listeners as this process knows them, and what they last said of themselves."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from app.store.listeners import Secret
from blocklist.model.evidence import Finding
from blocklist.model.listener import Listener
from blocklist.model.usable_nodes import NodeSet
from blocklist.wire.evidence import findings
from blocklist.wire.listeners import ReportBody

MAX_ACKS: Final = 256
"""Acknowledgements of a listener whose moments are remembered."""
ERROR: Final = "error"
"""The part that is not said by the listener, but by who pushes to it: how the last push went."""
EVIDENCE: Final = "evidence"
_FIELDS: Final = {
    "taskManagers": "task_managers",
    "runningTasks": "running_tasks",
    "refused": "refused",
    EVIDENCE: "evidence",
    "nodes": "nodes",
}
"""The parts of a report on the wire, and here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What a listener says of itself; None leaves what it said before."""

    task_managers: Mapping[str, str] | None = None
    running_tasks: Mapping[str, int] | None = None
    refused: Mapping[str, str] | None = None
    evidence: Mapping[str, Finding] | None = None
    nodes: Sequence[str] | None = None

    @classmethod
    def from_body(cls, said: ReportBody) -> Self:
        """As it came over the wire."""
        return cls(
            task_managers=said.task_managers,
            running_tasks=said.running_tasks,
            refused=said.refused,
            evidence=findings(said.evidence),
            nodes=said.nodes,
        )

    def parts(self) -> dict[str, Any]:
        """What it says of anything, by the names of the wire."""
        said = {part: getattr(self, name) for part, name in _FIELDS.items()}
        return {part: value for part, value in said.items() if value is not None}

    def merged_over(self, before: Report) -> Report:
        """All that the listener has said by now, with this said last."""
        return replace(before, **{_FIELDS[part]: value for part, value in self.parts().items()})


EMPTY_REPORT: Final = Report()


@dataclass(kw_only=True, slots=True, eq=False)
class ListenerEntry:
    """A registration of a listener, and what is known of it in this process; renewals leave it the same entry.

    `said` is all that it has said of itself, `heard` when it said each part last (Unix ms), and `untold` are the parts
    that other replicas do not know yet; `nodes` are all that it may use, None if it has not said so; `used` those of
    its TaskManagers when they were last looked at; `acks` are revisions and the moments (Unix ms) at which they were
    acknowledged; `owner` is the replica that pushes to it, None where there is only one.
    """

    listener: Listener
    secret: Secret
    owner: str | None = None
    expired: bool = False
    error: str | None = None
    report: Report = EMPTY_REPORT
    reported_at: dict[str, int] = field(default_factory=dict)
    unsynced: set[str] = field(default_factory=set)
    nodes: NodeSet | None = None
    used: NodeSet | None = None
    acks: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=MAX_ACKS))

    @property
    def id(self) -> str:
        return self.listener.id

    @property
    def refused(self) -> Mapping[str, str]:
        """Blocks that it does not carry out: node id to the reason."""
        return self.report.refused or {}

    @property
    def running_tasks(self) -> Mapping[str, int]:
        """How many tasks run on each of its TaskManagers, as far as it has said so."""
        return self.report.running_tasks or {}

    def part(self, name: str) -> Any:
        """What it said last of a part, by its name on the wire."""
        return self.error if name == ERROR else getattr(self.report, _FIELDS[name])

    def next_timestamp(self, now: int) -> int:
        """When it says what it says now: later than all that it is known to have said, by whosever clock that was."""
        return max([now, *(at + 1 for at in self.reported_at.values())])

    def has_applied(self, revision: int) -> bool:
        """Whether it has applied the list up to `revision`."""
        return not self.listener.is_behind(revision)

    def applied_at(self, revision: int) -> int | None:
        """When it said so; None if it has not, or if nobody remembers."""
        if not self.has_applied(revision) or (self.acks.maxlen == len(self.acks) and self.acks[0][0] > revision):
            return None
        return next((at for acked, at in self.acks if acked >= revision), None)
