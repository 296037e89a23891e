"""BlocklistTracker: the blocked nodes at one revision, in the service, agents and managers.

Pure, without a lock: use it from one thread or event loop at a time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from blocklist.model.changes import Change, Snapshot
from blocklist.model.host_matching import NameIndex
from blocklist.model.node import PERMANENT, BlockedNode


class OutOfOrderError(Exception):
    """A change does not follow the tracker's revision: changes were missed, and a snapshot is needed."""


class BlocklistTracker:
    """FLIP-224's BlocklistTracker, updated by snapshots and by changes in order of revision."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.reset(snapshot)

    def reset(self, snapshot: Snapshot) -> None:
        """Replace the list by the snapshot."""
        self.revision = snapshot.revision
        self.history = snapshot.history
        self._nodes = dict(snapshot.nodes)
        self._names = NameIndex(snapshot.nodes)
        self._ends: list[tuple[int, str]] = []
        self._rebuild_ends()

    def apply(self, change: Change) -> None:
        """Apply the next change. Raises OutOfOrderError unless it has the next revision."""
        if change.revision != self.revision + 1:
            raise OutOfOrderError(f"revision {change.revision} does not follow {self.revision}")
        self.revision = change.revision
        node = change.node
        if change.type.frees:
            self._nodes.pop(node.id, None)
            self._names.discard(node.id)
            return
        before = self._nodes.get(node.id)
        self._nodes[node.id] = node
        if before is None:
            self._names.add(node.id)
        if not node.permanent and (before is None or before.end != node.end):
            heapq.heappush(self._ends, (node.end, node.id))
            # Merges and removals leave stale entries; this bounds them.
            if len(self._ends) > 2 * len(self._nodes) + 64:
                self._rebuild_ends()

    def get(self, node_id: str) -> BlockedNode | None:
        """The node, even if its end has passed and the `expired` change is not committed yet."""
        return self._nodes.get(node_id)

    def matching(self, node_id: str) -> Iterator[str]:
        """The ids on the list that mean the same machine, in no order."""
        return self._names.matching(node_id)

    def blocked(self, now: int) -> dict[str, BlockedNode]:
        """The nodes that are blocked at `now` (FLIP-224, getAllBlockedNodes), in no particular order."""
        if self.next_end() > now:
            return dict(self._nodes)
        return {node_id: node for node_id, node in self._nodes.items() if not node.ended(now)}

    def count(self, now: int) -> int:
        """Number of nodes blocked at `now`."""
        return len(self._nodes) if self.next_end() > now else len(self.blocked(now))

    def next_end(self) -> int:
        """The earliest end of all nodes, in Unix milliseconds; PERMANENT if no node will expire."""
        while self._ends and self._stale(self._ends[0]):
            heapq.heappop(self._ends)
        return self._ends[0][0] if self._ends else PERMANENT

    def ended(self, now: int) -> list[BlockedNode]:
        """The nodes whose end has passed, the earliest first."""
        if self.next_end() > now:
            return []
        return sorted((node for node in self._nodes.values() if node.ended(now)), key=lambda node: (node.end, node.id))

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[BlockedNode]:
        return iter(self._nodes.values())

    def _stale(self, entry: tuple[int, str]) -> bool:
        node = self._nodes.get(entry[1])
        return node is None or node.end != entry[0]

    def _rebuild_ends(self) -> None:
        self._ends = [(node.end, node.id) for node in self._nodes.values() if not node.permanent]
        heapq.heapify(self._ends)
