"""Which nodes of a listener are usable, that is, not blocked. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from blocklist.model.changes import ChangeType
from blocklist.model.draft import Draft
from blocklist.model.host_matching import NameIndex

_MAX_CACHED: Final = 20_000


class NodeSet:
    """The nodes of a listener, matched with the ids of blocks: by name in any case, short or full, or by address.

    A name is not matched with its address.
    """

    def __init__(self, nodes: Iterable[str]) -> None:
        self.names = frozenset(node.lower() for node in nodes)
        self._index: NameIndex | None = None
        self._cache: dict[str, frozenset[str]] = {}

    def __len__(self) -> int:
        return len(self.names)

    def matching(self, ids: Iterable[str]) -> set[str]:
        """The nodes that match these ids."""
        matches: set[str] = set()
        return matches.union(*map(self._match, ids))

    def _match(self, node_id: str) -> frozenset[str]:
        """Cached, as the same blocked ids are matched again on every change."""
        matches = self._cache.get(node_id)
        if matches is None:
            if len(self._cache) >= _MAX_CACHED:
                self._cache.clear()
            matches = self._cache[node_id] = frozenset(self.names_matching(node_id))
        return matches

    def names_matching(self, name: str) -> Iterator[str]:
        """The nodes that match a name. Unlike `matching` not cached."""
        if self._index is None:
            self._index = NameIndex(self.names)
        return self._index.matching(name)


def distinct_machines(names: Collection[str]) -> list[str]:
    """These names, in lower case, without each short one whose full name is among them."""
    index = NameIndex(names)
    return [name for name in names if "." in name or not any(other != name for other in index.matching(name))]


def node_set(nodes: Iterable[str], previous: NodeSet | None) -> NodeSet:
    """The set of these nodes; `previous` if it has the same names, to keep its cache."""
    new = NodeSet(nodes)
    return previous if previous is not None and previous.names == new.names else new


@dataclass(frozen=True, kw_only=True, slots=True)
class ListenerNodes:
    """A live listener, the nodes it may use, and the number of them that must stay usable."""

    id: str
    nodes: NodeSet
    minimum: int

    def usable(self, draft: Draft) -> int:
        """Number of its nodes that are not blocked in the draft."""
        return len(self.nodes) - len(self.nodes.matching(blocked_ids(draft)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Shortfall:
    """A listener with fewer usable nodes than its minimum, and how many it had before the change."""

    listener: str
    usable: int
    minimum: int
    usable_before: int


def shortfalls(listeners: Iterable[ListenerNodes], current: Draft, proposed: Draft) -> list[Shortfall]:
    """The listeners that are below their minimum after `proposed`, if it changes their number of usable nodes."""
    ids = [change.node.id for change in proposed.changes if change.type in {ChangeType.BLOCKED, ChangeType.UNBLOCKED}]
    affected = [listener for listener in listeners if listener.minimum > 0 and listener.nodes.matching(ids)]
    after = [
        Shortfall(listener=it.id, usable=it.usable(proposed), minimum=it.minimum, usable_before=it.usable(current))
        for it in affected
    ]
    return [it for it in after if it.usable < it.minimum and it.usable != it.usable_before]


def blocked_ids(draft: Draft) -> Sequence[str]:
    """The ids of the nodes that are blocked in the draft."""
    return [node.id for node in draft if not node.ended(draft.now)]
