"""UsableNodes: the nodes that registered listeners may use, and how many of them are not blocked."""

from __future__ import annotations

from app.engine.list_view import ListView
from app.listeners.directory import ListenerDirectory
from app.listeners.entry import ListenerEntry
from blocklist.model.draft import Draft
from blocklist.model.usable_nodes import ListenerNodes, NodeSet, distinct_machines, node_set


class UsableNodes:
    """Belongs to the event loop. Reported nodes are in memory: after a restart heartbeats report them again."""

    def __init__(self, directory: ListenerDirectory, view: ListView) -> None:
        self._directory = directory
        self._view = view
        self._union: tuple[tuple[NodeSet, ...], NodeSet] | None = None

    def nodes_of(self, entry: ListenerEntry) -> NodeSet | None:
        """The nodes that the listener reported, else those of its TaskManagers; None if it reported neither."""
        if entry.nodes is not None:
            return entry.nodes
        nodes = self._view.task_managers.nodes_of(entry.id)
        entry.task_manager_nodes = node_set(nodes, entry.task_manager_nodes) if nodes else None
        return entry.task_manager_nodes

    def usable_count(self, entry: ListenerEntry) -> int | None:
        """Number of them that are not blocked now; None if it reported none."""
        if (nodes := self.nodes_of(entry)) is None:
            return None
        draft = Draft(self._view.tracker, self._view.clock())
        return ListenerNodes(id=entry.id, nodes=nodes, minimum=0).usable(draft)

    @property
    def any_minimum(self) -> bool:
        """Whether any listener, live or not, has a minimum; a cheap check."""
        return self._directory.any_minimum

    def minimums(self) -> list[ListenerNodes]:
        """The live listeners with a minimum whose nodes are known, by id."""
        with_minimum = (entry for entry in self._directory.live() if entry.listener.min_nodes)
        return [
            ListenerNodes(id=entry.id, nodes=nodes, minimum=entry.listener.min_nodes)
            for entry in sorted(with_minimum, key=lambda entry: entry.id)
            if (nodes := self.nodes_of(entry)) is not None
        ]

    def known(self) -> NodeSet | None:
        """The union of the nodes that live listeners reported as all theirs; None if none of them did."""
        reported = tuple(entry.nodes for entry in self._directory.live() if entry.nodes is not None)
        if not reported:
            return None
        # Compared by identity: most heartbeats report nothing new, and then the sets are the same objects.
        if self._union is None or self._union[0] != reported:
            names = frozenset[str]().union(*(nodes.names for nodes in reported))
            self._union = reported, NodeSet(distinct_machines(names))
        return self._union[1]
