"""AliasIndex: which nodes claim a name or an address. Pure."""

from __future__ import annotations

from collections.abc import Collection

from blocklist.model.host_matching import NameIndex
from blocklist.model.multimap import Multimap


class AliasIndex:
    """Further names and addresses, in normal form, with the ids of the nodes that claim each."""

    def __init__(self) -> None:
        self._names = NameIndex()
        self._nodes = Multimap()

    def add(self, alias: str, node: str) -> None:
        self._nodes.add(alias, node)
        self._names.add(alias)

    def discard(self, alias: str, node: str) -> None:
        self._nodes.discard(alias, node)
        if alias not in self._nodes:
            self._names.discard(alias)

    def claiming(self, alias: str) -> Collection[str]:
        """The nodes that claim this very alias."""
        return self._nodes[alias]

    def matching(self, name: str) -> set[str]:
        """The nodes that claim a name of the same machine: short or full, as NameIndex compares names."""
        return {node for alias in self._names.matching(name) for node in self.claiming(alias)}
