"""TaskManagers: which TaskManagers run on which node, as last reported by their listeners."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from blocklist.model.host_matching import NameIndex


class TaskManagers:
    """If two listeners report one TaskManager, the newer report wins, as in Flink. Belongs to the event loop."""

    def __init__(self) -> None:
        self._reported: dict[str, dict[str, str]] = {}
        self._reported_at: dict[str, int] = {}
        self._owner: dict[str, str] = {}
        self._by_node: defaultdict[str, set[str]] = defaultdict(set)
        self._nodes = NameIndex()

    def __len__(self) -> int:
        return len(self._owner)

    def set_for_listener(self, listener: str, reported: Mapping[str, str], reported_at: int) -> set[str]:
        """Replace a listener's TaskManagers, id -> node id, by those reported at this time (Unix ms).

        Returns the nodes that changed.
        """
        self._reported_at[listener] = reported_at
        previous = self._reported.get(listener, {})
        if reported == previous:
            return set()
        changed = self._remove(listener, [name for name, node in previous.items() if reported.get(name) != node])
        for task_manager, node in reported.items():
            if previous.get(task_manager) != node:
                changed |= self._claim(listener, task_manager, node)
        return changed

    def remove_listener(self, listener: str) -> set[str]:
        """Forget a listener and its TaskManagers; return the nodes that changed."""
        changed = self._remove(listener, list(self._reported.get(listener, ())))
        self._reported.pop(listener, None)
        self._reported_at.pop(listener, None)
        return changed

    @property
    def nodes(self) -> Iterable[str]:
        """The nodes that have TaskManagers, by the names that listeners use."""
        return self._by_node

    def nodes_matching(self, node: str) -> Iterator[str]:
        """Those of them that are this machine."""
        return self._nodes.matching(node)

    def on_node(self, node: str) -> list[str]:
        """Ids of the TaskManagers on a node, whatever name its listeners use, sorted."""
        return sorted(chain.from_iterable(self._by_node[name] for name in self._nodes.matching(node)))

    def of_listener(self, listener: str, node: str) -> list[str]:
        """Ids of a listener's TaskManagers on a node, sorted."""
        return [task_manager for task_manager in self.on_node(node) if self._owner[task_manager] == listener]

    def nodes_of(self, listener: str) -> set[str]:
        """The nodes on which a listener has TaskManagers."""
        return set(self._reported.get(listener, {}).values())

    def node_of(self, task_manager: str) -> str | None:
        """The node on which a TaskManager runs; None if no listener has reported it."""
        owner = self._owner.get(task_manager)
        return None if owner is None else self._reported[owner][task_manager]

    def owner_of(self, task_manager: str) -> str | None:
        """The listener to which a TaskManager belongs; None if no listener has reported it."""
        return self._owner.get(task_manager)

    def _claim(self, listener: str, task_manager: str, node: str) -> set[str]:
        owner = self._owner.get(task_manager)
        if owner is not None and (self._reported_at[owner], owner) > (self._reported_at[listener], listener):
            return set()  # The owner's report is newer: it went to another replica.
        changed = set() if owner is None else self._remove(owner, [task_manager])
        self._reported.setdefault(listener, {})[task_manager] = node
        self._owner[task_manager] = listener
        self._by_node[node].add(task_manager)
        self._nodes.add(node)
        return changed | {node}

    def _remove(self, listener: str, task_managers: Iterable[str]) -> set[str]:
        nodes = set()
        for task_manager in task_managers:
            node = self._reported[listener].pop(task_manager)
            del self._owner[task_manager]
            self._by_node[node].discard(task_manager)
            if not self._by_node[node]:
                del self._by_node[node]
                self._nodes.discard(node)
            nodes.add(node)
        return nodes
