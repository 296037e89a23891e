"""Whether the tasks of a job may be made to leave a node, without harm to the job. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from blocklist.flink.effects import Effect, refused, slow
from blocklist.flink.state import (
    MAX_FAILURES,
    OWN_REASON,
    ClusterState,
    FlinkEdge,
    FlinkJob,
    FlinkTask,
    duration_seconds,
)
from blocklist.model.evidence import Finding, FindingKind
from blocklist.model.node import is_node_id

# How often a job may still restart, from the description of its restart strategy and its history. Pure.
#
# Flink does not report how many restarts are left. Each failure is one restart, so the number of failures in the
# job's history and the highest attempt of its tasks are what has been used at least. Flink drops the oldest failures
# of a long history: then it is not known how many have been used.

UNLIMITED: Final = 2**31 - 1
"""Flink's Integer.MAX_VALUE: no limit."""
_HISTORY_SIZE: Final = "web.exception-history-size"
_PREFIX: Final = "restart-strategy"


@dataclass(frozen=True, slots=True)
class RestartsLeft:
    """`number` is None if it is not known. `why` names the strategy, as a part of a sentence."""

    number: int | None
    why: str


@dataclass(frozen=True, slots=True)
class _Used:
    """The restarts that are known to be used; there may be more if the history is `truncated`."""

    number: int
    truncated: bool

    def of(self, limit: int, within: str = "") -> RestartsLeft:
        """What is left of a limit."""
        if self.truncated and limit > self.number:
            return RestartsLeft(
                None, f"at least {self.number} of {limit}{within} are used: {_HISTORY_SIZE} limits what Flink shows"
            )
        return RestartsLeft(max(0, limit - self.number), f"{self.number} of {limit}{within} are used")


def restarts_left(job: FlinkJob, configuration: Mapping[str, str], now: int) -> RestartsLeft:
    """The restarts that the job has left at `now`, in Unix milliseconds.

    `configuration` is the cluster's, which counts where the job has no strategy of its own.
    """
    text = job.restart_strategy.lower()
    if not text or "cluster level default" in text:
        return _of_configuration(job, configuration, now)
    if "deactivated" in text or "disabled" in text or "no restart" in text:
        return RestartsLeft(0, "its restart strategy is none")
    if "failure rate" in text:
        # Its description names a fixed delay as well.
        rate = re.search(r"maximum of ([0-9]+) failures within interval (.+?) and ", text)
        return _of_rate(job, rate[1], rate[2], configuration, now) if rate is not None else _not_understood(text)
    if "fixed delay" in text:
        attempts = re.search(r"#\s*([0-9]+)\s*restart attempts", text)
        return _of_attempts(job, attempts[1], configuration) if attempts is not None else _not_understood(text)
    if "exponential" in text:
        return _of_exponential_delay(job, configuration)
    return _not_understood(text)


def _of_configuration(job: FlinkJob, configuration: Mapping[str, str], now: int) -> RestartsLeft:
    kind = (configuration.get(f"{_PREFIX}.type") or configuration.get(_PREFIX) or "").strip().lower()
    if not kind:
        # Flink's default: no restarts without checkpoints.
        return RestartsLeft(UNLIMITED, "no limit") if job.checkpoints else RestartsLeft(0, "it has no restart strategy")
    if kind in {"none", "off", "disable"}:
        return RestartsLeft(0, "its restart strategy is none")
    if kind in {"fixed-delay", "fixeddelay"}:
        return _of_attempts(job, configuration.get(f"{_PREFIX}.fixed-delay.attempts", "1"), configuration)
    if kind in {"failure-rate", "failurerate"}:
        limit = configuration.get(f"{_PREFIX}.failure-rate.max-failures-per-interval", "1")
        interval = configuration.get(f"{_PREFIX}.failure-rate.failure-rate-interval", "1 min")
        return _of_rate(job, limit, interval, configuration, now)
    if kind in {"exponential-delay", "exponentialdelay"}:
        return _of_exponential_delay(job, configuration)
    return _not_understood(kind)


