"""What a listener acknowledges and refuses, from the effects that were observed in Flink. Pure.

A listener acknowledges all changes up to a revision, but their effects arrive at different times: a new block within
milliseconds, the end of another one half a minute later. What is slow does not hold back what is in force: it is
reported as refused, with the reason, until it is in force as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from blocklist.model.node import BlockedNode


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
    """Whether to acknowledge the list, and what to report as refused: node id to reason."""

    acknowledge: bool
    refused: Mapping[str, str]


def decide(blocked: Mapping[str, BlockedNode], effects: Mapping[str, Effect], before: Acknowledged) -> ReportDecision:
    """The decision for a list. `effects` has each blocked node, and freed nodes whose end has not taken effect yet."""
    waiting = {node_id for node_id, it in effects.items() if it.state in {EffectState.PENDING, EffectState.SLOW}}
    declined = {node_id: it.reason for node_id, it in effects.items() if it.state is EffectState.REFUSED}
    if not waiting or (_nothing_pending(effects) and _anything_new(blocked, waiting, before)):
        return ReportDecision(
            acknowledge=True, refused=declined | {node_id: effects[node_id].reason for node_id in waiting}
        )
    # What was acknowledged and is not in force is withdrawn.
    withdrawn = {node_id: effects[node_id].reason for node_id in waiting & before.nodes()}
    return ReportDecision(acknowledge=False, refused=declined | withdrawn)


def acknowledged(blocked: Mapping[str, BlockedNode], effects: Mapping[str, Effect]) -> Acknowledged:
    """What to remember after an acknowledgement."""
    unsettled = (node_id for node_id, it in effects.items() if it.state is not EffectState.IN_FORCE)
    return Acknowledged(blocked=dict(blocked), unsettled=frozenset(unsettled))


def _nothing_pending(effects: Mapping[str, Effect]) -> bool:
    return all(it.state is not EffectState.PENDING for it in effects.values())


def _anything_new(blocked: Mapping[str, BlockedNode], waiting: set[str], before: Acknowledged) -> bool:
    """Whether a change is complete that has not been acknowledged."""
    changed = (node_id for node_id, node in blocked.items() if before.blocked.get(node_id) != node)
    freed = before.blocked.keys() - blocked.keys() - waiting
    return bool(freed) or any(node_id not in waiting for node_id in changed)
