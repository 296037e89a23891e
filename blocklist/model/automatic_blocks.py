"""AutomaticBlocks: the blocks that automatic owners have made, and what follows from them for the next one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from blocklist.model.changes import Change, ChangeType, Source
from blocklist.model.claims import MAX_COUNTED, Repeat, RepeatRule, owner_matches
from blocklist.model.draft import Draft
from blocklist.model.names import Aliases, NameIndex, no_aliases, normalize_name, short_name
from blocklist.model.tracker import BlocklistView

COUNTED_OWNERS: Final = ("alertmanager/*", "evidence", "detection")
"""Patterns of the owners whose blocks count. Not what a listener wishes: a token must not lengthen blocks by itself."""
COUNTED_SOURCES: Final = (Source.ALERTMANAGER, Source.EVIDENCE)
"""Sources whose blocks count. Versions without claims have logged them without these owners."""
MAX_NODES: Final = 10_000
"""Maximum number of node ids with automatic blocks; beyond it, the ones blocked longest ago are forgotten."""


class AutomaticBlock(NamedTuple):
    """A block by an automatic owner: revision of its change, begin and end (Unix ms); no end while it lasts.

    `is_claimed` is whether an automatic owner still claims the node, or did until the end.
    """

    revision: int
    begin: int
    end: int | None
    is_claimed: bool = True


_Blocks = tuple[AutomaticBlock, ...]


class AutomaticBlocks:
    """The automatic blocks of each node, found under any name of its machine. Belongs to the event loop.

    A block begins with the change `blocked` of an automatic owner; what is merged into it, or renews it, is the same
    block. A block that somebody unblocked by hand while an automatic owner claimed it was wrong: it is forgotten. What
    counts depends only on the change
    log and the moment, so each replica comes to the same result. At most MAX_NODES times MAX_COUNTED blocks are kept.
    """

    def __init__(self, rule: RepeatRule, aliases: Aliases = no_aliases) -> None:
        self._rule = rule
        self._aliases = aliases
        self.reset(())

    def reset(self, changes: Iterable[Change]) -> None:
        """Begin again with these changes of the log, in order."""
        self._by_node: dict[str, _Blocks] = {}
        self._names = NameIndex(aliases=self._aliases)
        self._revision = 0
        self.apply(changes)

    def apply(self, changes: Iterable[Change]) -> None:
        """These changes were committed."""
        for change in changes:
            self._revision = change.revision
            node_id = change.node.id
            before = self._by_node.get(node_id, ())
            after = blocks_after(before, change)
            if after is not before:
                self._replace(node_id, after)

    def repeat(self, view: BlocklistView, node_id: str, usual: int, now: int) -> Repeat | None:
        """The repeat that an automatic block of a node is at `now`, also after what a draft has changed; None if first.

        A block that has not ended does not count: what is claimed is added to it.
        """
        earlier = [it for it in self._of_machine(view, node_id, now) if it.end is not None and it.end <= now]
        return self._rule.repeat(usual, self._count_within(earlier, now))

    def count(self, view: BlocklistView, node_id: str, now: int) -> int:
        """Number of automatic blocks of a node that count at `now`, with one that has not ended."""
        return self._count_within(self._of_machine(view, node_id, now), now)

    def _of_machine(self, view: BlocklistView, node_id: str, now: int) -> Sequence[AutomaticBlock]:
        """The blocks of a machine, as the draft has them, that are in the log on every replica."""
        if not self._rule.window:
            return ()
        by_id = {name: self._by_node[name] for name in self._names.matching(node_id)}
        revision = self._revision
        for change in view.changes_of(node_id) if isinstance(view, Draft) else ():
            by_id[change.node.id] = blocks_after(by_id.get(change.node.id, ()), change)
            revision = change.revision
        oldest = revision - self._rule.max_changes
        blocks = (
            _ended(block, view, name, now) for name in _unambiguous(node_id, list(by_id)) for block in by_id[name]
        )
        return [block for block in blocks if block.revision > oldest]

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
        is_claimed = _is_claimed(change)
        return blocks if is_claimed == last.is_claimed else (*blocks[:-1], last._replace(is_claimed=is_claimed))
    if change.type is ChangeType.UNBLOCKED and change.source is not Source.ALERTMANAGER and last.is_claimed:
        return blocks[:-1]
    # What expires is recorded later than it ends.
    end = change.at if change.type is ChangeType.UNBLOCKED else change.node.end
    return (*blocks[:-1], last._replace(end=end))


def is_automatic(change: Change) -> bool:
    """Whether an automatic owner has blocked the node."""
    return change.source in COUNTED_SOURCES or _has_counted_owner(change)


def _is_claimed(change: Change) -> bool:
    """Whether an automatic owner claims the node after a change that does not free it.

    What narrows a block removes claims: its source says nothing about those that are left.
    """
    return _has_counted_owner(change) if change.type is ChangeType.NARROWED else is_automatic(change)


def _has_counted_owner(change: Change) -> bool:
    return any(_is_counted(claim.owner) for claim in change.claims)


def _begun(blocks: _Blocks, change: Change) -> _Blocks:
    if not is_automatic(change):
        return blocks
    return (*blocks, AutomaticBlock(change.revision, change.at, None))[-MAX_COUNTED:]


def _is_counted(owner: str) -> bool:
    return any(owner_matches(owner, pattern) for pattern in COUNTED_OWNERS)


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
