"""Drift: where a listener's nodes are not as the list says, and since when. Pure; times are Unix milliseconds.

Only what listeners report counts. A number of running tasks that is not reported is unknown, not zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from blocklist.model.task_count import TaskCount


class DriftKind(StrEnum):
    """What differs.

    Blocked here: evacuated, but tasks still run there; tasks started after the listener had applied the block; the
    manager still gives out the node. Free here: the manager does not give out the node.
    """

    TASKS_RUNNING = "tasks-running"
    TASKS_STARTED = "tasks-started"
    SCHEDULABLE = "schedulable"
    UNSCHEDULABLE = "unschedulable"

    @property
    def blocked_here(self) -> bool:
        """Whether the node is blocked on the list."""
        return self is not DriftKind.UNSCHEDULABLE


_NOBODY: Final[Mapping[str, ReportingListener]] = MappingProxyType({})
MAX_NAMED: Final = 5
"""Maximum number of TaskManagers that a reason names."""


class _Begin(NamedTuple):
    """When drift was first observed, and whether it began then."""

    at: int
    observed: bool


class _Key(NamedTuple):
    node: str
    kind: DriftKind
    listener: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Drift:
    """One difference between the list and what a listener reports, observed without a gap since a time.

    `begin_observed` is whether it began then; otherwise it may be older: it was there when the observation began.
    """

    node: str
    kind: DriftKind
    listener: str
    since: int
    reason: str
    begin_observed: bool = False


class ReportingListener(NamedTuple):
    """A live listener that reports its state: its registration, and its lease in milliseconds."""

    registration: tuple[str, int]
    lease: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TasksOnBlockedNode:
    """The TaskManagers of a live listener on a blocked node: id to the number of running tasks, None if not reported.

    `block_start` and `evacuates` are those of the block, `registration` and `lease` (milliseconds) of the listener.
    `acked` is whether it has acknowledged the block, `refused` why it does not carry it out.
    """

    node: str
    block_start: int
    evacuates: bool
    listener: str
    registration: tuple[str, int]
    lease: int
    acked: bool
    refused: str | None
    running: Mapping[str, int | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportedState:
    """A node that a listener reports as schedulable although blocked, or as unschedulable although free."""

    node: str
    kind: DriftKind
    listener: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class UnknownTasks:
    """A listener with TaskManagers on an evacuated node whose running tasks it does not report."""

    node: str
    listener: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DriftReport:
    """All drift at a time, and where it is unknown whether tasks run; both sorted by node."""

    observed_at: int
    drift: Sequence[Drift] = ()
    unknown: Sequence[UnknownTasks] = ()


@dataclass(slots=True)
class _Baseline:
    """The fewest running tasks on each TaskManager since the listener applied the block; None if not reported yet.

    `fewest` is None until a lease has passed since `acked_at`: what was reported before may be older than the block.
    """

    acked_at: int
    fewest: dict[str, int | None] | None = None


@dataclass(slots=True)
class DriftObserver:
    """Compares one observation with the ones before. Observe every few seconds, as tasks come and go.

    `evacuation_ms` is how long tasks may still run on an evacuated node. All maps hold only what the last observation
    contained.
    """

    evacuation_ms: int
    _since: dict[_Key, _Begin] = field(default_factory=dict)
    _reporting_since: dict[tuple[str, tuple[str, int]], int] = field(default_factory=dict)
    _baselines: dict[tuple[str, tuple[str, int], str, int], _Baseline] = field(default_factory=dict)

    def observe(
        self,
        tasks: Sequence[TasksOnBlockedNode],
        reported: Iterable[ReportedState],
        now: int,
        reporting: Mapping[str, ReportingListener] = _NOBODY,
    ) -> DriftReport:
        """The drift at this time. `reporting` are the live listeners that report their state, by id."""
        reasons = dict(self._started(tasks, now))
        for each in tasks:
            if (reason := _running_reason(each)) is not None:
                reasons[_Key(each.node, DriftKind.TASKS_RUNNING, each.listener)] = reason
        reasons |= {_Key(state.node, state.kind, state.listener): state.reason for state in reported}
        complete = self._completely_reporting(reporting, now)
        self._since = {key: self._since.get(key) or _Begin(now, key.listener in complete) for key in reasons}
        drift = [
            Drift(
                node=key.node,
                kind=key.kind,
                listener=key.listener,
                since=begin.at,
                reason=reasons[key],
                begin_observed=begin.observed,
            )
            for key, begin in sorted(self._since.items())
            if now - begin.at >= (self.evacuation_ms if key.kind is DriftKind.TASKS_RUNNING else 0)
        ]
        return DriftReport(observed_at=now, drift=drift, unknown=_unknown(tasks))

    def _completely_reporting(self, reporting: Mapping[str, ReportingListener], now: int) -> set[str]:
        """The listeners that have reported all of their state before: at the latest after a lease."""
        earlier = self._reporting_since
        self._reporting_since = {
            (name, listener.registration): earlier.get((name, listener.registration), now)
            for name, listener in reporting.items()
        }
        return {
            name
            for name, listener in reporting.items()
            if now - self._reporting_since[name, listener.registration] >= listener.lease
        }

    def _started(self, tasks: Iterable[TasksOnBlockedNode], now: int) -> Iterator[tuple[_Key, str]]:
        earlier, self._baselines = self._baselines, {}
        for each in tasks:
            identity = each.listener, each.registration, each.node, each.block_start
            baseline = earlier.get(identity)
            if baseline is None and not each.acked:
                continue
            baseline = self._baselines[identity] = baseline or _Baseline(now)
            if started := _started_on(baseline, each, now):
                named = ", ".join(started[:MAX_NAMED])
                more = f" and {len(started) - MAX_NAMED} more" if len(started) > MAX_NAMED else ""
                reason = f"tasks started on {named}{more} after the listener had applied the block"
                yield _Key(each.node, DriftKind.TASKS_STARTED, each.listener), reason


def _started_on(baseline: _Baseline, tasks: TasksOnBlockedNode, now: int) -> list[str]:
    """The TaskManagers on which more tasks run than before, and the new ones that run any."""
    fewest = baseline.fewest
    if fewest is None:
        if now - baseline.acked_at >= tasks.lease:
            baseline.fewest = dict(tasks.running)
        return []
    before = {task_manager: fewest.get(task_manager, 0) for task_manager in tasks.running}
    baseline.fewest = {name: _fewer(before[name], count) for name, count in tasks.running.items()}
    return [name for name, count in sorted(tasks.running.items()) if _is_more(count, before[name])]


def _fewer(before: int | None, count: int | None) -> int | None:
    return count if before is None else before if count is None else min(before, count)


def _is_more(count: int | None, before: int | None) -> bool:
    return count is not None and before is not None and count > before


def _running_reason(tasks: TasksOnBlockedNode) -> str | None:
    """How many tasks run on an evacuated node, and why; None if none do, or none are reported."""
    count = TaskCount.of(tasks.running.values())
    if not tasks.evacuates or not count.known:
        return None
    if tasks.refused is not None:
        return f"{count.text()}; the listener refuses the block: {tasks.refused}"
    return f"{count.text()}; the listener has {'' if tasks.acked else 'not '}applied the block"


def _unknown(tasks: Iterable[TasksOnBlockedNode]) -> list[UnknownTasks]:
    unreported = [each for each in tasks if each.evacuates and None in each.running.values()]
    return sorted(
        (UnknownTasks(node=each.node, listener=each.listener) for each in unreported),
        key=lambda each: (each.node, each.listener),
    )
