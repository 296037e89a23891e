"""Which of Flink's node ids, and which TaskManagers, a node of the list means. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from blocklist.flink.state import ENDED_STATES, ClusterState, FlinkTaskManager
from blocklist.model.names import HostMatcher, normalize_address

_NO_ALIASES: Final[Mapping[str, Collection[str]]] = {}
MAX_KNOWN: Final = 10_000
"""Maximum number of TaskManagers, and of node ids, that are remembered."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskManagerNode:
    """The node of a TaskManager: the id that Flink uses, and what else it is called.

    `moved`: it has been on another node before, under the same resource id.
    """

    id: str
    names: frozenset[str] = frozenset()
    moved: bool = False


class FlinkNodeIds:
    """Learns the node ids of TaskManagers from the locations of tasks; until then it is the host of their RPC.

    Node ids stay known when their TaskManagers are gone, so that a node that comes back is blocked before it is used.
    Memory: the latest MAX_KNOWN.
    """

    def __init__(self) -> None:
        self._by_task_manager: dict[str, TaskManagerNode] = {}
        self._known: dict[str, frozenset[str]] = {}

    def update(self, state: ClusterState) -> None:
        """Learn from what Flink reports now."""
        for task_manager in state.task_managers.values():
            self._learn_host(task_manager)
        for job in state.jobs.values():
            for task in job.tasks:
                if task.task_manager is not None and task.node is not None:
                    self._learn_task(task.task_manager, task.node.strip("[]"), ended=task.state in ENDED_STATES)
        for gone in list(self._by_task_manager)[: max(0, len(self._by_task_manager) - MAX_KNOWN)]:
            del self._by_task_manager[gone]
        for old in list(self._known)[: max(0, len(self._known) - MAX_KNOWN)]:
            del self._known[old]

    def node_of(self, task_manager: str) -> str:
        """The node id of a TaskManager; its own id while nothing is known."""
        found = self._by_task_manager.get(task_manager)
        return task_manager if found is None else found.id

    def known_among(self, listed: Iterable[str], aliases: Mapping[str, Collection[str]]) -> set[str]:
        """Those that mean a node of Flink, as `matches` tells."""
        return {it for it, found in self.matches(listed, aliases).items() if not self._known.keys().isdisjoint(found)}

    def matches(
        self, listed: Iterable[str], aliases: Mapping[str, Collection[str]] = _NO_ALIASES
    ) -> dict[str, set[str]]:
        """The node ids of Flink that each id on the list means: in any case, short or full, or an address.

        `aliases` are what else the service calls them. Flink may use these for TaskManagers that register later: they
        are among the results.
        """
        matcher = HostMatcher(self._known, {name.lower(): addresses for name, addresses in self._known.items()})
        by_name = self._further_names()
        found: dict[str, set[str]] = {}
        for node_id in listed:
            others = aliases.get(node_id, ())
            found[node_id] = set(others)
            for name in (node_id, *others):
                found[node_id] |= matcher.hosts_of(name) | by_name.get(name.lower(), set())
        return found

    def _further_names(self) -> Mapping[str, set[str]]:
        """Names that a node has besides its id, if they mean one node only."""
        owners: dict[str, set[str]] = {}
        for node in self._by_task_manager.values():
            for name in node.names - {node.id}:
                owners.setdefault(name.lower(), set()).add(node.id)
        return {name: nodes for name, nodes in owners.items() if len(nodes) == 1}

    def _learn_host(self, task_manager: FlinkTaskManager) -> None:
        """Its host is its node until a task shows another id."""
        known, host = self._by_task_manager.get(task_manager.id), task_manager.host
        if host and (known is None or host not in known.names):
            self._learn(task_manager.id, TaskManagerNode(id=host, names=frozenset({host}), moved=known is not None))

    def _learn_task(self, task_manager: str, node: str, *, ended: bool) -> None:
        known = self._by_task_manager.get(task_manager, TaskManagerNode(id=node))
        if ended and (known.moved or known.id not in known.names):
            # A task that runs there shows more than one that has ended.
            return
        self._learn(task_manager, replace(known, id=node))

    def _learn(self, task_manager: str, node: TaskManagerNode) -> None:
        if self._by_task_manager.get(task_manager) == node:
            return
        self._by_task_manager.pop(task_manager, None)
        self._by_task_manager[task_manager] = node
        addresses = {shortest for name in node.names if (shortest := normalize_address(name)) is not None}
        self._known.pop(node.id, None)
        self._known[node.id] = frozenset(addresses)
