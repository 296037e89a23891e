"""Evidence: what running applications report about nodes, and when it is sufficient to block a node. Pure.

As in FLIP-168's list of slow nodes, evidence expires one minute after it was last reported. A single application may
be wrong, so a node is blocked only if several applications report it. All that one principal registers counts as one
application: otherwise a single token could block every node.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from typing import Final

from blocklist.model.claims import claim_of
from blocklist.model.errors import InvalidError
from blocklist.model.names import (
    Aliases,
    MachineIndex,
    MachineOf,
    NameIndex,
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
_NO_NODES: Final = MachineIndex()
_MIN_DISTRUSTED: Final = 2
"""Number of nodes from which on an application that reports them may be faulty itself."""
_MAX_NAMED: Final = 3
_MAX_QUOTED: Final = 100
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


@dataclass(slots=True)
class _Labels:
    """The first labels of the nodes that an application reports, and of their machines; None if not known yet."""

    reported: frozenset[str]
    machines: frozenset[str] | None = None


class EvidenceStore:
    """The evidence of all applications.

    `nodes_of` returns the nodes on which an application says that it has TaskManagers, `confirmed_name` the name under
    which a node is confirmed, None if it is not, and `principal_of` who registered an application, None if unknown.
    `aliases` and `machine_of` know the names of machines: call `machines_changed` when they know others.

    Bounded: MAX_PER_PRINCIPAL pieces for each principal, and one timestamp for each unblocked node while there is
    evidence about it, or until the second `prune`: another replica's evidence may arrive after the unblock.
    """

    def __init__(
        self,
        rule: EvidenceRule,
        nodes_of: Callable[[str], Collection[str]],
        confirmed_name: Callable[[str], str | None],
        principal_of: Callable[[str], str | None],
        aliases: Aliases = no_aliases,
        machine_of: MachineOf = normalize_name,
    ) -> None:
        self._rule = rule
        self._nodes_of = nodes_of
        self._confirmed_name = confirmed_name
        self._principal_of = principal_of
        self._aliases = aliases
        self._machine_of = machine_of
        self._by_application: dict[str, dict[str, Evidence]] = {}
        self._labels: dict[str, _Labels] = {}
        self._unblocked_at: dict[str, int] = {}
        self._unblocked = NameIndex(aliases=aliases)
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
            by_node[piece.node] = piece if previous is None else self._join(previous, piece)
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

    def machines_changed(self, names: Iterable[str]) -> None:
        """These names, or short and full ones of them, may mean other machines now."""
        changed = set(map(first_label, names))
        for labels in self._labels.values():
            if not changed.isdisjoint(labels.reported):
                labels.machines = None

    def prune(self, now: int) -> None:
        """Remove expired evidence, and unblocks that no evidence needs."""
        for application, by_node in list(self._by_application.items()):
            current = {node: piece for node, piece in by_node.items() if self._is_current(piece, now)}
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
        self._unblocked = NameIndex(self._unblocked_at, self._aliases)
        self._unblocked_since_prune = set()

    def assess(self, now: int) -> list[AssessedEvidence]:
        """All current evidence, sorted by node and application."""
        return self._assess(self._all_current(now), self._distrust_reasons(now), now)

    def assess_node(self, node: str, now: int) -> list[AssessedEvidence]:
        """The same for the evidence about one node, under any of its names; it costs what is reported about it.

        It depends on nothing but the evidence with the same first label, and all that the principals of these
        applications report.
        """
        label = first_label(self._machine_of(node))
        applications = [each for each in self._labels if label in self._machine_labels(each)]
        pieces = [
            piece
            for application in applications
            for piece in self._by_application[application].values()
            if self._is_current(piece, now) and first_label(self._machine_of(piece.node)) == label
        ]
        principals = {self._principal_of(piece.application) for piece in pieces}
        judged = [each for each in self._by_application if self._principal_of(each) in principals]
        assessed = self._assess(pieces, self._distrust_reasons(now, judged), now)
        return [each for each in assessed if same_machine(each.evidence.node, node, self._aliases)]

    def _assess(
        self, evidence: Iterable[Evidence], distrust: Mapping[str, str | None], now: int
    ) -> list[AssessedEvidence]:
        pieces = sorted(evidence, key=lambda piece: (piece.node, piece.application))
        reasons = [self._unblocked_reason(piece) or distrust[piece.application] for piece in pieces]
        counted = [piece for piece, reason in zip(pieces, reasons, strict=True) if reason is None]
        voices = {
            id(piece): voice
            for machine in self._by_machine(counted)
            for voice, repeated in self._voices(machine, now)
            for piece in repeated
        }

        def repetition(piece: Evidence) -> str | None:
            voice = voices[id(piece)]
            return None if voice is piece else _repetition_reason(voice)

        return [
            AssessedEvidence(evidence=piece, ignored_reason=reason or repetition(piece))
            for piece, reason in zip(pieces, reasons, strict=True)
        ]

    def verdicts(self, now: int, on_probation: MachineIndex = _NO_NODES) -> list[EvidenceVerdict]:
        """The nodes that the applications of enough principals report, sorted by id.

        Of a node on probation the report of one application suffices, if that runs on the node and the node is
        confirmed: no application can have others blocked than those that it runs on.
        """
        required = self._rule.applications
        if required == 0:
            return []
        # Most evidence is about machines that only one principal reports: count first, then check the rest in detail.
        counts = Counter(label for labels in self._labels_by_principal().values() for label in labels)
        candidates = {label for label, count in counts.items() if count >= required}
        candidates |= counts.keys() & {first_label(self._machine_of(node)) for node in on_probation}
        if not candidates:
            return []
        pieces = [piece for piece in self._trusted(now) if first_label(self._machine_of(piece.node)) in candidates]
        machines = (it for it in self._by_machine(pieces) if self._is_sufficient(it, required, on_probation))
        return sorted((self._verdict(machine, now) for machine in machines), key=lambda verdict: verdict.node)

    def _is_sufficient(self, machine: Sequence[Evidence], required: int, on_probation: MachineIndex) -> bool:
        if len({self._principal_of(piece.application) for piece in machine}) >= required:
            return True
        return any(on_probation.matching(machine[0].node)) and any(map(self._runs_there, machine))

    def _runs_there(self, piece: Evidence) -> bool:
        """Whether the application runs on the node that it reports, as far as others know the node too."""
        if self._confirmed_name(piece.node) is None:
            return False
        return any(NameIndex(self._nodes_of(piece.application), self._aliases).matching(piece.node))

    def _set(self, application: str, by_node: dict[str, Evidence]) -> None:
        self._by_application[application] = by_node
        self._labels[application] = _Labels(frozenset(map(first_label, by_node)))

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

    def _labels_by_principal(self) -> dict[str | None, set[str]]:
        labels: defaultdict[str | None, set[str]] = defaultdict(set)
        for application in self._labels:
            labels[self._principal_of(application)] |= self._machine_labels(application)
        return labels

    def _machine_labels(self, application: str) -> frozenset[str]:
        """The first labels of the machines that it reports."""
        labels = self._labels[application]
        if labels.machines is None:
            nodes = self._by_application[application]
            labels.machines = frozenset(first_label(self._machine_of(node)) for node in nodes)
        return labels.machines

    def _trusted(self, now: int) -> Iterator[Evidence]:
        """The evidence that counts, by application."""
        for application in sorted(name for name, reason in self._distrust_reasons(now).items() if reason is None):
            for piece in self._by_application[application].values():
                if self._is_recent(piece, now) and not self._unblocked_reason(piece):
                    yield piece

    def _by_machine(self, pieces: Iterable[Evidence]) -> list[list[Evidence]]:
        """The pieces about each machine, in their order; those that use its id, or else its full name, come first.

        A short name may mean any of several full ones. It counts for the one that most principals report: a voice must
        not count against several machines.
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
        return -len({self._principal_of(piece.application) for piece in pieces}), name

    def _verdict(self, pieces: Sequence[Evidence], now: int) -> EvidenceVerdict:
        end = max(piece.last_seen for piece in pieces) + TTL_MS
        voices = tuple(voice for voice, _ in self._voices(pieces, now))
        return EvidenceVerdict(node=pieces[0].node, end=end, evidence=voices)

    def _voices(self, machine: Iterable[Evidence], now: int) -> list[tuple[Evidence, list[Evidence]]]:
        """For each principal one piece about a machine, the first of its recent ones, or else of all; and all."""
        by_principal: defaultdict[str | None, list[Evidence]] = defaultdict(list)
        for piece in sorted(machine, key=lambda piece: not self._is_recent(piece, now)):
            by_principal[self._principal_of(piece.application)].append(piece)
        return [(pieces[0], pieces) for pieces in by_principal.values()]

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

    def _distrust_reasons(self, now: int, applications: Iterable[str] | None = None) -> dict[str, str | None]:
        """For each application, why its evidence is ignored; None if it counts. `applications` are by default all.

        What an application does is also judged for its principal as a whole: otherwise each of many registrations could
        report a single node.
        """
        judged = self._by_application if applications is None else applications
        reasons = {application: self._own_distrust_reason(application, now) for application in judged}
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
        nodes = {node for pieces in by_node for node, piece in pieces.items() if self._is_current(piece, now)}
        if len(nodes) < _MIN_DISTRUSTED:
            return None
        reported = set(map(self._machine_of, nodes))
        claimed = {self._machine_of(node) for application in applications for node in self._nodes_of(application)}
        return distrust_reason(reported, claimed, self._confirmed_name, subject, possessive)


