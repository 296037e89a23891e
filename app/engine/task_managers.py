"""TaskManagers: which of them are on which node, as their listeners last said. In memory; belongs to the event loop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping


class TaskManagers:
    """Where two listeners claim one TaskManager, the one that said so last has it (Flink: the newest heartbeat)."""

    def __init__(self) -> None:
        self._reported: dict[str, dict[str, str]] = {}
        self._reported_at: dict[str, int] = {}
        self._owner: dict[str, str] = {}
        self._by_node: defaultdict[str, set[str]] = defaultdict(set)

    def __len__(self) -> int:
        return len(self._owner)

    def set_for_listener(self, listener: str, reported: Mapping[str, str], reported_at: int) -> set[str]:
        """The listener said at `at` that its TaskManagers are these, id to node id; returns the nodes that changed."""
        self._reported_at[listener] = reported_at
        previous = self._reported.get(listener, {})
        if reported == previous:
            return set()
        changed = self._remove(listener, [own for own, node in previous.items() if reported.get(own) != node])
        for task_manager, node in reported.items():
            if previous.get(task_manager) != node:
                changed |= self._claim(listener, task_manager, node)
        return changed

    def remove_listener(self, listener: str) -> set[str]:
        """The listener has none any more."""
        changed = self._remove(listener, list(self._reported.get(listener, ())))
        self._reported.pop(listener, None)
        self._reported_at.pop(listener, None)
        return changed

    def on_node(self, node: str) -> list[str]:
        """Ids of those on a node, sorted."""
        return sorted(self._by_node.get(node, ()))

    def of_listener(self, listener: str, node: str) -> list[str]:
        """Ids of a listener's own on a node, sorted."""
        return [task_manager for task_manager in self.on_node(node) if self._owner[task_manager] == listener]

    def nodes_of(self, listener: str) -> set[str]:
        """The nodes that a listener has some on."""
        return set(self._reported.get(listener, {}).values())

    def node_of(self, task_manager: str) -> str | None:
        """The node it is on; None if nobody has said."""
        owner = self._owner.get(task_manager)
        return None if owner is None else self._reported[owner][task_manager]

    def owner_of(self, task_manager: str) -> str | None:
        """The listener that has it; None if nobody has said."""
        return self._owner.get(task_manager)

    def _claim(self, listener: str, task_manager: str, node: str) -> set[str]:
        owner = self._owner.get(task_manager)
        if owner is not None and (self._reported_at[owner], owner) > (self._reported_at[listener], listener):
            return set()  # It said so later, to another replica.
        changed = set() if owner is None else self._remove(owner, [task_manager])
        self._reported.setdefault(listener, {})[task_manager] = node
        self._owner[task_manager] = listener
        self._by_node[node].add(task_manager)
        return changed | {node}

    def _remove(self, listener: str, task_managers: Iterable[str]) -> set[str]:
        nodes = set()
        for task_manager in task_managers:
            node = self._reported[listener].pop(task_manager)
            del self._owner[task_manager]
            self._by_node[node].discard(task_manager)
            if not self._by_node[node]:
                del self._by_node[node]
            nodes.add(node)
        return nodes
