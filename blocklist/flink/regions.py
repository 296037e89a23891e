"""Slots on a blocked node in which Flink may start tasks nevertheless. Pure.

Flink restarts the tasks that exchange records, a region, together. A slot may hold tasks of several regions. If one of
these fails, its tasks start again in that slot, blocked or not, as the tasks of the other regions keep it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from typing import Final

from blocklist.flink.state import FlinkEdge, FlinkJob, FlinkTask

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
