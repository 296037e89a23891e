"""Evidence: what applications report about nodes, and when it is enough for a block; AutomaticBlocks, Dismissals. Pure.

A node is blocked if enough principals report it within one minute, and nobody has unblocked it by hand since they first
did. The block lasts longer than the evidence: on a blocked node nothing fails, so nobody reports it. All that one
principal registers counts once: otherwise a single token could block every node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from typing import Final, NamedTuple

from blocklist.model.changes import Change, ChangeType, Source
from blocklist.model.claims import MAX_COUNTED, Claim, Repeat, RepeatRule, claim_of, matches_any
from blocklist.model.draft import BlocklistView, Draft, claims_on, find_blocked
from blocklist.model.errors import DismissedError, InvalidError
from blocklist.model.names import (
    Aliases,
    MachineOf,
    NameSet,
    first_label,
    no_aliases,
    normalize_name,
    same_machine,
    short_name,
)
from blocklist.model.node import BlockAction, BlockedNode, check_node_id, check_text, format_utc

TTL_MS: Final = 60_000
"""Milliseconds after the last report until evidence expires."""
BLOCK_MS: Final = 3_600_000
"""Milliseconds after the last report until the block ends, if it is the first: as long as Spark excludes a host."""
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
    """What fails there succeeds elsewhere; Spark's HealthTracker excluded it; its tasks were speculated as slow."""

    FAILING = "failing"
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
    """The evidence is sufficient to block the node, and expires at `end` (Unix milliseconds)."""

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
    duration: Callable[[str], int] = lambda _: BLOCK_MS,
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


# What automatic owners have done, and what people thought of it: repeated blocks and dismissals. Pure.

COUNTED_OWNERS: Final = ("alertmanager/*", "evidence", "detection")
"""Patterns of the owners whose blocks count. Not what a listener wishes: a token must not lengthen blocks by itself."""
MAX_NODES: Final = 10_000
"""Maximum number of node ids with automatic blocks, and with dismissals; beyond it, the oldest are forgotten."""


class AutomaticBlock(NamedTuple):
    """A block by an automatic owner: revision of its change, begin and end (Unix ms); no end while it lasts.

    `is_claimed` is whether an automatic owner still claims the node, or did until the end.
    """

    revision: int
    begin: int
    end: int | None
    is_claimed: bool = True


_Blocks = tuple[AutomaticBlock, ...]


class BlockRows(NamedTuple):
    """What changes of the list do to the stored blocks: node id and block to write, and revisions to remove."""

    put: Sequence[tuple[str, AutomaticBlock]] = ()
    removed: Sequence[int] = ()


NO_BLOCKS: Final = BlockRows()


