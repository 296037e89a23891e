"""Whether the tasks of a job may be made to leave a node, without harm to the job. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from blocklist.flink.acknowledgement import Effect, refused, slow
from blocklist.flink.restarts import RestartsLeft, restarts_left
from blocklist.flink.state import ClusterState, FlinkJob

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
