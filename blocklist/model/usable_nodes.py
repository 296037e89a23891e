"""Which nodes of a listener are usable, that is, not blocked. Pure.

Nodes are names in normal form. They are matched with the ids of blocks by one index of all nodes that any listener
names, so that the cost does not grow with the number of listeners. A listener has one name for each machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from blocklist.model.changes import Change, ChangeType
from blocklist.model.draft import Draft
from blocklist.model.names import MachineSet, NameSet


@dataclass(frozen=True, kw_only=True, slots=True)
class ListenerNodes:
    """A live listener, the nodes it may use, and the number of them that must stay usable."""

    id: str
    nodes: frozenset[str]
    minimum: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Shortfall:
    """A listener with fewer usable nodes than its minimum, and how many it had before the change."""

    listener: str
    usable: int
    minimum: int
    usable_before: int


def shortfalls(
    listeners: Iterable[ListenerNodes], names: MachineSet, current: Draft, proposed: Draft
) -> list[Shortfall]:
    """The listeners that are below their minimum after `proposed`, if it changes their number of usable nodes.

    `names` are the nodes that any listener names.
    """
    touched = matching_names(names, proposed.changes)
    affected = [it for it in listeners if it.minimum > 0 and not it.nodes.isdisjoint(touched)]
    if not affected:
        return []
    before = blocked_names(names, current)
    after = (before - touched) | {name for name in touched if _is_blocked(name, proposed)}
    found = (
        Shortfall(
            listener=it.id,
            usable=count_usable(it.nodes, after),
            minimum=it.minimum,
            usable_before=count_usable(it.nodes, before),
        )
        for it in affected
    )
    return [it for it in found if it.usable < it.minimum and it.usable != it.usable_before]


def matching_names(names: MachineSet, changes: Iterable[Change]) -> set[str]:
    """The names of the machines that these changes block or free."""
    ids = [change.node.id for change in changes if change.type in {ChangeType.BLOCKED, ChangeType.UNBLOCKED}]
    return {name for node_id in ids for name in names.matching(node_id)}


def blocked_names(names: MachineSet, draft: Draft) -> set[str]:
    return {name for node_id in blocked_ids(draft) for name in names.matching(node_id)}


def count_usable(nodes: AbstractSet[str], blocked: AbstractSet[str]) -> int:
    """Number of nodes whose names are not among the blocked ones."""
    return len(nodes) - len(nodes & blocked)


def blocked_ids(draft: Draft) -> Sequence[str]:
    return [node.id for node in draft if not node.ended(draft.now)]


def nodes_in_use(stated: frozenset[str], runs_on: frozenset[str]) -> frozenset[str]:
    """The nodes that a job says it may use and on which it has TaskManagers.

    Otherwise it could forbid the block of any node by stating it.
    """
    index = NameSet(runs_on)
    return frozenset(node for node in stated if node in runs_on or any(index.matching(node)))


def _is_blocked(name: str, draft: Draft) -> bool:
    nodes = map(draft.get, draft.matching(name))
    return any(node is not None and not node.ended(draft.now) for node in nodes)
