"""How many nodes a listener may still use. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from blocklist.model.changes import ChangeType
from blocklist.model.draft import Draft
from blocklist.model.host_matching import Matcher

_REMEMBERED: Final = 20_000


class NodeSet:
    """Nodes as a listener names them, found by the ids of blocks: by name in any case, short or full.

    Addresses are found as addresses; that a name and an address are one machine is not known here.
    """

    def __init__(self, nodes: Iterable[str]) -> None:
        self.names = frozenset(node.lower() for node in nodes)
        self._matcher: Matcher | None = None
        self._found: dict[str, frozenset[str]] = {}

    def __len__(self) -> int:
        return len(self.names)

    def taken(self, ids: Iterable[str]) -> set[str]:
        """Those that these ids mean."""
        found: set[str] = set()
        return found.union(*map(self._meant, ids))

    def _meant(self, node_id: str) -> frozenset[str]:
        """Each id is looked for once: the blocked ones are asked for again with each change."""
        found = self._found.get(node_id)
        if found is None:
            if self._matcher is None:
                self._matcher = Matcher(self.names, {})
            if len(self._found) >= _REMEMBERED:
                self._found.clear()
            found = self._found[node_id] = frozenset(self._matcher.hosts_of(node_id))
        return found


def node_set(nodes: Iterable[str], before: NodeSet | None) -> NodeSet:
    """The set of these nodes: the one before if they are the same, for it knows by now which ids mean what."""
    new = NodeSet(nodes)
    return before if before is not None and before.names == new.names else new


@dataclass(frozen=True, kw_only=True, slots=True)
class Using:
    """A live listener, the nodes that it may use, and how many of them are to stay usable."""

    id: str
    nodes: NodeSet
    minimum: int

    def usable(self, draft: Draft) -> int:
        """How many of its nodes are not blocked as of the draft."""
        return len(self.nodes) - len(self.nodes.taken(blocked_ids(draft)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Below:
    """A listener with fewer usable nodes than its minimum, and how many it had before."""

    listener: str
    usable: int
    minimum: int
    before: int


def below(listeners: Iterable[Using], present: Draft, wanted: Draft) -> list[Below]:
    """Those of whose nodes the changes from `present` to `wanted` block or free some, and that are then below."""
    ids = [change.node.id for change in wanted.changes if change.type in {ChangeType.BLOCKED, ChangeType.UNBLOCKED}]
    touched = [own for own in listeners if own.minimum > 0 and own.nodes.taken(ids)]
    found = [
        Below(listener=own.id, usable=own.usable(wanted), minimum=own.minimum, before=own.usable(present))
        for own in touched
    ]
    return [own for own in found if own.usable < own.minimum and own.usable != own.before]


def blocked_ids(draft: Draft) -> Sequence[str]:
    """The ids that are blocked at the draft's moment."""
    return [node.id for node in draft if not node.ended(draft.now)]
