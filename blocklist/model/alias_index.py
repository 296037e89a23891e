"""AliasIndex: which nodes claim a name or an address. Pure."""

from __future__ import annotations

from collections.abc import Collection

from blocklist.model.host_matching import NameIndex


class AliasIndex:
    """Further names and addresses, in normal form, with the ids of the nodes that claim each."""

    def __init__(self) -> None:
        self._names = NameIndex()
        # Almost every alias has one node: a set for each would take four times the memory.
        self._nodes: dict[str, str | set[str]] = {}

    def add(self, alias: str, node: str) -> None:
        """The node claims the alias."""
        found = self._nodes.get(alias)
        if found is None:
            self._nodes[alias] = node
            self._names.add(alias)
        elif isinstance(found, set):
            found.add(node)
        elif found != node:
            self._nodes[alias] = {found, node}

    def discard(self, alias: str, node: str) -> None:
        """The node no longer claims the alias."""
        found = self._nodes.get(alias)
        if isinstance(found, set):
            found.discard(node)
            if len(found) == 1:
                self._nodes[alias] = found.pop()
        elif found == node:
            del self._nodes[alias]
            self._names.discard(alias)

    def claiming(self, alias: str) -> Collection[str]:
        """The nodes that claim this very alias."""
        found = self._nodes.get(alias, ())
        return (found,) if isinstance(found, str) else found

    def matching(self, name: str) -> set[str]:
        """The nodes that claim a name of the same machine: short or full, as NameIndex compares names."""
        return {node for alias in self._names.matching(name) for node in self.claiming(alias)}
