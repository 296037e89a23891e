"""The change log as replicas return it at the end, and checks of the log by itself."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blocklist.model.node import BlockedNode, merge
from tests.chaos.operation import NodeParser

FREES = frozenset({"unblocked", "expired"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One change: `before` and `after` are the node's states by the log, `node` is the node in the change."""

    revision: int
    type: str
    at: int
    node: BlockedNode
    before: BlockedNode | None

    @property
    def after(self) -> BlockedNode | None:
        return None if self.type in FREES else self.node

    @property
    def cause(self) -> str | None:
        """The cause that this change added (each request has its own); None if it added none."""
        known = set() if self.before is None else set(self.before.cause.split(","))
        new = [cause for cause in self.node.cause.split(",") if cause not in known]
        return new[0] if new and self.type not in FREES else None


class NodeHistory:
    """The state of each node at each revision."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = defaultdict[str, list[Entry]](list)
        for entry in entries:
            self._entries[entry.node.id].append(entry)

    def at(self, node_id: str, revision: int) -> BlockedNode | None:
        """The node after that revision; None if it was free."""
        entries = self._entries[node_id]
        place = bisect_right(entries, revision, key=lambda entry: entry.revision)
        return entries[place - 1].after if place else None


def read_log(changes: Iterable[Mapping[str, Any]]) -> list[Entry]:
    """Parse the log."""
    nodes, held, entries = NodeParser(), dict[str, BlockedNode](), list[Entry]()
    for change in changes:
        node_id = change["node"]["id"]
        node = nodes.read(node_id, change["node"])
        kind, at = change["type"], int(change["at"])
        entries.append(Entry(revision=change["revision"], type=kind, at=at, node=node, before=held.pop(node_id, None)))
        if kind not in FREES:
            held[node_id] = node
    return entries


def log_errors(entries: Sequence[Entry]) -> Iterator[str]:
    """Errors in the log by itself."""
    for number, entry in enumerate(entries, start=1):
        if entry.revision != number:
            yield f"the log has revision {entry.revision} where {number} belongs"
            return
        if (wrong := _entry_error(entry)) is not None:
            yield f"revision {number} ({entry.type}) {wrong}: {entry.node} after {entry.before}"


def _entry_error(entry: Entry) -> str | None:
    before, node = entry.before, entry.node
    if (before is None) != (entry.type == "blocked"):
        return "cannot follow"
    if entry.type in FREES and node != before:
        return "shows another node than was there"
    if entry.type == "merged" and before is not None and merge(before, node) != node:
        return "is no merge with what was there"
    if before is not None and before.ended(entry.at) != (entry.type == "expired"):
        return "comes on the wrong side of the end"
    return None
