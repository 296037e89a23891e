"""Evidence: what running applications report about nodes, and when it is sufficient to block a node. Pure.

As in FLIP-168's list of slow nodes, evidence expires one minute after it was last reported. A single application may
be wrong, so a node is blocked only if several applications report it. All that one principal registers counts as one
application: otherwise a single token could block every node.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from typing import Final

from blocklist.model.errors import InvalidError
from blocklist.model.host_matching import NameIndex, host_key
from blocklist.model.node import BlockAction, BlockedNode, check_node_id, check_text
from blocklist.model.node_lookup import BlocklistView, find_blocked

TTL_MS: Final = 60_000
"""Milliseconds after the last report until evidence expires, and a block that rests on it."""
MAX_REASON_LENGTH: Final = 300
MAX_PER_PRINCIPAL: Final = 10_000
"""Maximum number of pieces of evidence stored for the applications of one principal; of an application beyond it, the
ones reported longest ago are dropped."""
_MIN_DISTRUSTED: Final = 2
"""Number of nodes from which on an application that reports them may be faulty itself."""
_MAX_NAMED: Final = 3
_MAX_QUOTED: Final = 100
_CAUSE_PATTERN: Final = re.compile(r"[0-9]+ applications? says? so: ")
_NO_PRINCIPAL: Final = "It is not known with which token the application registered: its evidence is ignored."


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
    """The evidence is sufficient to block the node until `end` (Unix milliseconds). One piece for each principal."""

    node: str
    end: int
    evidence: tuple[Evidence, ...]


class EvidenceStore:
    """The evidence of all applications.

    `nodes_of` returns the nodes on which an application says that it has TaskManagers, `is_confirmed` whether others
    name a node as well, and `principal_of` who registered an application, None if unknown.

    Bounded: MAX_PER_PRINCIPAL pieces for each principal, and one timestamp for each unblocked node while there is
    evidence about it.
    """

    def __init__(
        self,
        rule: EvidenceRule,
        nodes_of: Callable[[str], Collection[str]],
        is_confirmed: Callable[[str], bool],
        principal_of: Callable[[str], str | None],
    ) -> None:
        self._rule = rule
        self._nodes_of = nodes_of
        self._is_confirmed = is_confirmed
        self._principal_of = principal_of
        self._by_application: dict[str, dict[str, Evidence]] = {}
        self._unblocked_at: dict[str, int] = {}
        self._unblocked = NameIndex()

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
        excess = max(0, len(by_node) - self._room_for(application))
        self._by_application[application] = dict(islice(by_node.items(), excess, None))

    def remove_application(self, application: str) -> None:
        """Remove all evidence of an application that has left."""
        self._by_application.pop(application, None)

    def record_unblock(self, node: str, at: int) -> None:
        """Record that the node was unblocked manually: evidence first reported up to `at` no longer counts.

        Only new evidence can block the node again.
        """
        self._unblocked_at[node] = max(at, self._unblocked_at.get(node, at))
        self._unblocked.add(node)

    def prune(self, now: int) -> None:
        """Remove expired evidence."""
        current = {
            application: {node: piece for node, piece in by_node.items() if self._is_current(piece, now)}
            for application, by_node in self._by_application.items()
        }
        self._by_application = {application: by_node for application, by_node in current.items() if by_node}
        used = {
            node
            for e in self._all_current(now)
            for node in self._unblocked.matching(e.node)
            if e.first_seen <= self._unblocked_at[node]
        }
        self._unblocked_at = {node: at for node, at in self._unblocked_at.items() if node in used or now <= at}
        self._unblocked = NameIndex(self._unblocked_at)

    def assess(self, now: int) -> list[AssessedEvidence]:
        """All current evidence, sorted by node and application."""
        distrust = self._distrust_reasons(now)
        pieces = sorted(self._all_current(now), key=lambda piece: (piece.node, piece.application))
        reasons = [self._unblocked_reason(piece) or distrust[piece.application] for piece in pieces]
        counted = [piece for piece, reason in zip(pieces, reasons, strict=True) if reason is None]
        voices = {(voice.node, self._principal_of(voice.application)): voice for voice in self._voices(counted, now)}

        def repetition(piece: Evidence) -> str | None:
            voice = voices[piece.node, self._principal_of(piece.application)]
            return None if voice is piece else _repetition_reason(voice)

        return [
            AssessedEvidence(evidence=piece, ignored_reason=reason or repetition(piece))
            for piece, reason in zip(pieces, reasons, strict=True)
        ]

    def verdicts(self, now: int) -> list[EvidenceVerdict]:
        """The nodes that the applications of enough principals report, sorted by id."""
        required = self._rule.applications
        if required == 0:
            return []
        # Most evidence is about nodes that only one principal reports: count first, then check the rest in detail.
        counts = Counter(node for nodes in self._nodes_by_principal().values() for node in nodes)
        candidates = sorted(node for node, count in counts.items() if count >= required)
        if not candidates:
            return []
        trusted = sorted(name for name, reason in self._distrust_reasons(now).items() if reason is None)
        counted = [self._counted_against(node, trusted, now) for node in candidates]
        verdicts = (self._verdict(pieces, now) for pieces in counted if pieces)
        return [verdict for verdict in verdicts if len(verdict.evidence) >= required]

    def _room_for(self, application: str) -> int:
        """Number of pieces that may be stored for an application, besides those of the others of its principal."""
        principal = self._principal_of(application)
        if principal is None:
            return MAX_PER_PRINCIPAL
        others = (it for it in self._by_application if it != application and self._principal_of(it) == principal)
        return max(0, MAX_PER_PRINCIPAL - sum(len(self._by_application[other]) for other in others))

    def _join(self, first: Evidence, second: Evidence) -> Evidence:
        """Join two pieces for one application and node: without a gap between them, the earlier start counts."""
        earlier, later = sorted((first, second), key=lambda piece: piece.last_seen)
        if (
            earlier.finding.kind is not later.finding.kind
            or later.first_seen >= earlier.last_seen + self._rule.retention
        ):
            return later
        return replace(later, first_seen=min(earlier.first_seen, later.first_seen))

    def _nodes_by_principal(self) -> dict[str | None, set[str]]:
        nodes: defaultdict[str | None, set[str]] = defaultdict(set)
        for application, by_node in self._by_application.items():
            nodes[self._principal_of(application)].update(by_node)
        return nodes

    def _counted_against(self, node: str, trusted: Iterable[str], now: int) -> list[Evidence]:
        """The evidence against a node that counts, by application."""
        pieces = (self._by_application[application].get(node) for application in trusted)
        recent = (piece for piece in pieces if piece is not None and self._is_recent(piece, now))
        return [piece for piece in recent if not self._unblocked_reason(piece)]

    def _verdict(self, pieces: Sequence[Evidence], now: int) -> EvidenceVerdict:
        end = max(piece.last_seen for piece in pieces) + TTL_MS
        return EvidenceVerdict(node=pieces[0].node, end=end, evidence=tuple(self._voices(pieces, now)))

    def _voices(self, pieces: Iterable[Evidence], now: int) -> list[Evidence]:
        """One piece for each node and principal: of its recent ones, or else of all, the first."""
        by_age = sorted(pieces, key=lambda piece: not self._is_recent(piece, now))
        voices: dict[tuple[str, str | None], Evidence] = {}
        for piece in by_age:
            voices.setdefault((piece.node, self._principal_of(piece.application)), piece)
        return list(voices.values())

    def _all_current(self, now: int) -> Iterator[Evidence]:
        return (e for by_node in self._by_application.values() for e in by_node.values() if self._is_current(e, now))

    def _is_current(self, evidence: Evidence, now: int) -> bool:
        return now < evidence.last_seen + self._rule.retention

    def _is_recent(self, evidence: Evidence, now: int) -> bool:
        return now < evidence.last_seen + self._rule.window

    def _unblocked_reason(self, evidence: Evidence) -> str | None:
        times = (self._unblocked_at[node] for node in self._unblocked.matching(evidence.node))
        if not any(evidence.first_seen <= at for at in times):
            return None
        return "The node was unblocked manually after this was first reported."

    def _distrust_reasons(self, now: int) -> dict[str, str | None]:
        """For each application, why its evidence is ignored; None if it counts.

        What an application does is also judged for its principal as a whole: otherwise each of many registrations could
        report a single node.
        """
        reasons = {application: self._own_distrust_reason(application, now) for application in self._by_application}
        by_principal: defaultdict[str | None, list[str]] = defaultdict(list)
        for application in sorted(application for application, reason in reasons.items() if reason is None):
            by_principal[self._principal_of(application)].append(application)
        for applications in by_principal.values():
            if len(applications) > 1:
                reasons |= dict.fromkeys(applications, self._joint_distrust_reason(applications, now))
        return reasons

    def _own_distrust_reason(self, application: str, now: int) -> str | None:
        if self._principal_of(application) is None:
            return _NO_PRINCIPAL
        return self._distrust_reason([application], now, "The application reports", "its")

    def _joint_distrust_reason(self, applications: Collection[str], now: int) -> str | None:
        subject = f"The {len(applications)} applications with this token report"
        return self._distrust_reason(applications, now, subject, "their")

    def _distrust_reason(self, applications: Collection[str], now: int, subject: str, possessive: str) -> str | None:
        by_node = (self._by_application[application] for application in applications)
        reported = {node for pieces in by_node for node, piece in pieces.items() if self._is_current(piece, now)}
        if len(reported) < _MIN_DISTRUSTED:
            return None
        claimed = {node for application in applications for node in self._nodes_of(application)}
        return distrust_reason(reported, claimed, self._is_confirmed, subject, possessive)


def distrust_reason(
    reported: Collection[str],
    claimed: Collection[str],
    is_confirmed: Callable[[str], bool],
    subject: str = "The application reports",
    possessive: str = "its",
) -> str | None:
    """Why the evidence of an application is ignored; None if it counts.

    An application that reports most of its nodes is probably faulty itself. Its nodes are those that it reports,
    because reporting unused nodes must not make it more credible, and the confirmed ones of those that it claims.
    """
    others = _confirmed_others(reported, claimed, is_confirmed)
    total = len(reported) + len(others)
    if len(reported) < _MIN_DISTRUSTED or 2 * len(reported) <= total:
        return None
    unconfirmed = sum(node not in reported and not is_confirmed(node) for node in claimed)
    found = f"{subject} {len(reported)} of {possessive} {total} nodes, more than half"
    return f"{found}: {possessive} evidence is ignored.{_format_unconfirmed(unconfirmed)}"


def _confirmed_others(
    reported: Collection[str], claimed: Iterable[str], is_confirmed: Callable[[str], bool]
) -> set[str]:
    """The confirmed ones of the claimed nodes that are not reported; no more of them than make it credible.

    Another spelling of a reported node is no further node: mixing them must not make an application more credible.
    """
    reported_keys = {host_key(node) for node in reported}
    others: set[str] = set()
    for node in claimed:
        if len(others) >= len(reported):
            break
        if is_confirmed(node):
            others |= {host_key(node)} - reported_keys
    return others


def _format_unconfirmed(count: int) -> str:
    """Why nodes that an application claims to run on are not among its nodes."""
    if count == 0:
        return ""
    verb, pronoun = ("is", "it") if count == 1 else ("are", "them")
    return f" {count} more {verb} not counted: no listener with another token names {pronoun}."


def _repetition_reason(voice: Evidence) -> str:
    return f"{voice.application} reports this node with the same token: together they count as one application."


def due_blocks(verdicts: Iterable[EvidenceVerdict], current: BlocklistView, now: int) -> list[BlockedNode]:
    """The blocks to make or merge at `now`; none for a node whose existing block already covers the verdict."""
    due = (_due_block(verdict, _only(find_blocked(current, verdict.node, now)), now) for verdict in verdicts)
    return [node for node in due if node is not None]


def _only(nodes: list[BlockedNode]) -> BlockedNode | None:
    """The node that a block of the same name would be merged with, as Draft.get_blocked finds it."""
    return nodes[0] if len(nodes) == 1 else None


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
