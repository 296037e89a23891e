"""Evidence: what running applications learn of nodes by themselves, and when it is enough to block one.

Pure; told the time (Unix milliseconds). As in FLIP-168's list of slow nodes each piece holds for a minute from when it
was last said. One application may be wrong, so a node is blocked only when several say so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from blocklist.model.draft import Nodes
from blocklist.model.errors import InvalidError
from blocklist.model.node import BlockAction, BlockedNode, check_node_id, check_text

HOLD: Final = 60_000
"""Milliseconds for which evidence holds from when it was last said, and a block from then on."""
MAX_REASON: Final = 300
MAX_KEPT: Final = 10_000
"""Pieces of evidence that are kept of one application: those said last."""
_NAMED: Final = 3
_SHORT: Final = 100
_CAUSE: Final = re.compile(r"[0-9]+ applications? says? so: ")


class Kind(StrEnum):
    """Spark's HealthTracker excluded the host; or its tasks were so slow that they were speculated."""

    EXCLUDED = "excluded"
    SLOW = "slow"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What an application says of one node; the reason is a sentence. Raises InvalidError at birth for a bad one."""

    kind: Kind
    reason: str

    def __post_init__(self) -> None:
        if not 1 <= len(check_text(self.reason)) <= MAX_REASON:
            raise InvalidError(f"A reason has 1 to {MAX_REASON} characters.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """A finding of an application, with when it was said first without a gap, and last."""

    application: str
    node: str
    finding: Finding
    first_seen: int
    last_seen: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """A piece of evidence; `doubt` is the sentence why it counts for nothing, None if it counts."""

    evidence: Evidence
    doubt: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A node is blocked when so many distinct applications say so within `window` milliseconds; 0 is never."""

    applications: int = 2
    window: int = HOLD

    @property
    def kept(self) -> int:
        """How long evidence is kept from when it was last said."""
        return max(HOLD, self.window)


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Enough applications say that the node is bad. It is to be blocked until `end`."""

    node: str
    end: int
    evidence: tuple[Evidence, ...]


class EvidenceBook:
    """What all applications say. `nodes_of` tells on which nodes an application has TaskManagers.

    What grows: at most MAX_KEPT pieces for each application, and for each unblocked node a moment, while there is
    evidence on it.
    """

    def __init__(self, rule: Rule, nodes_of: Callable[[str], Collection[str]]) -> None:
        self._rule = rule
        self._nodes_of = nodes_of
        self._said: dict[str, dict[str, Evidence]] = {}
        self._unblocked: dict[str, int] = {}

    def __len__(self) -> int:
        """How many pieces are kept, also when they have ended since."""
        return sum(map(len, self._said.values()))

    def say(self, application: str, findings: Mapping[str, Finding], now: int) -> None:
        """The application says this, node id to finding, and no more than this.

        What it says again is renewed, what it leaves out is not; another kind of finding is a new one.
        """
        told = [
            Evidence(application=application, node=check_node_id(node), finding=finding, first_seen=now, last_seen=now)
            for node, finding in findings.items()
        ]
        self.know(application, told)

    def of(self, application: str) -> list[Evidence]:
        """All that is kept of an application, what was said last at the end."""
        return list(self._said.get(application, {}).values())

    def know(self, application: str, told: Iterable[Evidence]) -> None:
        """Take in what was said, here or where another book is kept: this one may have missed some of it."""
        said = dict(self._said.get(application, {}))
        for piece in told:
            before = said.pop(piece.node, None)
            said[piece.node] = piece if before is None else self._joined(before, piece)
        # What was said last stands last.
        self._said[application] = dict(list(said.items())[-MAX_KEPT:])

    def forget(self, application: str) -> None:
        """The application has left: nothing that it said counts any more."""
        self._said.pop(application, None)

    def unblocked(self, node: str, at: int) -> None:
        """Somebody has unblocked the node by hand: evidence first said up to `at` counts no more, as long as it lasts.

        So only what is new blocks it again.
        """
        self._unblocked[node] = max(at, self._unblocked.get(node, at))

    def turn(self, now: int) -> None:
        """Forget what holds no longer."""
        kept = {own: {n: e for n, e in said.items() if self._holds(e, now)} for own, said in self._said.items()}
        self._said = {own: said for own, said in kept.items() if said}
        old = {e.node for e in self._all(now) if e.first_seen <= self._unblocked.get(e.node, -1)}
        self._unblocked = {node: at for node, at in self._unblocked.items() if node in old or now <= at}

    def listed(self, now: int) -> list[Judged]:
        """All evidence that is kept, by node and application."""
        doubts = {own: self._doubt(own, now) for own in self._said}
        judged = [Judged(evidence=e, doubt=self._overruled(e) or doubts[e.application]) for e in self._all(now)]
        return sorted(judged, key=lambda own: (own.evidence.node, own.evidence.application))

    def verdicts(self, now: int) -> list[Verdict]:
        """The nodes of which enough applications say so, by id."""
        enough = self._rule.applications
        if enough == 0:
            return []
        # Cheap, as most evidence is never of a node that several name: what is left is looked at closely.
        named = Counter(node for said in self._said.values() for node in said)
        several = [node for node, count in named.items() if count >= enough]
        trusted = [own for own in sorted(self._said) if several and self._doubt(own, now) is None]
        found = {node: self._counted(node, trusted, now) for node in several}
        return [
            Verdict(node=node, end=max(e.last_seen for e in evidence) + HOLD, evidence=evidence)
            for node, evidence in sorted(found.items())
            if len(evidence) >= enough
        ]

    def _joined(self, one: Evidence, other: Evidence) -> Evidence:
        """Two pieces of the same application and node: without a gap it is said since the first of them."""
        early, late = sorted((one, other), key=lambda piece: piece.last_seen)
        if early.finding.kind is not late.finding.kind or late.first_seen >= early.last_seen + self._rule.kept:
            return late
        return replace(late, first_seen=min(early.first_seen, late.first_seen))

    def _counted(self, node: str, trusted: Iterable[str], now: int) -> tuple[Evidence, ...]:
        """What counts against a node, by application."""
        said = (self._said[own].get(node) for own in trusted)
        fresh = (e for e in said if e is not None and now < e.last_seen + self._rule.window)
        return tuple(e for e in fresh if not self._overruled(e))

    def _all(self, now: int) -> Iterator[Evidence]:
        return (e for said in self._said.values() for e in said.values() if self._holds(e, now))

    def _holds(self, evidence: Evidence, now: int) -> bool:
        return now < evidence.last_seen + self._rule.kept

    def _overruled(self, evidence: Evidence) -> str | None:
        at = self._unblocked.get(evidence.node)
        if at is None or evidence.first_seen > at:
            return None
        return "The node was unblocked by hand after this was first said."

    def _doubt(self, application: str, now: int) -> str | None:
        named = [node for node, e in self._said[application].items() if self._holds(e, now)]
        return doubt(named, self._nodes_of(application))


def doubt(named: Collection[str], has: Collection[str]) -> str | None:
    """Why an application that names these nodes is not believed, None if it is; `has` is where its TaskManagers are.

    Who finds fault with most hosts is himself at fault. Nodes that it has left since are among its nodes: an
    application that condemns hosts which it does not have is believed no more easily.
    """
    nodes = len({*named, *has})
    if len(named) < 2 or 2 * len(named) <= nodes:
        return None
    return f"The application says so of {len(named)} of its {nodes} nodes: it is believed of none."


def blocks(verdicts: Iterable[Verdict], nodes: Nodes, now: int) -> list[BlockedNode]:
    """What is to be blocked, or merged with the present block, at `now`: nothing where that would tell nothing new."""
    wanted = (_block(verdict, nodes.get(verdict.node), now) for verdict in verdicts)
    return [node for node in wanted if node is not None]


def cause_in(node: BlockedNode | None, now: int) -> str | None:
    """The part of a block's cause that came from evidence; None if there is none, or no block at `now`."""
    if node is None or node.ended(now):
        return None
    return next((part for part in node.cause.split(",") if _CAUSE.match(part)), None)


