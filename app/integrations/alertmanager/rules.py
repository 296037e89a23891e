"""Decides what alerts claim of a node, one claim for each. Pure; times are Unix milliseconds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from blocklist.model.claims import MAX_CLAIMS, Claim, Claims
from blocklist.model.node import MAX_CAUSE_LENGTH, BlockAction, BlockedNode
from blocklist.model.repeats import Repeat


class AlertOutcome(StrEnum):
    """The outcome of an alert in a post."""

    BLOCKED = "blocked"
    MERGED = "merged"
    RENEWED = "renewed"
    UNCHANGED = "unchanged"
    DISMISSED = "dismissed"
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
    """An alert about a node. `fingerprint` identifies it in all posts: eight hex digits.

    `started_at` is since when it fires (Unix ms), None if that is unknown.
    """

    node: str
    action: BlockAction
    firing: bool
    fingerprint: str
    name: str
    summary: str
    started_at: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The claims to put on one node, the owners whose claims to remove, and the outcome of each alert."""

    put: tuple[Claim, ...] = ()
    remove: tuple[str, ...] = ()
    outcomes: tuple[AlertOutcome, ...] = ()


def owner_of(fingerprint: str) -> str:
    """The owner of an alert's claim."""
    return f"alertmanager/{fingerprint}"


def decide(
    claims: Claims,
    alerts: Sequence[Alert],
    now: int,
    duration: int,
    author: str | None,
    repeat: Repeat | None = None,
) -> Decision:
    """Decide about one node from its alerts, each given at most once. `claims` are those on it at `now`.

    Each firing alert claims the node until now + `duration`, or that of `repeat` if the node was blocked before. It is
    renewed when less than half of `duration` is left,
    or if its action has changed. The claim of an alert that has resolved is removed. A node has at most MAX_CLAIMS
    claims: further alerts wait until there is room.
    """
    node = _Node(claims, now, duration if repeat is None else repeat.duration, author, repeat)
    # Resolved alerts first: they make room.
    outcomes = {alert.fingerprint: node.resolve(alert) for alert in alerts if not alert.firing}
    outcomes |= {alert.fingerprint: node.fire(alert) for alert in alerts if alert.firing}
    ordered_outcomes = (outcomes[alert.fingerprint] for alert in alerts)
    freed = not node.remaining
    return Decision(
        put=tuple(node.put),
        remove=tuple(claim.owner for claim in claims if claim.owner not in node.remaining),
        outcomes=tuple(
            AlertOutcome.FREED if freed and outcome is AlertOutcome.KEPT else outcome for outcome in ordered_outcomes
        ),
    )


class _Node:
    """The claims on a node while its alerts are applied: `remaining` by owner, of which `put` are new or changed."""

    def __init__(
        self,
        claims: Claims,
        now: int,
        duration: int,
        author: str | None,
        repeat: Repeat | None,
    ) -> None:
        self.remaining = {claim.owner: claim for claim in claims}
        self._was_free = not claims
        self._now = now
        self._end = now + duration
        self._duration = duration
        self._author = author
        self._repeat = repeat
        self._changed: set[str] = set()

    @property
    def put(self) -> list[Claim]:
        return [claim for owner, claim in self.remaining.items() if owner in self._changed]

    def resolve(self, alert: Alert) -> AlertOutcome:
        """Remove the alert's claim. Whether that frees the node is known after all alerts."""
        claim = self.remaining.pop(owner_of(alert.fingerprint), None)
        return AlertOutcome.UNCHANGED if claim is None else AlertOutcome.KEPT

    def fire(self, alert: Alert) -> AlertOutcome:
        """Make or renew the alert's claim."""
        current = self.remaining.get(owner_of(alert.fingerprint))
        if current is not None:
            return self._renew(alert, current) if self._needs_renewal(alert, current) else AlertOutcome.UNCHANGED
        if len(self.remaining) >= MAX_CLAIMS:
            return AlertOutcome.CROWDED
        self._put(alert, self._now, alert_cause(alert.name, alert.summary))
        return AlertOutcome.BLOCKED if self._was_free else AlertOutcome.MERGED

    def _needs_renewal(self, alert: Alert, current: Claim) -> bool:
        block = current.block
        return 2 * (block.end - self._now) < self._duration or alert.action is not block.action or block.canary

    def _renew(self, alert: Alert, current: Claim) -> AlertOutcome:
        """The cause stays: a summary with a measured value would change it each time."""
        self._put(alert, current.block.start, current.block.cause)
        return AlertOutcome.RENEWED

    def _put(self, alert: Alert, start: int, cause: str) -> None:
        block = BlockedNode(id=alert.node, action=alert.action, start=start, end=self._end, cause=cause)
        claim = Claim(owner=owner_of(alert.fingerprint), author=self._author, block=block, repeat=self._repeat)
        self.remaining[claim.owner] = claim
        self._changed.add(claim.owner)


# The causes of alerts. Pure.

MAX_NAME: Final = 200
# Characters that a cause must not contain, and runs of white space.
_FORBIDDEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\\s]+")


def alert_cause(name: str, summary: str) -> str:
    """The cause of an alert's claim: one part, at most MAX_CAUSE_LENGTH characters."""
    text = f"alert {_truncate(_sanitize(name), MAX_NAME)}: {_sanitize(summary)}".removesuffix(": ").rstrip()
    return _truncate(text, MAX_CAUSE_LENGTH)


def _sanitize(text: str) -> str:
    """The text without commas and control characters, which a part of a cause must not contain."""
    return _FORBIDDEN.sub(" ", text.replace(",", ";")).strip()


def _truncate(text: str, limit: int) -> str:
    """The text, cut to `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip()}…"
