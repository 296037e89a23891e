"""UsableNodes: which nodes the registered listeners may use, and how many of them are left."""

from __future__ import annotations

from app.engine.list_view import ListView
from app.listeners.directory import Roll
from app.listeners.member import Member
from blocklist.model.draft import Draft
from blocklist.model.usable_nodes import NodeSet, Using, node_set


class UsableNodes:
    """Belongs to the event loop. What listeners say of their nodes is in memory: after a restart they say it again."""

    def __init__(self, roll: Roll, view: ListView) -> None:
        self._roll = roll
        self._view = view
        self._known: tuple[tuple[NodeSet, ...], NodeSet] | None = None

    def of(self, member: Member) -> NodeSet | None:
        """All nodes that it says it may use, else those of its TaskManagers; None if it names none at all."""
        if member.nodes is not None:
            return member.nodes
        there = self._view.task_managers.nodes_of(member.id)
        member.used = node_set(there, member.used) if there else None
        return member.used

    def usable(self, member: Member) -> int | None:
        """How many of them are not blocked now; None if it names none."""
        if (nodes := self.of(member)) is None:
            return None
        return Using(id=member.id, nodes=nodes, minimum=0).usable(Draft(self._view.tracker, self._view.clock()))

    @property
    def any_minimum(self) -> bool:
        """Whether some listener has one, live or not: a cheap look."""
        return self._roll.any_minimum

    def minimums(self) -> list[Using]:
        """The live listeners with a minimum whose nodes are known, by id."""
        wanting = sorted((own for own in self._roll.live() if own.listener.min_nodes), key=lambda own: own.id)
        return [
            Using(id=member.id, nodes=nodes, minimum=member.listener.min_nodes)
            for member in wanting
            if (nodes := self.of(member)) is not None
        ]

    def known(self) -> NodeSet | None:
        """The nodes that live listeners name as all theirs; None if none of them does."""
        said = tuple(member.nodes for member in self._roll.live() if member.nodes is not None)
        if not said:
            return None
        # The sets themselves, compared by identity: kept from one change to the next, as most heartbeats say no more.
        if self._known is None or self._known[0] != said:
            self._known = said, NodeSet(frozenset().union(*(nodes.names for nodes in said)))
        return self._known[1]
