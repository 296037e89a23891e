"""What alerts do to a node: block it, renew or free it. Pure; told the time (Unix milliseconds)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from app.integrations.alertmanager.causes import Causes
from blocklist.model.node import MAX_CAUSES, BlockAction, BlockedNode


class Outcome(StrEnum):
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
    mark: str
    name: str
    summary: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What to do with one node: block or merge with `block`, `free` it, or neither; what became of each alert."""

    block: BlockedNode | None = None
    free: bool = False
    outcomes: tuple[Outcome, ...] = ()


class _Case:
    """The alerts about one node, by what they mean for it."""

    def __init__(self, present: BlockedNode | None, alerts: Sequence[Alert]) -> None:
        self.causes = Causes(present)
        held = self.causes.holding
        new = [alert for alert in alerts if alert.firing and alert.mark not in held]
        self.ended = [alert for alert in alerts if not alert.firing and alert.mark in held]
        self.known = [alert for alert in alerts if alert.firing and alert.mark in held]
        ended = {alert.mark for alert in self.ended}
        self.stay = [*self.causes.foreign, *(part for mark, part in held.items() if mark not in ended)]
        room = max(0, MAX_CAUSES - len(self.stay))
        self.fired, self.crowded = new[:room], new[room:]

    def parts(self) -> list[str]:
        """The cause to merge: what holds goes on to be named, so that where parts must give way others do."""
        ends = [self.causes.resolves(alert.mark, alert.name) for alert in self.ended]
        begins = [self.causes.fires(alert.mark, alert.name, alert.summary) for alert in self.fired]
        return [*ends, *self.stay, *begins]


def decide(present: BlockedNode | None, alerts: Sequence[Alert], now: int, duration: int) -> Step:
    """What alerts about one node, each at most once, do to it; `present` is its block at `now`, None if it is free.

    A firing alert blocks it until now + `duration`. One that is known to hold it changes nothing, unless it is
    stronger than the block or less than half of `duration` is left. The node is free when the last alert that holds
    it has resolved, unless anybody else has a part in its cause. At most MAX_CAUSES parts hold a node: further alerts
    wait for room.
    """
    case = _Case(present, alerts)
    if case.ended and not (case.stay or case.fired):
        return Step(free=True, outcomes=_outcomes(alerts, {Outcome.FREED: case.ended, Outcome.CROWDED: case.crowded}))
    renewed = case.known if present is not None and _worn(present, case.known, now, duration) else []
    became = {
        Outcome.BLOCKED if present is None else Outcome.MERGED: case.fired,
        Outcome.CROWDED: case.crowded,
        Outcome.KEPT: case.ended,
        Outcome.RENEWED: renewed,
    }
    if not (case.fired or case.ended or renewed):
        return Step(outcomes=_outcomes(alerts, became))
    block = _block(present, [*case.fired, *renewed], ",".join(case.parts()), now, duration)
    return Step(block=block, outcomes=_outcomes(alerts, became))


def _worn(present: BlockedNode, firing: Sequence[Alert], now: int, duration: int) -> bool:
    return bool(firing) and (
        2 * (present.end - now) < duration or max(alert.action for alert in firing) > present.action
    )


def _block(
    present: BlockedNode | None, firing: Sequence[Alert], cause: str, now: int, duration: int
) -> BlockedNode | None:
    """The block to merge with the present one: where nothing fires anew, it adds nothing but its cause."""
    if firing:
        action = max(alert.action for alert in firing)
        return BlockedNode(id=firing[0].node, action=action, start=now, end=now + duration, cause=cause)
    return None if present is None else replace(present, cause=cause)


def _outcomes(alerts: Sequence[Alert], became: Mapping[Outcome, Sequence[Alert]]) -> tuple[Outcome, ...]:
    of = {alert.mark: outcome for outcome, those in became.items() for alert in those}
    return tuple(of.get(alert.mark, Outcome.UNCHANGED) for alert in alerts)
