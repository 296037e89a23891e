"""The rules of changing the list. A draft holds uncommitted changes on top of a list. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Final

from blocklist.model.changes import Author, Change, ChangeType, Source
from blocklist.model.errors import ConflictError, InvalidError, NotFoundError
from blocklist.model.host_matching import NameIndex
from blocklist.model.node import BlockedNode, merge
from blocklist.model.node_lookup import BlocklistView, find_blocked, find_one_blocked
from blocklist.model.time import format_utc

_EXPIRY: Final = Author(source=Source.TIME)
# By how much a change alters the number of blocked nodes. An expired node has not counted since its end.
_COUNT_DELTA: Final = {ChangeType.BLOCKED: 1, ChangeType.UNBLOCKED: -1}


class Draft:
    """Changes on top of `base`, decided at `now` (Unix milliseconds). The base is never modified.

    `changes` are in order of revision, and the first follows the base's revision. Set `author` before making changes.
    """

    def __init__(self, base: BlocklistView, now: int) -> None:
        self.now = now
        self.author = Author()
        self.changes: list[Change] = []
        self._base = base
        self._nodes: dict[str, BlockedNode | None] = {}
        self._names = NameIndex()
        self._count_delta = 0

    @property
    def revision(self) -> int:
        return self._base.revision + len(self.changes)

    def __iter__(self) -> Iterator[BlockedNode]:
        """All nodes in this draft, including those whose end has passed."""
        yield from (node for node in self._base if node.id not in self._nodes)
        yield from (node for node in self._nodes.values() if node is not None)

    def count(self, now: int) -> int:
        """Number of nodes blocked at `now`, which must be the draft's own time."""
        return self._base.count(now) + self._count_delta

    def fork(self) -> Draft:
        """A draft on top of this one, with the same author, to be adopted or dropped."""
        fork = Draft(self, self.now)
        fork.author = self.author
        return fork

    def adopt(self, fork: Draft) -> None:
        """Add the changes of `fork`, which must be a fork of this draft without changes made here since."""
        self.changes += fork.changes
        self._nodes |= fork._nodes
        for node_id in fork._nodes:
            self._names.add(node_id)
        self._count_delta += fork._count_delta

    def get(self, node_id: str) -> BlockedNode | None:
        """The node in this draft, even if its end has passed."""
        return self._nodes[node_id] if node_id in self._nodes else self._base.get(node_id)

    def matching(self, node_id: str) -> Iterator[str]:
        """The ids in this draft that mean the same machine, in no order."""
        yield from (name for name in self._base.matching(node_id) if name not in self._nodes)
        yield from (name for name in self._names.matching(node_id) if self._nodes[name] is not None)

    def get_blocked(self, node_id: str) -> BlockedNode | None:
        """The block that a new block of this node would be merged with: of this id, or of the only one that matches.

        A short name that matches several blocked nodes is a node of its own.
        """
        found = find_blocked(self, node_id, self.now)
        return found[0] if len(found) == 1 else None

    def block(self, node: BlockedNode, *, allow_merge: bool) -> BlockedNode:
        """Block a node, or merge with its existing block (FLIP-224, Add); return the resulting node.

        The existing block keeps its id, which may be another name of the machine. A merge that alters nothing makes no
        change. Raises ConflictError if the node is blocked and `allow_merge` is false.
        """
        current = self.get_blocked(node.id)
        if current is None:
            self.expire(node.id)
            self._record(ChangeType.BLOCKED, node)
            return node
        if not allow_merge:
            raise ConflictError(already_blocked_message(current), {node.id: current})
        merged = merge(current, node if node.id == current.id else replace(node, id=current.id))
        if merged is not current:
            self._record(ChangeType.MERGED, merged)
        return merged

    def block_many(self, nodes: Mapping[str, tuple[BlockedNode, bool]]) -> dict[str, BlockedNode]:
        """Block several nodes, all or none: id to node and allow_merge.

        Raises InvalidError if two ids mean one machine, ConflictError with every conflict; then nothing was changed.
        """
        check_distinct(nodes)
        conflicts = {
            node_id: current
            for node_id, (_, allow_merge) in nodes.items()
            if not allow_merge and (current := self.get_blocked(node_id))
        }
        if conflicts:
            lines = [already_blocked_message(node) for node in conflicts.values()]
            raise ConflictError(f"{len(lines)} of {len(nodes)} nodes are already blocked.", conflicts, lines)
        return {node_id: self.block(node, allow_merge=allow_merge) for node_id, (node, allow_merge) in nodes.items()}

    def unblock(self, node_id: str) -> BlockedNode:
        """Unblock a node before its end; return it as it was.

        Raises NotFoundError if it is not blocked, and AmbiguousNodeError if the name matches several blocked nodes.
        """
        node = find_one_blocked(self, node_id, self.now)
        if node is None:
            raise NotFoundError(not_blocked_message(node_id))
        self._record(ChangeType.UNBLOCKED, node)
        return node

    def expire(self, node_id: str) -> None:
        """Record that the node has expired, if its end has passed."""
        node = self.get(node_id)
        if node is not None and node.ended(self.now):
            self._record(ChangeType.EXPIRED, node, _EXPIRY)

    def _record(self, kind: ChangeType, node: BlockedNode, author: Author | None = None) -> None:
        by = author or self.author
        change = Change(
            revision=self.revision + 1,
            type=kind,
            at=self.now,
            node=node,
            created_by=by.name,
            forced=by.forced,
            source=by.source,
            request_id=by.request_id,
        )
        self.changes.append(change)
        self._nodes[node.id] = None if kind.frees else node
        self._names.add(node.id)
        self._count_delta += _COUNT_DELTA.get(kind, 0)


def check_distinct(node_ids: Collection[str]) -> None:
    """Raise InvalidError if two of the ids mean one machine."""
    names = NameIndex(node_ids)
    for node_id in node_ids:
        other = next((name for name in names.matching(node_id) if name != node_id), None)
        if other is not None:
            raise InvalidError(f"{node_id} and {other} mean the same machine: give one of them. Nothing was changed.")


def already_blocked_message(node: BlockedNode) -> str:
    """The message of a conflict."""
    until = "without end" if node.permanent else f"until {format_utc(node.end)}"
    return f"Node {node.id} is already blocked {until} ({node.cause}); send allowMerge true to merge with that block."


def not_blocked_message(node_id: str) -> str:
    """The message for a node that is not blocked."""
    return f"Node {node_id} is not blocked."
