"""Evidence: what running applications report about nodes, and when it is sufficient to block a node. Pure.

A node is blocked if enough principals report it within one minute, and nobody has unblocked it by hand since they first
did. All that one principal registers counts once: otherwise a single token could block every node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from typing import Final

from blocklist.model.claims import claim_of
from blocklist.model.errors import InvalidError
from blocklist.model.names import (
    Aliases,
    MachineOf,
    NameSet,
    first_label,
    no_aliases,
    normalize_name,
    same_machine,
)
from blocklist.model.node import BlockAction, BlockedNode, check_node_id, check_text
from blocklist.model.tracker import BlocklistView, claims_on, find_blocked

TTL_MS: Final = 60_000
"""Milliseconds after the last report until evidence expires, and a block that rests on it."""
EVIDENCE_OWNER: Final = "evidence"
"""The owner of the blocks that the service makes because of evidence."""
MAX_REASON_LENGTH: Final = 300
MAX_PER_PRINCIPAL: Final = 2_000
"""Maximum number of pieces of evidence stored for the applications of one principal; of an application beyond it, the
ones reported longest ago are dropped."""
_MAX_NAMED: Final = 3
_MAX_QUOTED: Final = 100
_UNBLOCKED: Final = "The node was unblocked manually after this was first reported."
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
class EvidenceVerdict:
    """The evidence is sufficient to block the node until `end` (Unix milliseconds)."""

    node: str
    end: int
    evidence: tuple[Evidence, ...]


class EvidenceStore:
    """The evidence of all applications. A node is blocked if `principals` report it; 0 disables blocking.

    `principal_of` returns who registered an application, None if unknown. `aliases` and `machine_of` know the names of
    machines: call `machines_changed` when they know others.

    Bounded: MAX_PER_PRINCIPAL pieces for each principal, and one timestamp for each unblocked node while there is
    evidence about it, or until the second `prune`: another replica's evidence may arrive after the unblock.
    """

    def __init__(
        self,
        principals: int,
        principal_of: Callable[[str], str | None],
        aliases: Aliases = no_aliases,
        machine_of: MachineOf = normalize_name,
    ) -> None:
        self._required = principals
        self._principal_of = principal_of
        self._aliases = aliases
        self._machine_of = machine_of
        self._by_application: dict[str, dict[str, Evidence]] = {}
        # The first labels of the machines that an application reports, once they are needed.
        self._labels: dict[str, frozenset[str]] = {}
        self._unblocked_at: dict[str, int] = {}
        self._unblocked = NameSet(aliases=aliases)
        self._unblocked_since_prune: set[str] = set()

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
            by_node[piece.node] = piece if previous is None else _join(previous, piece)
        # The latest report is last, so the oldest are dropped.
        excess = max(0, len(by_node) - self._room_for(application))
        self._set(application, dict(islice(by_node.items(), excess, None)))

    def remove_application(self, application: str) -> None:
        self._by_application.pop(application, None)
        self._labels.pop(application, None)

    def record_unblock(self, node: str, at: int) -> None:
        """Record that the node was unblocked manually: evidence first reported up to `at` no longer counts.

        Only new evidence can block the node again.
        """
        self._unblocked_at[node] = max(at, self._unblocked_at.get(node, at))
        self._unblocked.add(node)
        self._unblocked_since_prune.add(node)

    def machines_changed(self) -> None:
        """Names may mean other machines now."""
        self._labels.clear()

    def prune(self, now: int) -> None:
        """Remove expired evidence, and unblocks that no evidence needs."""
        for application, by_node in list(self._by_application.items()):
            current = {node: piece for node, piece in by_node.items() if _is_current(piece, now)}
            if not current:
                self.remove_application(application)
            elif len(current) < len(by_node):
                self._set(application, current)
        used = self._unblocked_since_prune | {
            node
            for e in self._all_current(now)
            for node in self._unblocked.matching(e.node)
            if e.first_seen <= self._unblocked_at[node]
        }
        self._unblocked_at = {node: at for node, at in self._unblocked_at.items() if node in used or now <= at}
        self._unblocked = NameSet(self._unblocked_at, self._aliases)
        self._unblocked_since_prune = set()

    def assess(self, now: int) -> list[AssessedEvidence]:
        """All current evidence, sorted by node and application."""
        return self._assess(self._all_current(now))

    def assess_node(self, node: str, now: int) -> list[AssessedEvidence]:
        """The same for the evidence about one node, under any of its names; it costs what is reported about it."""
        found = self._about({first_label(self._machine_of(node))}, now)
        return self._assess(piece for piece in found if same_machine(piece.node, node, self._aliases))

    def _assess(self, evidence: Iterable[Evidence]) -> list[AssessedEvidence]:
        pieces = sorted(evidence, key=lambda piece: (piece.node, piece.application))
        return [AssessedEvidence(evidence=piece, ignored_reason=self._ignored_reason(piece)) for piece in pieces]

    def verdicts(self, now: int) -> list[EvidenceVerdict]:
        """The nodes that enough principals report, sorted by id."""
        if self._required == 0:
            return []
        # Most evidence is about machines that only one principal reports: count first, then look at the rest in detail.
        principals: defaultdict[str, set[str | None]] = defaultdict(set)
        for application in self._by_application:
            for label in self._machine_labels(application):
                principals[label].add(self._principal_of(application))
        candidates = {label for label, found in principals.items() if len(found) >= self._required}
        if not candidates:
            return []
        pieces = [piece for piece in self._about(candidates, now) if self._ignored_reason(piece) is None]
        machines = (it for it in self._by_machine(pieces) if len(self._principals(it)) >= self._required)
        return sorted(map(_verdict, machines), key=lambda verdict: verdict.node)

    def _about(self, labels: AbstractSet[str], now: int) -> Iterator[Evidence]:
        """The current evidence about machines with one of these first labels, by application."""
        for application in sorted(self._by_application):
            if labels.isdisjoint(self._machine_labels(application)):
                continue
            for piece in self._by_application[application].values():
                if _is_current(piece, now) and first_label(self._machine_of(piece.node)) in labels:
                    yield piece

    def _principals(self, pieces: Iterable[Evidence]) -> set[str | None]:
        return {self._principal_of(piece.application) for piece in pieces}

    def _set(self, application: str, by_node: dict[str, Evidence]) -> None:
        self._by_application[application] = by_node
        self._labels.pop(application, None)

    def _room_for(self, application: str) -> int:
        """Number of pieces that may be stored for an application, besides those of the others of its principal."""
        principal = self._principal_of(application)
        if principal is None:
            return MAX_PER_PRINCIPAL
        others = (it for it in self._by_application if it != application and self._principal_of(it) == principal)
        return max(0, MAX_PER_PRINCIPAL - sum(len(self._by_application[other]) for other in others))

    def _machine_labels(self, application: str) -> frozenset[str]:
        labels = self._labels.get(application)
        if labels is None:
            nodes = self._by_application[application]
            labels = self._labels[application] = frozenset(first_label(self._machine_of(node)) for node in nodes)
        return labels

    def _by_machine(self, pieces: Iterable[Evidence]) -> list[list[Evidence]]:
        """The pieces about each machine, in their order; those that use its id, or else its full name, come first.

        A short name may mean any of several full ones. It counts for the one that most principals report: a report
        must not count against several machines.
        """
        by_label: defaultdict[str, defaultdict[str, list[Evidence]]] = defaultdict(lambda: defaultdict(list))
        for piece in pieces:
            machine = self._machine_of(piece.node)
            by_label[first_label(machine)][machine].append(piece)
        machines = []
        for label, by_name in by_label.items():
            short = by_name.pop(label, [])
            full = [_id_first(*item) for item in sorted(by_name.items(), key=self._most_reported_first)]
            machines += [full[0] + short, *full[1:]] if full else [_id_first(label, short)]
        return machines

    def _most_reported_first(self, item: tuple[str, Sequence[Evidence]]) -> tuple[int, str]:
        name, pieces = item
        return -len(self._principals(pieces)), name

    def _all_current(self, now: int) -> Iterator[Evidence]:
        return (e for by_node in self._by_application.values() for e in by_node.values() if _is_current(e, now))

    def _ignored_reason(self, piece: Evidence) -> str | None:
        if self._principal_of(piece.application) is None:
            return _NO_PRINCIPAL
        times = (self._unblocked_at[node] for node in self._unblocked.matching(piece.node))
        return _UNBLOCKED if any(piece.first_seen <= at for at in times) else None


def _is_current(piece: Evidence, now: int) -> bool:
    return now < piece.last_seen + TTL_MS


def _join(first: Evidence, second: Evidence) -> Evidence:
    """Join two pieces for one application and node: without a gap between them, the earlier start counts."""
    earlier, later = sorted((first, second), key=lambda piece: piece.last_seen)
    if earlier.finding.kind is not later.finding.kind or not _is_current(earlier, later.first_seen):
        return later
    return replace(later, first_seen=min(earlier.first_seen, later.first_seen))


def _verdict(pieces: Sequence[Evidence]) -> EvidenceVerdict:
    end = max(piece.last_seen for piece in pieces) + TTL_MS
    return EvidenceVerdict(node=pieces[0].node, end=end, evidence=tuple(pieces))


def _id_first(machine: str, pieces: Iterable[Evidence]) -> list[Evidence]:
    """The pieces about a machine; those that use the name by which it is known come first."""
    return sorted(pieces, key=lambda piece: normalize_name(piece.node) != machine)


def due_blocks(
    verdicts: Iterable[EvidenceVerdict],
    current: BlocklistView,
    now: int,
    duration: Callable[[str], int] = lambda _: TTL_MS,
) -> list[BlockedNode]:
    """The blocks to claim at `now`; none for a node on which the claim of the evidence covers the verdict already.

    `duration` is the milliseconds from the last report of a node until its block ends, at least TTL_MS.
    """
    due = (_due_block(it, evidence_claim(current, it.node, now), now, duration(it.node)) for it in verdicts)
    return [node for node in due if node is not None]


def evidence_claim(nodes: BlocklistView, node_id: str, now: int) -> BlockedNode | None:
    """What the evidence claims on the only blocked node of this name; None if it claims nothing at `now`."""
    found = find_blocked(nodes, node_id, now)
    claim = claim_of(claims_on(nodes, found[0], now), EVIDENCE_OWNER) if len(found) == 1 else None
    return None if claim is None else claim.block


def _due_block(verdict: EvidenceVerdict, claimed: BlockedNode | None, now: int, duration: int) -> BlockedNode | None:
    """A renewal repeats the existing cause, so that it does not grow, and is due in the last half of the duration."""
    if verdict.end <= now:
        return None
    end = verdict.end - TTL_MS + duration
    lasts = claimed is not None and (claimed.end >= end or claimed.end > now + duration // 2)
    if claimed is not None and lasts and not claimed.canary:
        return None
    cause = _format_cause(verdict.evidence) if claimed is None else claimed.cause
    return BlockedNode(id=verdict.node, action=BlockAction.MARK_BLOCKED, start=now, end=end, cause=cause)


def _format_cause(evidence: Collection[Evidence]) -> str:
    """`2 applications say so: app-1 (Spark excluded the host); app-2 (…)`: without commas, which separate causes."""
    first = [f"{_shorten(e.application)} ({_shorten(e.finding.reason)})" for e in list(evidence)[:_MAX_NAMED]]
    rest = [f"and {len(evidence) - _MAX_NAMED} more"] if len(evidence) > _MAX_NAMED else []
    subject = "1 application says so" if len(evidence) == 1 else f"{len(evidence)} applications say so"
    return f"{subject}: {'; '.join([*first, *rest])}"


def _shorten(text: str) -> str:
    plain = text.replace(",", ";").removesuffix(".")
    return plain if len(plain) <= _MAX_QUOTED else f"{plain[: _MAX_QUOTED - 1]}…"
