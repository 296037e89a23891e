"""DriverTable: the blocked nodes as drivers match their hosts against them. Pure.

A driver looks a host up by its name, its addresses, and the prefix of its first label (`n7.` for `n7.example.com`). All
rules are applied here, so that a driver needs none: which names a node has, and what several ids of one machine mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import reduce
from typing import Final, NamedTuple

from blocklist.model.names import Aliases, first_label, machine_keys, no_aliases
from blocklist.model.node import BlockedNode, merge

MAX_CAUSE: Final = 200
"""Maximum number of characters of a cause in the table: it is repeated in each line of a node."""
_NO_TEXT: Final = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\ud800-\\udfff]")


class _Entry(NamedTuple):
    """What the table has for one key. Entries sort by strength, the weakest first."""

    ordinary: bool
    """Whether the block is not a canary, which is weaker than a mark."""
    action: int
    start: int
    id: str
    key: str
    line: str


class DriverTable:
    """Updated one node at a time; rendering it sorts what is there.

    What `aliases` knows counts when a node is set, and when `names_changed` is called. `identifiers` are all names of a
    machine, also those that are ambiguous: once one of them no longer is, it becomes an alias.
    """

    def __init__(
        self,
        nodes: Iterable[BlockedNode] = (),
        aliases: Aliases = no_aliases,
        identifiers: Aliases = no_aliases,
    ) -> None:
        self._aliases = aliases
        self._identifiers = identifiers
        self._nodes: dict[str, BlockedNode] = {}
        self._keys: dict[str, frozenset[str]] = {}
        self._labels: dict[str, frozenset[str]] = {}
        self._ids_by_key: dict[str, tuple[str, ...]] = {}
        self._ids_by_label: dict[str, tuple[str, ...]] = {}
        self._entries: dict[str, _Entry] = {}
        for node in nodes:
            self.set(node)

    def set(self, node: BlockedNode) -> None:
        """Add a node, or replace the one with its id."""
        self._nodes[node.id] = node
        self._set_names(node.id)

    def discard(self, node_id: str) -> None:
        if node_id in self._nodes:
            self._set_labels(node_id, frozenset())
            self._set_keys(node_id, frozenset())
            del self._nodes[node_id], self._keys[node_id], self._labels[node_id]

    def names_changed(self, names: Iterable[str]) -> bool:
        """These names may mean other machines now; whether the names of a node have changed."""
        labels = set(map(first_label, names))
        concerned = {node_id for label in labels for node_id in self._ids_by_label.get(label, ())}
        before = {node_id: self._keys[node_id] for node_id in concerned}
        for node_id in concerned:
            self._set_names(node_id)
        return any(self._keys[node_id] != keys for node_id, keys in before.items())

    def text(self, revision: int) -> str:
        """The table: a head with its revision and its number of lines, and a line for each key, the weakest first."""
        lines = [entry.line for entry in sorted(self._entries.values())]
        return "\n".join((f"blocklist-table 1 {revision} {len(lines)}", *lines, ""))

    def _set_names(self, node_id: str) -> None:
        # Whether two names mean the same machine depends on names with the same first label only.
        names = (node_id, *self._identifiers(node_id))
        self._set_labels(node_id, frozenset(map(first_label, names)))
        self._set_keys(node_id, frozenset(machine_keys(node_id, self._aliases)))

    def _set_labels(self, node_id: str, labels: frozenset[str]) -> None:
        _replace(self._ids_by_label, node_id, self._labels.get(node_id, frozenset()), labels)
        self._labels[node_id] = labels

    def _set_keys(self, node_id: str, keys: frozenset[str]) -> None:
        before = self._keys.get(node_id, frozenset())
        _replace(self._ids_by_key, node_id, before, keys)
        self._keys[node_id] = keys
        for key in before | keys:
            self._update(key)

    def _update(self, key: str) -> None:
        nodes = [self._nodes[node_id] for node_id in self._ids_by_key.get(key, ())]
        if nodes:
            self._entries[key] = _entry(key, merge_ids(nodes))
        else:
            self._entries.pop(key, None)


def _replace(index: dict[str, tuple[str, ...]], node_id: str, before: frozenset[str], after: frozenset[str]) -> None:
    """Index the node under other keys. Almost every key has one node, so a tuple takes the least memory."""
    for key in before - after:
        others = tuple(each for each in index[key] if each != node_id)
        if others:
            index[key] = others
        else:
            del index[key]
    for key in after - before:
        index[key] = (*index.get(key, ()), node_id)


def merge_ids(nodes: Iterable[BlockedNode]) -> BlockedNode:
    """Merge the blocks of several ids of one machine, as if they were one node, with the id of the strongest one."""
    first, *others = sorted(nodes, key=lambda node: (-node.action, node.canary, -node.end, node.id))
    return reduce(lambda merged, other: merge(merged, replace(other, id=first.id)), others, first)


def _entry(key: str, node: BlockedNode) -> _Entry:
    cause = _NO_TEXT.sub(" ", node.cause[:MAX_CAUSE])
    action = "canary" if node.canary else node.action.short_name
    line = f"{key}\t{node.end}\t{action}\t{node.id}\t{cause}"
    return _Entry(not node.canary, node.action, node.start, node.id, key, line)
