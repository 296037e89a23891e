"""Which blocks are in force at the ResourceManager and at each JobMaster, from what Flink reports. Pure.

An answer of Flink to a notification proves nothing: without speculative execution it ignores what it acknowledges. In
force at the ResourceManager is what it reports itself: each TaskManager on the node as blocked. A JobMaster does not
report its blocked nodes. There a block is in force if it is at the ResourceManager, the JobMaster was notified
afterwards, and none of its tasks, read after that, has a slot on the node in which it has not started.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from blocklist.flink.state import WAITING_STATES, ClusterState, FlinkJob
from blocklist.model.node import BlockedNode

# What a listener acknowledges and refuses, from the effects that were observed in Flink. Pure.
#
# A listener acknowledges all changes up to a revision, but their effects arrive at different times: a new block
# within milliseconds, the end of another one half a minute later. What is slow does not hold back what is in force:
# it is reported as pending, with the reason, until it is in force as well.


class EffectState(StrEnum):
    """Whether a change of a node has taken effect."""

    IN_FORCE = "in force"
    PENDING = "pending"
    """Expected within seconds: nothing is acknowledged meanwhile."""
    SLOW = "slow"
    """Expected later: other changes are acknowledged meanwhile."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Effect:
    """`reason` is a sentence; empty if the change is in force."""

    state: EffectState
    reason: str = ""


IN_FORCE = Effect(EffectState.IN_FORCE)


def pending(reason: str) -> Effect:
    return Effect(EffectState.PENDING, reason)


def slow(reason: str) -> Effect:
    return Effect(EffectState.SLOW, reason)


def refused(reason: str) -> Effect:
    return Effect(EffectState.REFUSED, reason)


@dataclass(frozen=True, kw_only=True, slots=True)
class Acknowledged:
    """The blocks of the last acknowledged list; `unsettled` are nodes whose last change was not in force then."""

    blocked: Mapping[str, BlockedNode] = field(default_factory=dict)
    unsettled: frozenset[str] = frozenset()

    def nodes(self) -> set[str]:
        """All nodes that the status would show as applied, if nothing were reported about them."""
        return {*self.blocked, *self.unsettled}


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportDecision:
    """Whether to acknowledge the list, and what to report as refused and as pending: node id to reason."""

    acknowledge: bool
    refused: Mapping[str, str]
    pending: Mapping[str, str] = field(default_factory=dict)


def decide(blocked: Mapping[str, BlockedNode], effects: Mapping[str, Effect], before: Acknowledged) -> ReportDecision:
    """The decision for a list. `effects` has each blocked node, and freed nodes whose end has not taken effect yet."""
    waiting = {node_id for node_id, it in effects.items() if it.state in {EffectState.PENDING, EffectState.SLOW}}
    declined = {node_id: it.reason for node_id, it in effects.items() if it.state is EffectState.REFUSED}
    reasons = {node_id: effects[node_id].reason for node_id in waiting}
    nothing_pending = all(it.state is not EffectState.PENDING for it in effects.values())
    # Without an acknowledgement, what was acknowledged and is not in force any more is withdrawn.
    acknowledge = not waiting or (nothing_pending and _anything_new(blocked, waiting, before))
    return ReportDecision(acknowledge=acknowledge, refused=declined, pending=reasons)


def acknowledged(blocked: Mapping[str, BlockedNode], effects: Mapping[str, Effect]) -> Acknowledged:
    """What to remember after an acknowledgement."""
    unsettled = (node_id for node_id, it in effects.items() if it.state is not EffectState.IN_FORCE)
    return Acknowledged(blocked=dict(blocked), unsettled=frozenset(unsettled))


def _anything_new(blocked: Mapping[str, BlockedNode], waiting: set[str], before: Acknowledged) -> bool:
    """Whether a change is complete that has not been acknowledged."""
    changed = (node_id for node_id, node in blocked.items() if before.blocked.get(node_id) != node)
    freed = before.blocked.keys() - blocked.keys() - waiting
    return bool(freed) or any(node_id not in waiting for node_id in changed)


