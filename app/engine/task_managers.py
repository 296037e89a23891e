"""TaskManagers: which TaskManagers run on which node, as last reported by their listeners."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from blocklist.model.host_matching import Aliases, NameIndex, no_aliases
from blocklist.model.multimap import Multimap


class TaskManagers:
    """If two listeners of a principal report one TaskManager, the newer report wins, as in Flink.

    Principals do not take TaskManagers from each other: what both report counts for both. Without authentication
    everybody is the same principal. Belongs to the event loop.
    """

    def __init__(self, aliases: Aliases = no_aliases) -> None:
        self._reported: dict[str, dict[str, str]] = {}
        self._reported_at: dict[str, int] = {}
        self._principals: dict[str, str | None] = {}
        self._owners: dict[str, tuple[str, ...]] = {}
        self._by_node = Multimap()
        self._nodes = NameIndex(aliases=aliases)

    def __len__(self) -> int:
        return len(self._owners)

    def set_for_listener(
        self, listener: str, principal: str | None, reported: Mapping[str, str], reported_at: int
    ) -> set[str]:
        """Replace the TaskManagers of a principal's listener, id -> node id, by those reported at this time (Unix ms).

        Returns the nodes that changed.
        """
        self._reported_at[listener] = reported_at
        self._principals[listener] = principal
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
        self._principals.pop(listener, None)
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
        return self.on_hosts(self._nodes.matching(node))

    def on_hosts(self, names: Iterable[str]) -> list[str]:
        """Ids of the TaskManagers that listeners report under these very names, sorted."""
        return sorted({task_manager for name in names for task_manager in self._by_node[name]})

    def with_listeners_on(self, node: str) -> list[tuple[str, str]]:
        """The TaskManagers on a node, each with the listener that reports it there, sorted."""
        return sorted(
            (task_manager, listener)
            for name in self._nodes.matching(node)
            for task_manager in self._by_node[name]
            for listener in self._owners[task_manager]
            if self._reported[listener][task_manager] == name
        )

    def nodes_of(self, listener: str) -> set[str]:
        """The nodes on which a listener has TaskManagers."""
        return set(self._reported.get(listener, {}).values())

    def reported_by(self, listener: str) -> Mapping[str, str]:
        """The TaskManagers of a listener, id -> node id, without those that a newer report of another one took."""
        return self._reported.get(listener, {})

    def nodes_of_task_manager(self, task_manager: str) -> set[str]:
        """The nodes on which a TaskManager is reported: none if it is unknown, several if principals disagree."""
        return {self._reported[listener][task_manager] for listener in self._owners.get(task_manager, ())}

    def _claim(self, listener: str, task_manager: str, node: str) -> set[str]:
        owners = self._owners.get(task_manager, ())
        principal = self._principals[listener]
        rival = next((owner for owner in owners if self._principals[owner] == principal), None)
        if rival is not None and (self._reported_at[rival], rival) > (self._reported_at[listener], listener):
            return set()  # The rival's report is newer: it went to another replica.
        changed = set() if rival is None else self._remove(rival, [task_manager])
        self._reported.setdefault(listener, {})[task_manager] = node
        self._owners[task_manager] = (*self._owners.get(task_manager, ()), listener)
        self._by_node.add(node, task_manager)
        self._nodes.add(node)
        return changed | {node}

    def _remove(self, listener: str, task_managers: Iterable[str]) -> set[str]:
        nodes = set()
        for task_manager in task_managers:
            node = self._reported[listener].pop(task_manager)
            self._remove_owner(task_manager, listener)
            if node not in self.nodes_of_task_manager(task_manager):
                self._remove_from_node(task_manager, node)
            nodes.add(node)
        return nodes

    def _remove_owner(self, task_manager: str, listener: str) -> None:
        owners = tuple(owner for owner in self._owners[task_manager] if owner != listener)
        if owners:
            self._owners[task_manager] = owners
        else:
            del self._owners[task_manager]

    def _remove_from_node(self, task_manager: str, node: str) -> None:
        self._by_node.discard(node, task_manager)
        if node not in self._by_node:
            self._nodes.discard(node)
