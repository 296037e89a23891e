"""The reference model: claims on one node, the block that they make, and what each request does to them. Pure.

It shares no code with the service. Times are Unix milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final, NamedTuple

ALERT_OWNERS: Final = "alertmanager/"
DETECTION: Final = "detection"
EVIDENCE: Final = "evidence"
ANONYMOUS: Final = "anonymous"
_MAX_CAUSES: Final = 32


class Block(NamedTuple):
    """A block, or the block that a claim asks for. The name of the stronger action sorts after that of the weaker."""

    action: str
    start: int
    end: int
    cause: str
    canary: bool = False


Claims = Mapping[str, Block]
"""By owner, in the order in which they were made."""


@dataclass(frozen=True)
class State:
    """A node: its claims, and when automatic owners were last dismissed."""

    claims: Claims = field(default_factory=dict)
    dismissed: Mapping[str, int] = field(default_factory=dict)

    @property
    def block(self) -> Block | None:
        return join(self.claims.values())


Effect = Callable[[State, Claims, int], Claims]
"""The claims after a request: from the state before, the claims after it (for the starts of new ones), and the time."""


@dataclass(frozen=True, kw_only=True)
class BlockSpec:
    """What a request asks for: a block without its start, which only the service knows."""

    action: str
    end: int
    cause: str
    canary: bool = False

    def block(self, start: int) -> Block:
        return Block(self.action, start, self.end, self.cause, self.canary)


@dataclass(frozen=True, kw_only=True)
class Alert:
    """An alert in a post."""

    owner: str
    node: str
    action: str
    firing: bool
    started_at: int
    cause: str


def join(blocks: Iterable[Block]) -> Block | None:
    """Strongest action, earliest start, latest end, all causes (FLIP-224, Merge); a canary if all are.

    None without blocks.
    """
    found = tuple(blocks)
    return reduce(_join_two, found) if found else None


def live(claims: Claims, at: int) -> Claims:
    """The claims that have not ended."""
    return {owner: block for owner, block in claims.items() if at < block.end}


def automatic(claims: Claims) -> set[str]:
    """The owners that unblocking dismisses."""
    return {owner for owner in claims if owner in {DETECTION, EVIDENCE} or owner.startswith(ALERT_OWNERS)}


def put(spec: BlockSpec) -> Effect:
    """A PUT without an owner: merged into the caller's own claim.

    Its start is when a replica received it. That is earlier than the claim's, if another replica was faster.
    """

    def effect(before: State, after: Claims, at: int) -> Claims:
        own = before.claims.get(ANONYMOUS)
        block = spec.block(_start(None, after, ANONYMOUS))
        return {**before.claims, ANONYMOUS: block if own is None else _join_two(own, block)}

    return effect


def put_claim(owner: str, spec: BlockSpec) -> Effect:
    """A PUT of a claim: replaces the owner's former claim, and keeps its start."""

    def effect(before: State, after: Claims, at: int) -> Claims:
        return {**before.claims, owner: spec.block(_start(before.claims.get(owner), after, owner))}

    return effect


def remove_claim(owner: str) -> Effect:
    """A DELETE of a claim."""
    return lambda before, after, at: {name: block for name, block in before.claims.items() if name != owner}


def unblock(before: State, after: Claims, at: int) -> Claims:
    """A DELETE of the node: removes all claims."""
    return {}


def post(alerts: Sequence[Alert], duration: int) -> Effect:
    """A post of alerts about one node; resolved ones first, as they make room."""

    def effect(before: State, after: Claims, at: int) -> Claims:
        claims = dict(before.claims)
        for alert in alerts:
            if not alert.firing:
                claims.pop(alert.owner, None)
        for alert in alerts:
            if alert.firing and alert.started_at > before.dismissed.get(alert.owner, 0):
                claims[alert.owner] = _fire(alert, claims.get(alert.owner), after, at, duration)
        return claims

    return effect


def _fire(alert: Alert, own: Block | None, after: Claims, at: int, duration: int) -> Block:
    """A claim is renewed when less than half of its duration is left; it keeps its start and its cause."""
    if own is not None and own.action == alert.action and 2 * (own.end - at) >= duration:
        return own
    cause = alert.cause if own is None else own.cause
    return Block(alert.action, _start(own, after, alert.owner), at + duration, cause)


def _start(own: Block | None, after: Claims, owner: str) -> int:
    if own is not None:
        return own.start
    return after[owner].start if owner in after else 0


def _join_two(old: Block, new: Block) -> Block:
    return Block(
        max(old.action, new.action),
        min(old.start, new.start),
        max(old.end, new.end),
        _causes(old.cause, new.cause),
        old.canary and new.canary,
    )


def _causes(old: str, new: str) -> str:
    """All causes; of too many the new ones stay, and the latest of the old."""
    added = new.split(",")
    union = list(dict.fromkeys([*old.split(","), *added]))
    excess = max(0, len(union) - _MAX_CAUSES)
    dropped = [part for part in union if part not in added][:excess]
    return ",".join(part for part in union if part not in dropped)


def read_block(fields: Mapping[str, Any]) -> Block:
    """A block, or what a claim asks for, from JSON."""
    start, end = int(fields["startTimestamp"]), int(fields["endTimestamp"])
    return Block(fields["action"], start, end, fields["cause"], fields.get("canary", False))


def read_claims(bodies: Iterable[Mapping[str, Any]]) -> dict[str, Block]:
    """Claims from JSON."""
    return {body["owner"]: read_block(body) for body in bodies}