def _of_exponential_delay(job: FlinkJob, configuration: Mapping[str, str]) -> RestartsLeft:
    attempts = configuration.get(f"{_PREFIX}.exponential-delay.attempts-before-reset-backoff", str(UNLIMITED))
    return _of_attempts(job, attempts, configuration)


def _of_attempts(job: FlinkJob, attempts: str, configuration: Mapping[str, str]) -> RestartsLeft:
    limit = _number(attempts)
    if limit is None:
        return _not_understood(f"{attempts} attempts")
    if limit >= UNLIMITED:
        return RestartsLeft(UNLIMITED, "no limit")
    used = max(len(job.failures), max((task.attempt for task in job.tasks), default=0))
    return _Used(used, _truncated(job, configuration)).of(limit)


def _of_rate(job: FlinkJob, failures: str, interval: str, configuration: Mapping[str, str], now: int) -> RestartsLeft:
    limit, seconds = _number(failures), duration_seconds(interval)
    if limit is None or not seconds:
        return _not_understood(f"{failures} failures within {interval}")
    recent = [failure for failure in job.failures if now - failure.at <= seconds * 1000]
    # A failure that is older than the interval shows that all later ones are there.
    truncated = len(recent) == len(job.failures) and _truncated(job, configuration)
    return _Used(len(recent), truncated).of(limit, f" within {seconds:g} s")


def _truncated(job: FlinkJob, configuration: Mapping[str, str]) -> bool:
    """Whether the job may have had more failures than its history shows."""
    size = _number(configuration.get(_HISTORY_SIZE, "16"))
    return size is None or len(job.failures) >= min(size, MAX_FAILURES)


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch("[0-9]{1,10}", text.strip()) else None


def _not_understood(strategy: str) -> RestartsLeft:
    return RestartsLeft(None, f"its restart strategy is not understood: {strategy[:80]}")


_RUNNING: Final = "RUNNING"


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardContext:
    """What the guards consider besides the job.

    `blocked` are the TaskManagers on blocked nodes. `configuration` is the cluster's, None until it has been read. With
    `grows` the cluster starts TaskManagers when it needs slots, so that free ones are not required. `now` is in Unix
    milliseconds.
    """

    state: ClusterState
    blocked: Collection[str]
    configuration: Mapping[str, str] | None
    grows: bool
    now: int


def hindrance(job: FlinkJob, task_managers: Collection[str], context: GuardContext) -> Effect | None:
    """Why the job's tasks on these TaskManagers must not be evacuated now; None if they may be."""
    if job.state != _RUNNING:
        return slow(f"The job is {job.state}: its tasks are evacuated once it runs.")
    if context.configuration is None:
        # The restart strategy, and how many failures Flink remembers.
        return slow("Its tasks are not evacuated yet: the cluster's configuration has not been read yet.")
    slots = {task.allocation for task in job.on(task_managers)} - {None}
    reason = (
        _no_checkpoints(job)
        or _no_restarts(restarts_left(job, context.configuration, context.now), len(slots))
        or _no_slots(len(slots), context)
    )
    return None if reason is None else refused(f"Its tasks are not evacuated: {reason}")


def _no_checkpoints(job: FlinkJob) -> str | None:
    if job.is_batch or job.checkpoints:
        return None
    return "the job has no checkpoints, so it would start again from the beginning."


def _no_restarts(left: RestartsLeft, slots: int) -> str | None:
    if left.number is None:
        return f"it is not known how often the job may restart ({left.why})."
    if left.number > slots:
        return None
    return (
        f"the job has {_count(left.number, 'restart attempt')} left ({left.why}), and leaving {_count(slots, 'slot')}"
        " may use as many: one must remain."
    )


def _no_slots(slots: int, context: GuardContext) -> str | None:
    others = [it for it in context.state.task_managers.values() if it.id not in context.blocked and not it.blocked]
    free = sum(it.free_slots for it in others)
    if context.grows or free >= slots:
        return None
    return f"{_count(slots, 'slot')} would have to move, and the nodes that are not blocked have {free} free."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# Slots on a blocked node in which Flink may start tasks nevertheless. Pure.
#
# Flink restarts the tasks that exchange records, a region, together. A slot may hold tasks of several regions. If one
# of these fails, its tasks start again in that slot, blocked or not, as the tasks of the other regions keep it.

