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

from blocklist.model.draft import BlocklistView
from blocklist.model.errors import InvalidError
from blocklist.model.node import BlockAction, BlockedNode, check_node_id, check_text

TTL_MS: Final = 60_000
"""Milliseconds for which evidence holds from when it was last said, and a block from then on."""
MAX_REASON_LENGTH: Final = 300
MAX_PER_APPLICATION: Final = 10_000
"""Pieces of evidence that are kept of one application: those said last."""
_MAX_NAMED: Final = 3
_MAX_QUOTED: Final = 100
_CAUSE_PATTERN: Final = re.compile(r"[0-9]+ applications? says? so: ")


class FindingKind(StrEnum):
    """Spark's HealthTracker excluded the host; or its tasks were so slow that they were speculated."""

    EXCLUDED = "excluded"
    SLOW = "slow"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What an application says of one node; the reason is a sentence. Raises InvalidError at birth for a bad one."""

    kind: FindingKind
    reason: str

    def __post_init__(self) -> None:
        if not 1 <= len(check_text(self.reason)) <= MAX_REASON_LENGTH:
            raise InvalidError(f"A reason has 1 to {MAX_REASON_LENGTH} characters.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """A finding of an application, with when it was said first without a gap, and last."""

    application: str
    node: str
    finding: Finding
    first_seen: int
    last_seen: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AssessedEvidence:
    """A piece of evidence; `doubt` is the sentence why it counts for nothing, None if it counts."""

    evidence: Evidence
    ignored_reason: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class EvidenceRule:
    """A node is blocked when so many distinct applications say so within `window` milliseconds; 0 is never."""

    applications: int = 2
    window: int = TTL_MS

    @property
    def retention(self) -> int:
        """How long evidence is kept from when it was last said."""
        return max(TTL_MS, self.window)


@dataclass(frozen=True, kw_only=True, slots=True)
class EvidenceVerdict:
    """Enough applications say that the node is bad. It is to be blocked until `end`."""

    node: str
    end: int
    evidence: tuple[Evidence, ...]


class EvidenceStore:
    """What all applications say. `nodes_of` tells on which nodes an application has TaskManagers.

    What grows: at most MAX_PER_APPLICATION pieces for each application, and for each unblocked node a timestamp, while
    there is evidence on it.
    """

    def __init__(self, rule: EvidenceRule, nodes_of: Callable[[str], Collection[str]]) -> None:
        self._rule = rule
        self._nodes_of = nodes_of
        self._by_application: dict[str, dict[str, Evidence]] = {}
        self._unblocked_at: dict[str, int] = {}

    def __len__(self) -> int:
        """How many pieces are kept, also when they have ended since."""
        return sum(map(len, self._by_application.values()))

    def record(self, application: str, findings: Mapping[str, Finding], now: int) -> None:
        """The application says this, node id to finding, and no more than this.

        What it says again is renewed, what it leaves out is not; another kind of finding is a new one.
        """
        pieces = [
            Evidence(application=application, node=check_node_id(node), finding=finding, first_seen=now, last_seen=now)
            for node, finding in findings.items()
        ]
        self.restore(application, pieces)

    def of_application(self, application: str) -> list[Evidence]:
        """All that is kept of an application, what was said last at the end."""
        return list(self._by_application.get(application, {}).values())

    def restore(self, application: str, pieces: Iterable[Evidence]) -> None:
        """Take in what was said, here or where another book is kept: this one may have missed some of it."""
        by_node = dict(self._by_application.get(application, {}))
        for piece in pieces:
            previous = by_node.pop(piece.node, None)
            by_node[piece.node] = piece if previous is None else self._join(previous, piece)
        # What was said last stands last.
        self._by_application[application] = dict(list(by_node.items())[-MAX_PER_APPLICATION:])

    def remove_application(self, application: str) -> None:
        """The application has left: nothing that it said counts any more."""
        self._by_application.pop(application, None)

    def record_unblock(self, node: str, at: int) -> None:
        """Somebody has unblocked the node by hand: evidence first said up to `at` counts no more, as long as it lasts.

        So only what is new blocks it again.
        """
        self._unblocked_at[node] = max(at, self._unblocked_at.get(node, at))

    def prune(self, now: int) -> None:
        """Forget what holds no longer."""
        current = {
            application: {node: piece for node, piece in by_node.items() if self._is_current(piece, now)}
            for application, by_node in self._by_application.items()
        }
        self._by_application = {application: by_node for application, by_node in current.items() if by_node}
        old = {e.node for e in self._all_current(now) if e.first_seen <= self._unblocked_at.get(e.node, -1)}
        self._unblocked_at = {node: at for node, at in self._unblocked_at.items() if node in old or now <= at}

    def assess(self, now: int) -> list[AssessedEvidence]:
        """All evidence that is kept, by node and application."""
        distrust = {application: self._distrust_reason(application, now) for application in self._by_application}
        assessed = [
            AssessedEvidence(evidence=e, ignored_reason=self._unblocked_reason(e) or distrust[e.application])
            for e in self._all_current(now)
        ]
        return sorted(assessed, key=lambda piece: (piece.evidence.node, piece.evidence.application))

    def verdicts(self, now: int) -> list[EvidenceVerdict]:
        """The nodes of which enough applications say so, by id."""
        required = self._rule.applications
        if required == 0:
            return []
        # Cheap, as most evidence is never of a node that several name: what is left is looked at closely.
        counts = Counter(node for by_node in self._by_application.values() for node in by_node)
        candidates = [node for node, count in counts.items() if count >= required]
        trusted = [
            name for name in sorted(self._by_application) if candidates and self._distrust_reason(name, now) is None
        ]
        counted = {node: self._counted_against(node, trusted, now) for node in candidates}
        return [
            EvidenceVerdict(node=node, end=max(e.last_seen for e in evidence) + TTL_MS, evidence=evidence)
            for node, evidence in sorted(counted.items())
            if len(evidence) >= required
        ]

    def _join(self, first: Evidence, second: Evidence) -> Evidence:
        """Two pieces of the same application and node: without a gap it is said since the first of them."""
        earlier, later = sorted((first, second), key=lambda piece: piece.last_seen)
        if (
            earlier.finding.kind is not later.finding.kind
            or later.first_seen >= earlier.last_seen + self._rule.retention
        ):
            return later
        return replace(later, first_seen=min(earlier.first_seen, later.first_seen))

    def _counted_against(self, node: str, trusted: Iterable[str], now: int) -> tuple[Evidence, ...]:
        """What counts against a node, by application."""
        pieces = (self._by_application[application].get(node) for application in trusted)
        recent = (e for e in pieces if e is not None and now < e.last_seen + self._rule.window)
        return tuple(e for e in recent if not self._unblocked_reason(e))

    def _all_current(self, now: int) -> Iterator[Evidence]:
        return (e for by_node in self._by_application.values() for e in by_node.values() if self._is_current(e, now))

    def _is_current(self, evidence: Evidence, now: int) -> bool:
        return now < evidence.last_seen + self._rule.retention

    def _unblocked_reason(self, evidence: Evidence) -> str | None:
        at = self._unblocked_at.get(evidence.node)
        if at is None or evidence.first_seen > at:
            return None
        return "The node was unblocked by hand after this was first said."

    def _distrust_reason(self, application: str, now: int) -> str | None:
        reported = [node for node, e in self._by_application[application].items() if self._is_current(e, now)]
        return distrust_reason(reported, self._nodes_of(application))


def distrust_reason(reported: Collection[str], used: Collection[str]) -> str | None:
    """Why an application that names these nodes is not believed, None if it is; `has` is where its TaskManagers are.

    Who finds fault with most hosts is himself at fault. Nodes that it has left since are among its nodes: an
    application that condemns hosts which it does not have is believed no more easily.
    """
    nodes = len({*reported, *used})
    if len(reported) < 2 or 2 * len(reported) <= nodes:
        return None
    return f"The application says so of {len(reported)} of its {nodes} nodes: it is believed of none."


def due_blocks(verdicts: Iterable[EvidenceVerdict], current: BlocklistView, now: int) -> list[BlockedNode]:
    """What is to be blocked, or merged with the present block, at `now`: nothing where that would tell nothing new."""
    due = (_due_block(verdict, current.get(verdict.node), now) for verdict in verdicts)
    return [node for node in due if node is not None]


def evidence_cause(node: BlockedNode | None, now: int) -> str | None:
    """The part of a block's cause that came from evidence; None if there is none, or no block at `now`."""
    if node is None or node.ended(now):
        return None
    return next((part for part in node.cause.split(",") if _CAUSE_PATTERN.match(part)), None)


