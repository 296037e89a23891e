"""SourceNodes: what one source reports, and what of it is believed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, Literal

from blocklist.model.host_matching import NameIndex, normalize_name
from blocklist.model.reported_node import ReportedNode


class _Absent(Enum):
    ABSENT = "absent"


ABSENT: Final = _Absent.ABSENT
"""A node that a source does not report."""
Absent = Literal[_Absent.ABSENT]
Believed = ReportedNode | str | Absent
"""What counts of a report about one node: all of it; its id only; or it is not reported."""


class SourceNodes:
    """The nodes that a source reports, and those on which it runs, under their ids in normal form.

    What a source that is not `trusted` reports about a node, besides its id, counts while it runs there.
    """

    def __init__(self, *, trusted: bool) -> None:
        self._trusted = trusted
        self._nodes: dict[str, ReportedNode | str] = {}
        self._described = NameIndex()
        self._running: dict[str, str] = {}
        self._running_names = NameIndex()

    def set_nodes(self, nodes: Iterable[str | ReportedNode]) -> Mapping[str, Believed]:
        """Replace the reported nodes; what counts now of those that changed."""
        after = _by_id(nodes)
        before = self._nodes
        changed = [key for key in {**before, **after} if before.get(key, ABSENT) != after.get(key, ABSENT)]
        earlier = {key: self._believed(key) for key in changed}
        self._nodes = after
        for key in changed if not self._trusted else ():
            self._described.discard(key)
            if isinstance(after.get(key), ReportedNode):
                self._described.add(key)
        return self._changes(earlier)

    def set_running(self, node_ids: Iterable[str]) -> Mapping[str, Believed]:
        """Replace the nodes on which it runs; what counts now of those that changed."""
        # Of several spellings always the same one: the order in which they are reported must not matter.
        after = {normalize_name(name): name for name in sorted(set(node_ids))}
        changed = {name for name in {**self._running, **after} if self._running.get(name) != after.get(name)}
        matching = (key for name in changed for key in self._described.matching(name))
        earlier = {key: self._believed(key) for key in changed.union(matching)}
        for name in changed:
            (self._running_names.add if name in after else self._running_names.discard)(name)
        self._running = after
        return self._changes(earlier)

    def _changes(self, earlier: Mapping[str, Believed]) -> Mapping[str, Believed]:
        return {key: now for key, before in earlier.items() if (now := self._believed(key)) != before}

    def _believed(self, key: str) -> Believed:
        node = self._nodes.get(key, ABSENT)
        if node is ABSENT:
            return self._running.get(key, ABSENT)
        if isinstance(node, str) or self._trusted or any(self._running_names.matching(key)):
            return node
        return node.id


def _by_id(nodes: Iterable[str | ReportedNode]) -> dict[str, ReportedNode | str]:
    """The nodes by their ids in normal form; only the id where nothing else is reported."""
    found: dict[str, ReportedNode | str] = {}
    for node in nodes:
        if isinstance(node, str):
            found.setdefault(normalize_name(node), node)
        else:
            found[normalize_name(node.id)] = node.id if node.is_bare else node
    return found