class AutomaticBlocks:
    """The automatic blocks of each node, found under any name of its machine. Belongs to the event loop.

    A block begins with the change `blocked` of an automatic owner; what is merged into it, or renews it, is the same
    block, and so is a block for an event that had one before. A block that somebody unblocked by hand while an
    automatic owner claimed it was wrong: it is forgotten. What counts depends only on the changes and the moment, so
    each replica comes to the same result. At most MAX_NODES times MAX_COUNTED blocks are kept.
    """

    def __init__(self, rule: RepeatRule, aliases: Aliases = no_aliases) -> None:
        self._rule = rule
        self._aliases = aliases
        self.reset(())

    def reset(self, stored: Iterable[tuple[str, AutomaticBlock]]) -> None:
        """Begin again with these stored blocks, by revision."""
        self._by_node: dict[str, _Blocks] = {}
        self._names = NameSet(aliases=self._aliases)
        for node_id, block in stored:
            self._replace(node_id, (*self._by_node.get(node_id, ()), block)[-MAX_COUNTED:])

    def apply(self, changes: Iterable[Change]) -> None:
        """These changes were committed."""
        for node_id, blocks in self._after(changes).items():
            self._replace(node_id, blocks)

    def rows(self, changes: Iterable[Change]) -> BlockRows:
        """What these changes, which follow those that were applied, do to the stored blocks."""
        put: list[tuple[str, AutomaticBlock]] = []
        removed: list[int] = []
        for node_id, after in self._after(changes).items():
            before = self._by_node.get(node_id, ())
            put += [(node_id, block) for block in after if block not in before]
            kept = {block.revision for block in after}
            removed += [block.revision for block in before if block.revision not in kept]
        return BlockRows(put, removed)

    def _after(self, changes: Iterable[Change]) -> dict[str, _Blocks]:
        """The blocks of the nodes whose blocks these changes change."""
        after: dict[str, _Blocks] = {}
        for change in changes:
            node_id = change.node.id
            before = after.get(node_id, self._by_node.get(node_id, ()))
            blocks = blocks_after(before, change)
            if blocks is not before:
                after[node_id] = blocks
        return after

    def repeat(
        self, view: BlocklistView, node_id: str, usual: int, now: int, *, continues: bool = False
    ) -> Repeat | None:
        """The repeat that an automatic block of a node is at `now`, also after what a draft has changed; None if first.

        The last block does not count if it has not ended, as what is claimed is added to it, or if the new one
        `continues` it.
        """
        blocks = self._of_machine(view, node_id, now)
        earlier = [it for it in blocks[:-1] if it.end is not None and it.end <= now]
        if blocks and not continues and (last := blocks[-1]).end is not None and last.end <= now:
            earlier.append(last)
        return self._rule.repeat(usual, self._count_within(earlier, now))

    def count(self, view: BlocklistView, node_id: str, now: int) -> int:
        """Number of automatic blocks of a node that count at `now`, with one that has not ended."""
        return self._count_within(self._of_machine(view, node_id, now), now)

    def _of_machine(self, view: BlocklistView, node_id: str, now: int) -> Sequence[AutomaticBlock]:
        """The blocks of a machine, as the draft has them, the oldest first."""
        if not self._rule.window:
            return ()
        by_id = {name: self._by_node[name] for name in self._names.matching(node_id)}
        for change in view.changes_of(node_id) if isinstance(view, Draft) else ():
            by_id[change.node.id] = blocks_after(by_id.get(change.node.id, ()), change)
        names = _unambiguous(node_id, list(by_id))
        blocks = [_ended(block, view, name, now) for name in names for block in by_id[name]]
        return sorted(blocks, key=lambda block: block.revision)

    def _count_within(self, blocks: Iterable[AutomaticBlock], now: int) -> int:
        return min(sum(block.begin > now - self._rule.window for block in blocks), MAX_COUNTED)

    def _replace(self, node_id: str, blocks: _Blocks) -> None:
        """Keep them as those of the node that was blocked last."""
        self._by_node.pop(node_id, None)
        if not blocks:
            self._names.discard(node_id)
            return
        self._by_node[node_id] = blocks
        self._names.add(node_id)
        if len(self._by_node) > MAX_NODES:
            oldest = next(iter(self._by_node))
            del self._by_node[oldest]
            self._names.discard(oldest)


def blocks_after(blocks: _Blocks, change: Change) -> _Blocks:
    """The automatic blocks of a node id after a change of it; the same object if they are the same."""
    if change.type is ChangeType.BLOCKED:
        return _begun(blocks, change)
    if not blocks or blocks[-1].end is not None:
        return blocks
    last = blocks[-1]
    if not change.type.frees:
        is_claimed = bool(_counted(change))
        return blocks if is_claimed == last.is_claimed else (*blocks[:-1], last._replace(is_claimed=is_claimed))
    if change.type is ChangeType.UNBLOCKED and change.source is not Source.ALERTMANAGER and last.is_claimed:
        return blocks[:-1]
    # What expires is recorded later than it ends.
    end = change.at if change.type is ChangeType.UNBLOCKED else change.node.end
    return (*blocks[:-1], last._replace(end=end))


def _counted(change: Change) -> list[Claim]:
    """The claims of automatic owners on the node after a change."""
    return [it for it in change.claims if matches_any(it.owner, COUNTED_OWNERS)]


def _begun(blocks: _Blocks, change: Change) -> _Blocks:
    counted = _counted(change)
    if not counted:
        return blocks
    if blocks and all(claim.continues for claim in counted):
        return (*blocks[:-1], blocks[-1]._replace(end=None, is_claimed=True))
    return (*blocks, AutomaticBlock(change.revision, change.at, None))[-MAX_COUNTED:]


def _ended(block: AutomaticBlock, view: BlocklistView, node_id: str, now: int) -> AutomaticBlock:
    """The block, with its end if that has passed and is not recorded yet."""
    if block.end is not None:
        return block
    node = view.get(node_id)
    if node is None:
        return block._replace(end=block.begin)
    return block._replace(end=node.end) if node.ended(now) else block


