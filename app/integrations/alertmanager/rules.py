"""Decides what alerts do to a node: block, renew or unblock it. Pure; times are Unix milliseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from app.integrations.alertmanager.causes import Causes
from blocklist.model.node import MAX_CAUSES, BlockAction, BlockedNode


class AlertOutcome(StrEnum):
    """The outcome of an alert in a post."""

    BLOCKED = "blocked"
    MERGED = "merged"
    RENEWED = "renewed"
    UNCHANGED = "unchanged"
    FREED = "freed"
    KEPT = "kept"
    CROWDED = "crowded"
    LIMITED = "limited"
    UNLABELLED = "unlabelled"
    UNKNOWN_ACTION = "unknown_action"
    NO_NODE = "no_node"
    BAD_NODE = "bad_node"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    """An alert about a node. `fingerprint` identifies it in all posts: eight hex digits."""

    node: str
    action: BlockAction
    firing: bool
    fingerprint: str
    name: str
    summary: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What to do with one node: block it or merge with `block`, `unblock` it, or nothing; the outcome of each alert."""

    block: BlockedNode | None = None
    unblock: bool = False
    outcomes: tuple[AlertOutcome, ...] = ()


class _AlertsOfNode:
    """The alerts about one node, grouped by their effect."""

    def __init__(self, current: BlockedNode | None, alerts: Sequence[Alert]) -> None:
        self.causes = Causes(current)
        holding = self.causes.holding
        new_alerts = [alert for alert in alerts if alert.firing and alert.fingerprint not in holding]
        self.resolved = [alert for alert in alerts if not alert.firing and alert.fingerprint in holding]
        self.repeated = [alert for alert in alerts if alert.firing and alert.fingerprint in holding]
        resolved = {alert.fingerprint for alert in self.resolved}
        self.remaining = [
            *self.causes.other_parts,
            *(part for fingerprint, part in holding.items() if fingerprint not in resolved),
        ]
        room = max(0, MAX_CAUSES - len(self.remaining))
        self.added, self.crowded = new_alerts[:room], new_alerts[room:]

    def parts(self) -> list[str]:
        """The cause to merge. Parts that still hold the node are repeated, so that a full cause drops others."""
        resolved_parts = [self.causes.resolved_part(alert.fingerprint, alert.name) for alert in self.resolved]
        firing_parts = [self.causes.firing_part(alert.fingerprint, alert.name, alert.summary) for alert in self.added]
        return [*resolved_parts, *self.remaining, *firing_parts]


def decide(current: BlockedNode | None, alerts: Sequence[Alert], now: int, duration: int) -> Decision:
    """Decide about one node from its alerts, each given at most once. `current` is its block at `now`, or None.

    A firing alert blocks the node until now + `duration`. An alert that already holds it changes nothing, unless its
    action is stronger than the block's or less than half of `duration` is left. When the last alert that holds the
    node has resolved, the node is unblocked, unless its cause has a part of someone else. A cause has at most
    MAX_CAUSES parts: further alerts wait until there is room.
    """
    grouped = _AlertsOfNode(current, alerts)
    if grouped.resolved and not (grouped.remaining or grouped.added):
        return Decision(
            unblock=True,
            outcomes=_outcomes(alerts, {AlertOutcome.FREED: grouped.resolved, AlertOutcome.CROWDED: grouped.crowded}),
        )
    renewed = (
        grouped.repeated if current is not None and _needs_renewal(current, grouped.repeated, now, duration) else []
    )
    by_outcome = {
        AlertOutcome.BLOCKED if current is None else AlertOutcome.MERGED: grouped.added,
        AlertOutcome.CROWDED: grouped.crowded,
        AlertOutcome.KEPT: grouped.resolved,
        AlertOutcome.RENEWED: renewed,
    }
    if not (grouped.added or grouped.resolved or renewed):
        return Decision(outcomes=_outcomes(alerts, by_outcome))
    block = _block(current, [*grouped.added, *renewed], ",".join(grouped.parts()), now, duration)
    return Decision(block=block, outcomes=_outcomes(alerts, by_outcome))


def _needs_renewal(current: BlockedNode, firing: Sequence[Alert], now: int, duration: int) -> bool:
    return bool(firing) and (
        2 * (current.end - now) < duration or max(alert.action for alert in firing) > current.action
    )


def _block(
    current: BlockedNode | None, firing: Sequence[Alert], cause: str, now: int, duration: int
) -> BlockedNode | None:
    """The block to merge with the current one; without firing alerts it changes only the cause."""
    if firing:
        action = max(alert.action for alert in firing)
        return BlockedNode(id=firing[0].node, action=action, start=now, end=now + duration, cause=cause)
    return None if current is None else replace(current, cause=cause)


def _outcomes(alerts: Sequence[Alert], by_outcome: Mapping[AlertOutcome, Sequence[Alert]]) -> tuple[AlertOutcome, ...]:
    outcomes = {alert.fingerprint: outcome for outcome, group in by_outcome.items() for alert in group}
    return tuple(outcomes.get(alert.fingerprint, AlertOutcome.UNCHANGED) for alert in alerts)
