"""UsableNodes: the nodes that registered listeners may use, and how many of them are not blocked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

from app.engine.list_view import ListView
from app.listeners.directory import ListenerDirectory
from app.listeners.entry import ListenerEntry
from blocklist.model.changes import Change
from blocklist.model.confirmed_nodes import ConfirmedNodes
from blocklist.model.draft import Draft
from blocklist.model.host_matching import normalize_name
from blocklist.model.machine_count import MachineCount
from blocklist.model.machine_index import MachineIndex
from blocklist.model.usable_nodes import (
    ListenerNodes,
    believed_nodes,
    blocked_names,
    count_usable,
    matching_names,
)


class UsableNodes:
    """Belongs to the event loop. Reported nodes are in memory: after a restart heartbeats report them again."""

    def __init__(self, directory: ListenerDirectory, view: ListView, confirmed_nodes: ConfirmedNodes) -> None:
        self._directory = directory
        self._view = view
        self._confirmed_nodes = confirmed_nodes

    def nodes_of(self, entry: ListenerEntry) -> frozenset[str] | None:
        """The nodes that it reported and is believed, else those of its TaskManagers; None if it reported neither.

        One name for each machine.
        """
        runs_on = self._runs_on(entry)
        if entry.nodes is None and not runs_on:
            return None
        state = (entry.nodes, runs_on, self._confirmed_nodes.version)
        if entry.believed_nodes is None or entry.believed_nodes[0] != state:
            entry.believed_nodes = state, self._confirmed_nodes.one_name_each(self._believed(entry.nodes, runs_on))
        return entry.believed_nodes[1]

    def _believed(self, stated: frozenset[str] | None, runs_on: frozenset[str]) -> frozenset[str]:
        return runs_on if stated is None else believed_nodes(stated, runs_on, self._confirmed_nodes.confirmed_name)

    def counter(self) -> Callable[[ListenerEntry], int | None]:
        """A function that returns the number of nodes of a listener that are not blocked now; None if it has none."""

        @cache
        def blocked() -> set[str]:
            return blocked_names(self.names, Draft(self._view.tracker, self._view.clock()))

        def count(entry: ListenerEntry) -> int | None:
            nodes = self.nodes_of(entry)
            return None if nodes is None else count_usable(nodes, blocked())

        return count

    @property
    def any_minimum(self) -> bool:
        """Whether any listener, live or not, has a minimum; a cheap check."""
        return self._directory.any_minimum

    @property
    def names(self) -> MachineIndex:
        """The nodes that any listener names."""
        return self._confirmed_nodes.names

    def minimums(self, changes: Iterable[Change]) -> list[ListenerNodes]:
        """The live listeners with a minimum that name a machine which these changes block or free, by id."""
        touched = matching_names(self.names, changes)
        entries = [
            entry
            for entry in self._directory.live()
            if entry.listener.min_nodes and not touched.isdisjoint(self._confirmed_nodes.named_by(entry.id))
        ]
        return [
            ListenerNodes(id=entry.id, nodes=nodes, minimum=entry.listener.min_nodes)
            for entry in sorted(entries, key=lambda entry: entry.id)
            if (nodes := self.nodes_of(entry)) is not None
        ]

    @property
    def known(self) -> MachineCount:
        """The nodes that listeners report as all theirs, until they leave or their lease expires."""
        return self._directory.reported_nodes

    def _runs_on(self, entry: ListenerEntry) -> frozenset[str]:
        """The nodes of its TaskManagers, in normal form."""
        nodes = self._view.task_managers.nodes_of(entry.id)
        if entry.task_manager_nodes is None or entry.task_manager_nodes[0] != nodes:
            entry.task_manager_nodes = nodes, frozenset(map(normalize_name, nodes))
        return entry.task_manager_nodes[1]
