"""What alerts do to a node: block it, renew or free it. Pure; told the time (Unix milliseconds)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from app.integrations.alertmanager.causes import Causes
from blocklist.model.node import MAX_CAUSES, BlockAction, BlockedNode


class AlertOutcome(StrEnum):
    """What became of an alert of a post."""

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
    """An alert about a node. `mark` is the same for each post about the same alert: eight hex digits."""

    node: str
    action: BlockAction
    firing: bool
    fingerprint: str
    name: str
    summary: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What to do with one node: block or merge with `block`, `free` it, or neither; what became of each alert."""

    block: BlockedNode | None = None
    unblock: bool = False
    outcomes: tuple[AlertOutcome, ...] = ()


class _AlertsOfNode:
    """The alerts about one node, by what they mean for it."""

    def __init__(self, current: BlockedNode | None, alerts: Sequence[Alert]) -> None:
        self.causes = Causes(current)
        holding = self.causes.holding
        new = [alert for alert in alerts if alert.firing and alert.fingerprint not in holding]
        self.resolved = [alert for alert in alerts if not alert.firing and alert.fingerprint in holding]
        self.repeated = [alert for alert in alerts if alert.firing and alert.fingerprint in holding]
        ended = {alert.fingerprint for alert in self.resolved}
        self.remaining = [*self.causes.other_parts, *(part for mark, part in holding.items() if mark not in ended)]
        room = max(0, MAX_CAUSES - len(self.remaining))
        self.added, self.crowded = new[:room], new[room:]

    def parts(self) -> list[str]:
        """The cause to merge: what holds goes on to be named, so that where parts must give way others do."""
        ends = [self.causes.resolved_part(alert.fingerprint, alert.name) for alert in self.resolved]
        begins = [self.causes.firing_part(alert.fingerprint, alert.name, alert.summary) for alert in self.added]
        return [*ends, *self.remaining, *begins]


def decide(current: BlockedNode | None, alerts: Sequence[Alert], now: int, duration: int) -> Decision:
    """What alerts about one node, each at most once, do to it; `present` is its block at `now`, None if it is free.

    A firing alert blocks it until now + `duration`. One that is known to hold it changes nothing, unless it is
    stronger than the block or less than half of `duration` is left. The node is free when the last alert that holds
    it has resolved, unless anybody else has a part in its cause. At most MAX_CAUSES parts hold a node: further alerts
    wait for room.
    """
    of_node = _AlertsOfNode(current, alerts)
    if of_node.resolved and not (of_node.remaining or of_node.added):
        return Decision(
            unblock=True,
            outcomes=_outcomes(alerts, {AlertOutcome.FREED: of_node.resolved, AlertOutcome.CROWDED: of_node.crowded}),
        )
    renewed = (
        of_node.repeated if current is not None and _needs_renewal(current, of_node.repeated, now, duration) else []
    )
    by_outcome = {
        AlertOutcome.BLOCKED if current is None else AlertOutcome.MERGED: of_node.added,
        AlertOutcome.CROWDED: of_node.crowded,
        AlertOutcome.KEPT: of_node.resolved,
        AlertOutcome.RENEWED: renewed,
    }
    if not (of_node.added or of_node.resolved or renewed):
        return Decision(outcomes=_outcomes(alerts, by_outcome))
    block = _block(current, [*of_node.added, *renewed], ",".join(of_node.parts()), now, duration)
    return Decision(block=block, outcomes=_outcomes(alerts, by_outcome))


def _needs_renewal(current: BlockedNode, firing: Sequence[Alert], now: int, duration: int) -> bool:
    return bool(firing) and (
        2 * (current.end - now) < duration or max(alert.action for alert in firing) > current.action
    )


def _block(
    current: BlockedNode | None, firing: Sequence[Alert], cause: str, now: int, duration: int
) -> BlockedNode | None:
    """The block to merge with the present one: where nothing fires anew, it adds nothing but its cause."""
    if firing:
        action = max(alert.action for alert in firing)
        return BlockedNode(id=firing[0].node, action=action, start=now, end=now + duration, cause=cause)
    return None if current is None else replace(current, cause=cause)


def _outcomes(alerts: Sequence[Alert], by_outcome: Mapping[AlertOutcome, Sequence[Alert]]) -> tuple[AlertOutcome, ...]:
    outcomes = {alert.fingerprint: outcome for outcome, group in by_outcome.items() for alert in group}
    return tuple(outcomes.get(alert.fingerprint, AlertOutcome.UNCHANGED) for alert in alerts)