def distrust_reason(
    reported: Collection[str],
    claimed: Collection[str],
    confirmed_name: Callable[[str], str | None],
    subject: str = "The application reports",
    possessive: str = "its",
) -> str | None:
    """Why the evidence of an application is ignored; None if it counts.

    An application that reports most of its nodes is probably faulty itself. Its nodes are those that it reports,
    because reporting unused nodes must not make it more credible, and the confirmed ones of those that it claims.
    """
    number = len(MachineIndex(reported))
    if number < _MIN_DISTRUSTED:
        return None
    total = number + _count_confirmed_others(reported, claimed, confirmed_name, number)
    if 2 * number <= total:
        return None
    unconfirmed = sum(node not in reported and confirmed_name(node) is None for node in claimed)
    found = f"{subject} {number} of {possessive} {total} nodes, more than half"
    return f"{found}: {possessive} evidence is ignored.{_format_unconfirmed(unconfirmed)}"


def _count_confirmed_others(
    reported: Iterable[str], claimed: Iterable[str], confirmed_name: Callable[[str], str | None], enough: int
) -> int:
    """Number of confirmed machines among the claimed nodes that are not reported; `enough` if there are more.

    Another name of a reported machine is no further machine, and what several claimed names are confirmed by counts
    once: mixing names must not make an application more credible.
    """
    own, others = NameIndex(reported), MachineIndex()
    for node in claimed:
        if len(others) >= enough:
            break
        name = confirmed_name(node)
        if name is not None and not any(own.matching(node)) and not any(own.matching(name)):
            others.add(name)
    return len(others)


def _format_unconfirmed(count: int) -> str:
    """Why nodes that an application claims to run on are not among its nodes."""
    if count == 0:
        return ""
    verb, pronoun = ("is", "it") if count == 1 else ("are", "them")
    return f" {count} more {verb} not counted: no listener with another token names {pronoun}."


def _id_first(machine: str, pieces: Iterable[Evidence]) -> list[Evidence]:
    """The pieces about a machine; those that use the name by which it is known come first."""
    return sorted(pieces, key=lambda piece: normalize_name(piece.node) != machine)


def _repetition_reason(voice: Evidence) -> str:
    return f"{voice.application} reports this node with the same token: together they count as one application."


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
