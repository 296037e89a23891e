"""Origins: who changed each blocked node last, and with which revision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.store.queries import LastChange
from blocklist.model.changes import Change


class LastChanges:
    """In memory, as of the last published change. Belongs to the event loop; grows no further than the list."""

    def __init__(self, stored: Mapping[str, LastChange]) -> None:
        self._by_node = dict(stored)

    def apply(self, changes: Sequence[Change]) -> None:
        """The list has moved on by these changes."""
        for change in changes:
            if change.type.frees:
                self._by_node.pop(change.node.id, None)
            else:
                self._by_node[change.node.id] = LastChange(change.created_by, change.revision)

    def reset(self, stored: Mapping[str, LastChange]) -> None:
        """The list has begun anew."""
        self._by_node = dict(stored)

    def get(self, node_id: str) -> LastChange | None:
        """The origin of a node on the list (until its `expired` change also of one that has ended), or None."""
        return self._by_node.get(node_id)

    def created_by(self, node_id: str) -> str | None:
        """Who made a blocked node's last change; None where that is not known, or the node is free."""
        origin = self._by_node.get(node_id)
        return None if origin is None else origin.created_by