def _block(verdict: Verdict, present: BlockedNode | None, now: int) -> BlockedNode | None:
    """A renewal says the same cause, so that it does not grow, and comes in the last half of the block's time."""
    if verdict.end <= now:
        return None
    known = cause_in(present, now)
    if known is not None and present is not None and (present.end >= verdict.end or present.end > now + HOLD // 2):
        return None
    new = BlockedNode(
        id=verdict.node, action=BlockAction.MARK_BLOCKED, start=now, end=verdict.end, cause=_cause(verdict.evidence)
    )
    return new if known is None else replace(new, cause=known)


def _cause(evidence: Collection[Evidence]) -> str:
    """`2 applications say so: app-1 (Spark excluded the host); app-2 (…)`: no commas, which part causes."""
    first = [f"{_short(e.application)} ({_short(e.finding.reason)})" for e in list(evidence)[:_NAMED]]
    more = [f"and {len(evidence) - _NAMED} more"] if len(evidence) > _NAMED else []
    who = "1 application says so" if len(evidence) == 1 else f"{len(evidence)} applications say so"
    return f"{who}: {'; '.join([*first, *more])}"


def _short(text: str) -> str:
    plain = text.replace(",", ";").removesuffix(".")
    return plain if len(plain) <= _SHORT else f"{plain[: _SHORT - 1]}…"
