"""HostLabels: which blocks show the TaskManagers of which hosts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from blocklist.model.host_matching import first_label


class HostLabels:
    """The blocks by the first label of the hosts whose TaskManagers they show.

    All names that can become the same machine, or no longer, by their form have the same first label.
    """

    def __init__(self) -> None:
        self._labels: dict[str, frozenset[str]] = {}
        self._blocks: defaultdict[str, set[str]] = defaultdict(set)

    def record(self, node_id: str, hosts: Iterable[str]) -> None:
        """The block of this node shows the TaskManagers of these hosts."""
        before, after = self._labels.pop(node_id, frozenset()), frozenset(map(first_label, hosts))
        if after:
            self._labels[node_id] = after
        for label in before - after:
            self._blocks[label].discard(node_id)
            if not self._blocks[label]:
                del self._blocks[label]
        for label in after - before:
            self._blocks[label].add(node_id)

    def shown_by(self, names: Iterable[str]) -> set[str]:
        """The blocks that show TaskManagers of a host with one of these names."""
        return {node_id for label in map(first_label, names) for node_id in self._blocks.get(label, ())}