CONFIRM_TIMEOUT: Final = 10.0
"""Seconds within which Flink has to report a node as blocked."""
END_MARGIN: Final = 60.0
"""Seconds that a node may stay blocked in Flink after its lease and a check, until that is an error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """What is known about the cluster now.

    `error` is why Flink ignores blocks. `enabled` is whether it is known to obey them; `age` maps each blocked node to
    the seconds since its present block was received; `task_managers` each node to its TaskManagers, with those that
    have left the ResourceManager while tasks of a job still run there. Of the `nameless` it is not known yet what else
    they are called. `lingering` are nodes that are no longer on the
    list and whose TaskManagers Flink reports as blocked, with the seconds since they were freed; `end_after` are the
    seconds that it may take Flink to free a node.
    """

    state: ClusterState
    error: str | None
    enabled: bool
    age: Mapping[str, float]
    task_managers: Mapping[str, frozenset[str]]
    nameless: Collection[str]
    lingering: Mapping[str, float]
    end_after: float


def resource_manager_effects(observation: Observation) -> dict[str, Effect]:
    """Node id to effect, for the blocked nodes and the lingering ones."""
    found = {node_id: _at_resource_manager(node_id, observation) for node_id in observation.age}
    return found | {node_id: _lingering(seconds, observation) for node_id, seconds in observation.lingering.items()}


def with_unknown_jobs(
    effects: Mapping[str, Effect], evacuated: Collection[str], jobs: Sequence[str]
) -> dict[str, Effect]:
    """The same, but nodes to be evacuated are not in force while tasks of these jobs may run there.

    `evacuated` are nodes with TaskManagers; `jobs` have no listener of their own that would report it.
    """
    if not jobs:
        return dict(effects)
    unknown = slow(f"The JobMaster of job {jobs[0]} does not answer: it is not known whether its tasks run there.")
    return {
        node_id: unknown if node_id in evacuated and effect.state is EffectState.IN_FORCE else effect
        for node_id, effect in effects.items()
    }


def job_master_effects(
    job: FlinkJob, observation: Observation, at_resource_manager: Mapping[str, Effect]
) -> dict[str, Effect]:
    """The same for one job, without regard to evacuations."""
    if job.id not in observation.state.notified:
        return dict.fromkeys(at_resource_manager, pending("The JobMaster has not been notified yet."))
    return {
        node_id: _at_job_master(job, observation.task_managers.get(node_id, frozenset()), effect)
        for node_id, effect in at_resource_manager.items()
    }


def open_task_managers(observation: Observation) -> set[str]:
    """TaskManagers on blocked nodes that Flink reports as not blocked, although it obeys."""
    found = (it for node_id in observation.age for it in _open_on(node_id, observation))
    return set(found) if observation.error is None else set()


def _open_on(node_id: str, observation: Observation) -> list[str]:
    known = observation.state.task_managers
    registered = observation.task_managers.get(node_id, frozenset()) & known.keys()
    return sorted(it for it in registered if not known[it].blocked)


def _at_resource_manager(node_id: str, observation: Observation) -> Effect:
    if observation.error is not None:
        return refused(observation.error)
    task_managers = observation.task_managers.get(node_id, frozenset())
    registered = task_managers & observation.state.task_managers.keys()
    open_ones = _open_on(node_id, observation)
    if open_ones:
        return _late(f"Flink does not report {', '.join(open_ones[:3])} on this node as blocked.", node_id, observation)
    if node_id in observation.nameless:
        return _late("The service has not told yet what else this node is called.", node_id, observation)
    if registered or observation.enabled:
        return IN_FORCE
    return pending("It is not known yet whether the cluster's configuration lets Flink obey.")


def _late(reason: str, node_id: str, observation: Observation) -> Effect:
    """Flink is notified again and again until it obeys, but others must not wait for that."""
    return pending(reason) if observation.age[node_id] < CONFIRM_TIMEOUT else slow(reason)


def _at_job_master(job: FlinkJob, task_managers: Collection[str], effect: Effect) -> Effect:
    if effect.state is not EffectState.IN_FORCE:
        return effect
    waiting = sum(task.state in WAITING_STATES for task in job.on(task_managers))
    if not waiting:
        return IN_FORCE
    return slow(
        f"{waiting} task{'s' if waiting > 1 else ''} of the job got slots on this node before, and will start there."
    )


def _lingering(seconds: float, observation: Observation) -> Effect:
    if seconds < observation.end_after + END_MARGIN:
        return slow(
            f"Flink keeps the node blocked until its lease there has ended, at most {observation.end_after:g} s."
        )
    return refused(
        f"Flink still reports the node as blocked {seconds:.0f} s after it was freed. If that stays so, restart the"
        " JobManager, with slow-task-detector.check-interval of 15 s (FLINK-37607)."
    )
