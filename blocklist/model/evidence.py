"""Evidence: what running applications report about nodes, and when it is sufficient to block a node. Pure.

As in FLIP-168's list of slow nodes, evidence expires one minute after it was last reported. A single application may
be wrong, so a node is blocked only if several applications report it.
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
"""Milliseconds after the last report until evidence expires, and a block that rests on it."""
MAX_REASON_LENGTH: Final = 300
MAX_PER_APPLICATION: Final = 10_000
"""Maximum number of pieces of evidence stored for one application; the ones reported longest ago are dropped."""
_MAX_NAMED: Final = 3
_MAX_QUOTED: Final = 100
_CAUSE_PATTERN: Final = re.compile(r"[0-9]+ applications? says? so: ")


class FindingKind(StrEnum):
    """Spark's HealthTracker excluded the host, or its tasks were slow enough for speculative execution."""

    EXCLUDED = "excluded"
    SLOW = "slow"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What an application reports about one node. Raises InvalidError for an empty, long or unprintable reason."""

    kind: FindingKind
    reason: str

    def __post_init__(self) -> None:
        if not 1 <= len(check_text(self.reason)) <= MAX_REASON_LENGTH:
            raise InvalidError(f"The reason has {len(self.reason)} characters: give 1 to {MAX_REASON_LENGTH}.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """A finding of an application, and when it was first and last reported without a gap."""

    application: str
    node: str
    finding: Finding
    first_seen: int
    last_seen: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AssessedEvidence:
    """A piece of evidence, and why it is ignored; None if it counts."""

    evidence: Evidence
    ignored_reason: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class EvidenceRule:
    """A node is blocked if this number of applications reports it within `window` milliseconds; 0 disables blocking."""

    applications: int = 2
    window: int = TTL_MS

    @property
    def retention(self) -> int:
        """Milliseconds after the last report for which evidence is stored."""
        return max(TTL_MS, self.window)


@dataclass(frozen=True, kw_only=True, slots=True)
class EvidenceVerdict:
    """The evidence is sufficient to block the node until `end` (Unix milliseconds)."""

    node: str
    end: int
    evidence: tuple[Evidence, ...]


class EvidenceStore:
    """The evidence of all applications. `nodes_of` returns the nodes on which an application has TaskManagers.

    Bounded: MAX_PER_APPLICATION pieces for each application, and one timestamp for each unblocked node while there is
    evidence about it.
    """

    def __init__(self, rule: EvidenceRule, nodes_of: Callable[[str], Collection[str]]) -> None:
        self._rule = rule
        self._nodes_of = nodes_of
        self._by_application: dict[str, dict[str, Evidence]] = {}
        self._unblocked_at: dict[str, int] = {}

    def __len__(self) -> int:
        """Number of stored pieces, including expired ones."""
        return sum(map(len, self._by_application.values()))

    def record(self, application: str, findings: Mapping[str, Finding], now: int) -> None:
        """Record a report of an application: node id to finding.

        Repeated findings are renewed, omitted ones are not; a finding of another kind is new.
        """
        pieces = [
            Evidence(application=application, node=check_node_id(node), finding=finding, first_seen=now, last_seen=now)
            for node, finding in findings.items()
        ]
        self.restore(application, pieces)

    def of_application(self, application: str) -> list[Evidence]:
        """All stored evidence of an application, the latest report last."""
        return list(self._by_application.get(application, {}).values())

    def restore(self, application: str, pieces: Iterable[Evidence]) -> None:
        """Join evidence that was recorded here or by another replica, which may have received other reports."""
        by_node = dict(self._by_application.get(application, {}))
        for piece in pieces:
            previous = by_node.pop(piece.node, None)
            by_node[piece.node] = piece if previous is None else self._join(previous, piece)
        # The latest report is last, so the oldest are dropped.
        self._by_application[application] = dict(list(by_node.items())[-MAX_PER_APPLICATION:])

    def remove_application(self, application: str) -> None:
        """Remove all evidence of an application that has left."""
        self._by_application.pop(application, None)

    def record_unblock(self, node: str, at: int) -> None:
        """Record that the node was unblocked manually: evidence first reported up to `at` no longer counts.

        Only new evidence can block the node again.
        """
        self._unblocked_at[node] = max(at, self._unblocked_at.get(node, at))

    def prune(self, now: int) -> None:
        """Remove expired evidence."""
        current = {
            application: {node: piece for node, piece in by_node.items() if self._is_current(piece, now)}
            for application, by_node in self._by_application.items()
        }
        self._by_application = {application: by_node for application, by_node in current.items() if by_node}
        old = {e.node for e in self._all_current(now) if e.first_seen <= self._unblocked_at.get(e.node, -1)}
        self._unblocked_at = {node: at for node, at in self._unblocked_at.items() if node in old or now <= at}

    def assess(self, now: int) -> list[AssessedEvidence]:
        """All current evidence, sorted by node and application."""
        distrust = {application: self._distrust_reason(application, now) for application in self._by_application}
        assessed = [
            AssessedEvidence(evidence=e, ignored_reason=self._unblocked_reason(e) or distrust[e.application])
            for e in self._all_current(now)
        ]
        return sorted(assessed, key=lambda piece: (piece.evidence.node, piece.evidence.application))

    def verdicts(self, now: int) -> list[EvidenceVerdict]:
        """The nodes that enough applications report, sorted by id."""
        required = self._rule.applications
        if required == 0:
            return []
        # Most evidence is about nodes that only one application reports: count first, then check the rest in detail.
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
        """Join two pieces for one application and node: without a gap between them, the earlier start counts."""
        earlier, later = sorted((first, second), key=lambda piece: piece.last_seen)
        if (
            earlier.finding.kind is not later.finding.kind
            or later.first_seen >= earlier.last_seen + self._rule.retention
        ):
            return later
        return replace(later, first_seen=min(earlier.first_seen, later.first_seen))

    def _counted_against(self, node: str, trusted: Iterable[str], now: int) -> tuple[Evidence, ...]:
        """The evidence against a node that counts, by application."""
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
        return "The node was unblocked manually after this was first reported."

    def _distrust_reason(self, application: str, now: int) -> str | None:
        reported = [node for node, e in self._by_application[application].items() if self._is_current(e, now)]
        return distrust_reason(reported, self._nodes_of(application))


def distrust_reason(reported: Collection[str], used: Collection[str]) -> str | None:
    """Why the evidence of an application is ignored; None if it counts. `used` are the nodes of its TaskManagers.

    An application that reports most of its nodes is probably faulty itself. Its nodes include reported ones on which it
    has no TaskManagers: reporting unused nodes must not make it more credible.
    """
    nodes = len({*reported, *used})
    if len(reported) < 2 or 2 * len(reported) <= nodes:
        return None
    return f"The application reports {len(reported)} of its {nodes} nodes, more than half: its evidence is ignored."


def due_blocks(verdicts: Iterable[EvidenceVerdict], current: BlocklistView, now: int) -> list[BlockedNode]:
    """The blocks to make or merge at `now`; none for a node whose existing block already covers the verdict."""
    due = (_due_block(verdict, current.get(verdict.node), now) for verdict in verdicts)
    return [node for node in due if node is not None]


def evidence_cause(node: BlockedNode | None, now: int) -> str | None:
    """The part of a block's cause that evidence added; None if there is none, or if the block has ended at `now`."""
    if node is None or node.ended(now):
        return None
    return next((part for part in node.cause.split(",") if _CAUSE_PATTERN.match(part)), None)


def _due_block(verdict: EvidenceVerdict, current: BlockedNode | None, now: int) -> BlockedNode | None:
    """A renewal repeats the existing cause, so that it does not grow, and is due in the last half of the TTL."""
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
    """`2 applications say so: app-1 (Spark excluded the host); app-2 (…)`: without commas, which separate causes."""
    first = [f"{_shorten(e.application)} ({_shorten(e.finding.reason)})" for e in list(evidence)[:_MAX_NAMED]]
    rest = [f"and {len(evidence) - _MAX_NAMED} more"] if len(evidence) > _MAX_NAMED else []
    subject = "1 application says so" if len(evidence) == 1 else f"{len(evidence)} applications say so"
    return f"{subject}: {'; '.join([*first, *rest])}"


def _shorten(text: str) -> str:
    plain = text.replace(",", ";").removesuffix(".")
    return plain if len(plain) <= _MAX_QUOTED else f"{plain[: _MAX_QUOTED - 1]}…"
