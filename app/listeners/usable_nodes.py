"""UsableNodes: which nodes the registered listeners may use, and how many of them are left."""

from __future__ import annotations

from app.engine.list_view import ListView
from app.listeners.directory import ListenerDirectory
from app.listeners.entry import ListenerEntry
from blocklist.model.draft import Draft
from blocklist.model.usable_nodes import ListenerNodes, NodeSet, node_set


class UsableNodes:
    """Belongs to the event loop. What listeners say of their nodes is in memory: after a restart they say it again."""

    def __init__(self, directory: ListenerDirectory, view: ListView) -> None:
        self._directory = directory
        self._view = view
        self._all_named: tuple[tuple[NodeSet, ...], NodeSet] | None = None

    def nodes_of(self, entry: ListenerEntry) -> NodeSet | None:
        """All nodes that it says it may use, else those of its TaskManagers; None if it names none at all."""
        if entry.nodes is not None:
            return entry.nodes
        there = self._view.task_managers.nodes_of(entry.id)
        entry.used = node_set(there, entry.used) if there else None
        return entry.used

    def usable_count(self, entry: ListenerEntry) -> int | None:
        """How many of them are not blocked now; None if it names none."""
        if (nodes := self.nodes_of(entry)) is None:
            return None
        return ListenerNodes(id=entry.id, nodes=nodes, minimum=0).usable(Draft(self._view.tracker, self._view.clock()))

    @property
    def any_minimum(self) -> bool:
        """Whether some listener has one, live or not: a cheap look."""
        return self._directory.any_minimum

    def minimums(self) -> list[ListenerNodes]:
        """The live listeners with a minimum whose nodes are known, by id."""
        wanting = sorted((own for own in self._directory.live() if own.listener.min_nodes), key=lambda own: own.id)
        return [
            ListenerNodes(id=entry.id, nodes=nodes, minimum=entry.listener.min_nodes)
            for entry in wanting
            if (nodes := self.nodes_of(entry)) is not None
        ]

    def known(self) -> NodeSet | None:
        """The nodes that live listeners name as all theirs; None if none of them does."""
        said = tuple(entry.nodes for entry in self._directory.live() if entry.nodes is not None)
        if not said:
            return None
        # The sets themselves, compared by identity: kept from one change to the next, as most heartbeats say no more.
        if self._all_named is None or self._all_named[0] != said:
            self._all_named = said, NodeSet(frozenset().union(*(nodes.names for nodes in said)))
        return self._all_named[1]
