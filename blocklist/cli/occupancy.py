"""What still runs on a node that is being drained, as far as its listeners report it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from blocklist.model.task_count import TaskCount

if TYPE_CHECKING:
    from blocklist.wire.node_status import AppliedBody, NodeStatusBody

_JOB: Final = "JOB_MASTER"
NO_REPORT: Final = "nobody"
"""In place of a listener's name: no live job reports anything."""


class Hold(StrEnum):
    """Why a listener keeps a node from being drained, or that it no longer does."""

    PENDING = "pending"
    RUNNING = "running"
    REFUSED = "refused"
    ENDED = "ended"
    UNKNOWN = "unknown"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class Holder:
    """One listener on one node. `text` is for people, without the names of both.

    `idle` is whether it reports that none of its tasks runs there, so that only its acknowledgement is missing, if any.
    """

    hold: Hold
    text: str
    idle: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Occupancy:
    """The listeners of one node by id: those that hold it, and those that had tasks there and have none now.

    Without `reported` there is nothing about listeners in it, and what was read before may still be so.
    """

    holders: Mapping[str, Holder]
    reported: bool = True

    @property
    def holding(self) -> dict[str, Holder]:
        return {name: holder for name, holder in self.holders.items() if holder.hold is not Hold.EMPTY}

    @property
    def drained(self) -> bool:
        """Whether it is known that nothing runs there."""
        return not self.holding

    @property
    def stuck(self) -> bool:
        """Whether only refusals hold the node, or its evacuation has ended, so that waiting does not help."""
        holds = {holder.hold for holder in self.holding.values()}
        return bool(holds) and holds <= {Hold.REFUSED, Hold.ENDED}


def occupancy_of(status: NodeStatusBody, lapsed: Collection[str]) -> Occupancy:
    """Who holds the node; `lapsed` are jobs that have stopped reporting: what they run is unknown."""
    holders = {listener.id: _holder(listener) for listener in status.listeners}
    holders |= {name: Holder(Hold.UNKNOWN, "unknown: it has stopped reporting") for name in lapsed}
    if not any(listener.role == _JOB for listener in status.listeners):
        holders[NO_REPORT] = Holder(Hold.UNKNOWN, "unknown: no live job reports what runs there")
    return Occupancy(holders=holders)


def unknown_occupancy(reason: str) -> Occupancy:
    """Nothing can be known about the node at present."""
    return Occupancy(holders={NO_REPORT: Holder(Hold.UNKNOWN, f"unknown: {reason}")}, reported=False)


def not_draining(reason: str) -> Occupancy:
    """The node is not being drained any more, so that waiting does not help."""
    return Occupancy(holders={NO_REPORT: Holder(Hold.ENDED, reason)}, reported=False)


def held_by(occupancy: Occupancy) -> Iterator[str]:
    """`etl-nightly: refuses: its last host`, one text for each listener that holds the node."""
    for name, holder in occupancy.holding.items():
        yield holder.text if name == NO_REPORT else f"{name}: {holder.text}"


def _holder(listener: AppliedBody) -> Holder:
    tasks = TaskCount.of(each.running_tasks for each in listener.task_managers)
    running = f"{_count(tasks.known, 'task')} running" if tasks.known else ""
    if listener.refused is not None:
        return Holder(Hold.REFUSED, ", ".join(filter(None, [f"refuses: {listener.refused}", running])))
    if not listener.applied:
        report = f" (last report: {listener.pending_reason})" if listener.pending_reason else ""
        text = ", ".join(filter(None, [f"has not applied it yet{report}", running]))
        return Holder(Hold.PENDING, text, idle=not tasks.may_run)
    if tasks.known:
        return Holder(Hold.RUNNING, running)
    if tasks.unreported:
        silent = _count(tasks.unreported, "TaskManager")
        return Holder(Hold.UNKNOWN, f"unknown: does not report the tasks of {silent}")
    if listener.role == _JOB and not listener.reports_task_managers:
        return Holder(Hold.UNKNOWN, "unknown: does not report its TaskManagers")
    return Holder(Hold.EMPTY, "nothing runs", idle=True)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
