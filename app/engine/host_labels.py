"""HostLabels: which blocks show the TaskManagers of which hosts."""

from __future__ import annotations

from collections.abc import Iterable

from blocklist.model.host_matching import first_label
from blocklist.model.multimap import Multimap


class HostLabels:
    """The blocks by the first label of the hosts whose TaskManagers they show.

    All names that can become the same machine, or no longer, by their form have the same first label.
    """

    def __init__(self) -> None:
        self._labels: dict[str, frozenset[str]] = {}
        self._blocks = Multimap()

    def record(self, node_id: str, hosts: Iterable[str]) -> None:
        """The block of this node shows the TaskManagers of these hosts."""
        before, after = self._labels.pop(node_id, frozenset()), frozenset(map(first_label, hosts))
        if after:
            self._labels[node_id] = after
        self._blocks.move(node_id, before, after)

    def shown_by(self, names: Iterable[str]) -> set[str]:
        """The blocks that show TaskManagers of a host with one of these names."""
        return {node_id for label in map(first_label, names) for node_id in self._blocks[label]}
