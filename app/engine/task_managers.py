"""TaskManagers: which of them are on which node, as their listeners last said. In memory; belongs to the event loop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping


class TaskManagers:
    """Where two listeners claim one TaskManager, the one that said so last has it (Flink: the newest heartbeat)."""

    def __init__(self) -> None:
        self._said: dict[str, dict[str, str]] = {}
        self._at: dict[str, int] = {}
        self._owner: dict[str, str] = {}
        self._on: defaultdict[str, set[str]] = defaultdict(set)

    def __len__(self) -> int:
        return len(self._owner)

    def replace(self, listener: str, wanted: Mapping[str, str], at: int) -> set[str]:
        """The listener said at `at` that its TaskManagers are these, id to node id; returns the nodes that changed."""
        self._at[listener] = at
        present = self._said.get(listener, {})
        if wanted == present:
            return set()
        changed = self._remove(listener, [own for own, node in present.items() if wanted.get(own) != node])
        for task_manager, node in wanted.items():
            if present.get(task_manager) != node:
                changed |= self._claim(listener, task_manager, node)
        return changed

    def drop(self, listener: str) -> set[str]:
        """The listener has none any more."""
        changed = self._remove(listener, list(self._said.get(listener, ())))
        self._said.pop(listener, None)
        self._at.pop(listener, None)
        return changed

    def on(self, node: str) -> list[str]:
        """Ids of those on a node, sorted."""
        return sorted(self._on.get(node, ()))

    def of(self, listener: str, node: str) -> list[str]:
        """Ids of a listener's own on a node, sorted."""
        return [task_manager for task_manager in self.on(node) if self._owner[task_manager] == listener]

    def nodes_of(self, listener: str) -> set[str]:
        """The nodes that a listener has some on."""
        return set(self._said.get(listener, {}).values())

    def node_of(self, task_manager: str) -> str | None:
        """The node it is on; None if nobody has said."""
        owner = self._owner.get(task_manager)
        return None if owner is None else self._said[owner][task_manager]

    def owner_of(self, task_manager: str) -> str | None:
        """The listener that has it; None if nobody has said."""
        return self._owner.get(task_manager)

    def _claim(self, listener: str, task_manager: str, node: str) -> set[str]:
        owner = self._owner.get(task_manager)
        if owner is not None and (self._at[owner], owner) > (self._at[listener], listener):
            return set()  # It said so later, to another replica.
        changed = set() if owner is None else self._remove(owner, [task_manager])
        self._said.setdefault(listener, {})[task_manager] = node
        self._owner[task_manager] = listener
        self._on[node].add(task_manager)
        return changed | {node}

    def _remove(self, listener: str, task_managers: Iterable[str]) -> set[str]:
        nodes = set()
        for task_manager in task_managers:
            node = self._said[listener].pop(task_manager)
            del self._owner[task_manager]
            self._on[node].discard(task_manager)
            if not self._on[node]:
                del self._on[node]
            nodes.add(node)
        return nodes
