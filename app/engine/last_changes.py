"""Origins: who changed each blocked node last, and with which revision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.store.queries import Origin
from blocklist.model.changes import Change


class Origins:
    """In memory, as of the last published change. Belongs to the event loop; grows no further than the list."""

    def __init__(self, kept: Mapping[str, Origin]) -> None:
        self._origins = dict(kept)

    def apply(self, changes: Sequence[Change]) -> None:
        """The list has moved on by these changes."""
        for change in changes:
            if change.type.frees:
                self._origins.pop(change.node.id, None)
            else:
                self._origins[change.node.id] = Origin(change.created_by, change.revision)

    def restart(self, kept: Mapping[str, Origin]) -> None:
        """The list has begun anew."""
        self._origins = dict(kept)

    def of(self, node_id: str) -> Origin | None:
        """The origin of a node on the list (until its `expired` change also of one that has ended), or None."""
        return self._origins.get(node_id)

    def created_by(self, node_id: str) -> str | None:
        """Who made a blocked node's last change; None where that is not known, or the node is free."""
        origin = self._origins.get(node_id)
        return None if origin is None else origin.created_by