_Subtask = tuple[str, int]
_SCHEDULER: Final = "jobmanager.scheduler"
_MODE: Final = "scheduler-mode"
_STRATEGY: Final = "jobmanager.execution.failover-strategy"


def kept_slots(job: FlinkJob, task_managers: Collection[str], configuration: Mapping[str, str] | None) -> int:
    """The number of slots there in which tasks may start again, while others keep them."""
    tasks = job.on(task_managers)
    if not tasks or job.is_batch or job.edges is None or _restarts_as_a_whole(configuration or {}):
        return 0
    regions = _Regions(job.tasks, job.edges)
    by_slot: dict[str | None, set[_Subtask]] = {}
    for task in tasks:
        by_slot.setdefault(task.allocation, set()).add(regions.of(task))
    return sum(len(found) > 1 for found in by_slot.values())


def _restarts_as_a_whole(configuration: Mapping[str, str]) -> bool:
    """Whether a failure restarts all tasks of a job: then no slot is kept."""
    wanted = {(_SCHEDULER, "adaptive"), (_MODE, "reactive"), (_STRATEGY, "full")}
    return any(configuration.get(name, "").strip().lower() == value for name, value in wanted)


class _Regions:
    """The regions of a job, each by one of its tasks.

    Of edges that connect only some tasks of two vertices with different parallelism it is not known which: these tasks
    count as regions of their own.
    """

    def __init__(self, tasks: Iterable[FlinkTask], edges: Iterable[FlinkEdge]) -> None:
        self._parents: dict[_Subtask, _Subtask] = {}
        parallelism: dict[str, int] = {}
        for task in tasks:
            parallelism[task.vertex] = max(parallelism.get(task.vertex, 0), task.subtask + 1)
        for edge in edges:
            sources = [(edge.source, it) for it in range(parallelism.get(edge.source, 0))]
            targets = [(edge.target, it) for it in range(parallelism.get(edge.target, 0))]
            if not edge.pointwise:
                for one, other in pairwise(sources + targets):
                    self._join(one, other)
            elif len(sources) == len(targets):
                for source, target in zip(sources, targets, strict=True):
                    self._join(source, target)

    def of(self, task: FlinkTask) -> _Subtask:
        return self._root((task.vertex, task.subtask))

    def _join(self, one: _Subtask, other: _Subtask) -> None:
        self._parents[self._root(one)] = self._root(other)

    def _root(self, it: _Subtask) -> _Subtask:
        while (parent := self._parents.get(it, it)) != it:
            # Shorten the way for the next question.
            self._parents[it] = self._parents.get(parent, parent)
            it = parent
        return it


# Evidence against nodes from what Flink itself notices. Pure.
#
# Two things count: Flink's speculative execution blocked the node as slow, or tasks of the job failed there again and
# again. What this bridge causes, blocks and evacuations, is not evidence.

FAILURE_WINDOW: Final = 600_000
"""Milliseconds for which a failure counts."""
MIN_FAILURES: Final = 3
"""Number of failures within the window that are evidence."""


def job_evidence(
    job: FlinkJob, slow_nodes: Collection[str], node_of: Callable[[str], str], now: int
) -> dict[str, Finding]:
    """Node id to finding. `slow_nodes` are those that Flink blocked by itself; `now` is in Unix milliseconds."""
    used = {node_of(task_manager) for task_manager in job.running()}
    found = {
        node: Finding(kind=FindingKind.SLOW, reason="Flink's speculative execution blocked the node as slow.")
        for node in used & set(slow_nodes)
    }
    counts: dict[str, int] = {}
    for failure in job.failures:
        if failure.task_manager is not None and now - failure.at < FAILURE_WINDOW and OWN_REASON not in failure.text:
            node = node_of(failure.task_manager)
            counts[node] = counts.get(node, 0) + 1
    for node, failures in counts.items():
        if failures >= MIN_FAILURES:
            reason = f"Tasks of the job failed {failures} times on the node within 10 minutes."
            found[node] = Finding(kind=FindingKind.EXCLUDED, reason=reason)
    return {node: finding for node, finding in found.items() if is_node_id(node)}
