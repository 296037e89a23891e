"""What automatic owners have done, and what people thought of it: repeated blocks and dismissals. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from blocklist.model.changes import Change, ChangeType, Source
from blocklist.model.claims import MAX_COUNTED, Claim, Repeat, RepeatRule, owner_matches
from blocklist.model.draft import Draft
from blocklist.model.errors import DismissedError
from blocklist.model.names import Aliases, NameSet, no_aliases, normalize_name, short_name
from blocklist.model.time import format_utc
from blocklist.model.tracker import BlocklistView

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
    return [it for it in change.claims if any(owner_matches(it.owner, pattern) for pattern in COUNTED_OWNERS)]


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
    """Those that a change makes."""
    return [Dismissal(claim.owner, change.at, change.created_by, change.revision) for claim in change.dismissed]