def _unambiguous(node_id: str, names: Sequence[str]) -> Sequence[str]:
    """The names without full ones if those are of several machines: a short name does not mean one of them."""
    label, is_full = short_name(normalize_name(node_id))
    full = {name for name in map(normalize_name, names) if short_name(name) == (label, ".")}
    if not label or is_full or len(full) < 2:
        return names
    return [name for name in names if normalize_name(name) not in full]


# Dismissals: automatic owners that were overruled when somebody unblocked a node.

MEMORY_MS: Final = 30 * 24 * 3_600_000
"""How long a dismissal counts."""


class Dismissal(NamedTuple):
    """The claim of an owner that was dismissed: when (Unix ms), by whom, and by which change."""

    owner: str
    at: int
    dismissed_by: str | None
    revision: int

    def counts(self, now: int) -> bool:
        """Whether it still counts at `now`."""
        return self.at > now - MEMORY_MS


class Dismissals:
    """The last dismissal of each owner on each node. Belongs to the event loop."""

    def __init__(
        self, clock: Callable[[], int], stored: Iterable[tuple[str, Dismissal]], aliases: Aliases = no_aliases
    ) -> None:
        """`stored` are the node ids and dismissals of the database, by revision."""
        self._clock = clock
        self._aliases = aliases
        self.reset(stored)

    def reset(self, stored: Iterable[tuple[str, Dismissal]]) -> None:
        """The list was read again from a database with these dismissals."""
        self._by_node: dict[str, dict[str, Dismissal]] = {}
        self._names = NameSet(aliases=self._aliases)
        for node_id, dismissal in stored:
            self._add(node_id, [dismissal])

    def apply(self, changes: Iterable[Change]) -> None:
        """These changes were committed."""
        for change in changes:
            if change.dismissed:
                self._add(change.node.id, dismissals_of(change))

    def by_node(self) -> dict[str, Mapping[str, Dismissal]]:
        """A copy: by the node that was unblocked, and by owner; also those that no longer count."""
        return dict(self._by_node)

    def of_node(self, node_id: str) -> list[Dismissal]:
        """The dismissals that count on a node, under any name of its machine, the oldest first."""
        now = self._clock()
        found = (it for name in self._names.matching(node_id) for it in self._by_node[name].values() if it.counts(now))
        return sorted(found, key=lambda dismissal: (dismissal.at, dismissal.owner))

    def find(self, draft: Draft, node_id: str, owner: str) -> Dismissal | None:
        """The last dismissal of an owner on a node, also in this draft."""
        drafted = (it for change in draft.changes_of(node_id) for it in dismissals_of(change))
        return next((it for it in reversed([*self.of_node(node_id), *drafted]) if it.owner == owner), None)

    def check_evidence(self, draft: Draft, owner: str, last_evidence: Mapping[str, int]) -> None:
        """Raise DismissedError if the owner was dismissed on one of the nodes after its last evidence (Unix ms)."""
        found = {node_id: self.find(draft, node_id, owner) for node_id in last_evidence}
        lines = [
            _dismissed_line(node_id, dismissal)
            for node_id, dismissal in found.items()
            if dismissal is not None and last_evidence[node_id] <= dismissal.at
        ]
        if lines:
            raise DismissedError(" ".join(lines), lines)

    def _add(self, node_id: str, dismissals: Sequence[Dismissal]) -> None:
        earlier = self._by_node.pop(node_id, {})
        self._by_node[node_id] = earlier | {it.owner: it for it in dismissals}
        self._names.add(node_id)
        if len(self._by_node) > MAX_NODES:
            oldest = next(iter(self._by_node))
            del self._by_node[oldest]
            self._names.discard(oldest)


def _dismissed_line(node_id: str, dismissal: Dismissal) -> str:
    by = "" if dismissal.dismissed_by is None else f" by {dismissal.dismissed_by}"
    return (
        f"{dismissal.owner} was dismissed on {node_id}{by} at {format_utc(dismissal.at)}: what was observed until then"
        " does not block the node."
    )


def dismissals_of(change: Change) -> list[Dismissal]:
    return [Dismissal(claim.owner, change.at, change.created_by, change.revision) for claim in change.dismissed]