def _due_block(verdict: EvidenceVerdict, current: BlockedNode | None, now: int) -> BlockedNode | None:
    """A renewal says the same cause, so that it does not grow, and comes in the last half of the block's time."""
    if verdict.end <= now:
        return None
    stated = evidence_cause(current, now)
    if stated is not None and current is not None and (current.end >= verdict.end or current.end > now + TTL_MS // 2):
        return None
    new = BlockedNode(
        id=verdict.node,
        action=BlockAction.MARK_BLOCKED,
        start=now,
        end=verdict.end,
        cause=_format_cause(verdict.evidence),
    )
    return new if stated is None else replace(new, cause=stated)


def _format_cause(evidence: Collection[Evidence]) -> str:
    """`2 applications say so: app-1 (Spark excluded the host); app-2 (…)`: no commas, which part causes."""
    first = [f"{_shorten(e.application)} ({_shorten(e.finding.reason)})" for e in list(evidence)[:_MAX_NAMED]]
    rest = [f"and {len(evidence) - _MAX_NAMED} more"] if len(evidence) > _MAX_NAMED else []
    subject = "1 application says so" if len(evidence) == 1 else f"{len(evidence)} applications say so"
    return f"{subject}: {'; '.join([*first, *rest])}"


def _shorten(text: str) -> str:
    plain = text.replace(",", ";").removesuffix(".")
    return plain if len(plain) <= _MAX_QUOTED else f"{plain[: _MAX_QUOTED - 1]}…"
