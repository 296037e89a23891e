"""Details of the list: who changed each node last, and lists rendered with that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.engine.cached_list import CachedList
from app.engine.list_view import ListView
from app.store.history_queries import PastList
from app.store.queries import LastChange
from blocklist.model.changes import Change
from blocklist.model.node import PERMANENT
from blocklist.wire.json import dump_json
from blocklist.wire.nodes import dump_list_entry

_UNKNOWN = LastChange(None, 0)


class LastChanges:
    """The last change of each blocked node, in memory: one entry for each. Belongs to the event loop."""

    def __init__(self, stored: Mapping[str, LastChange]) -> None:
        self._by_node = dict(stored)

    def apply(self, changes: Sequence[Change]) -> None:
        """These changes were committed."""
        for change in changes:
            if change.type.frees:
                self._by_node.pop(change.node.id, None)
            else:
                self._by_node[change.node.id] = LastChange(change.created_by, change.revision)

    def forget(self, changes: Sequence[Change]) -> None:
        """These changes could not be applied: the last changes of their nodes are unknown."""
        for change in changes:
            self._by_node.pop(change.node.id, None)

    def reset(self, stored: Mapping[str, LastChange]) -> None:
        """The list was reset."""
        self._by_node = dict(stored)

    def get(self, node_id: str) -> LastChange | None:
        """The last change of a node that is on the list, or has ended without its `expired` change; else None."""
        return self._by_node.get(node_id)

    def created_by(self, node_id: str) -> str | None:
        """The author of a blocked node's last change; None if unknown, or if the node is free."""
        last_change = self._by_node.get(node_id)
        return None if last_change is None else last_change.created_by


def list_with_details(view: ListView, last_changes: LastChanges) -> CachedList:
    """The current list with last changes. Rendered at each call: it is for people, not for pollers."""
    valid_until, fragments = view.fragments()
    parts = [fragment[:-1] + _detail_fields(last_changes.get(node_id) or _UNKNOWN) for node_id, fragment in fragments]
    return _cached_list(parts, view, view.tracker.revision, valid_until)


def past_list(past: PastList, view: ListView, *, details: bool) -> CachedList:
    """A past list. Its TaskManagers are empty: they are not stored."""
    parts = []
    for node_id in sorted(past.nodes):
        part = dump_list_entry(past.nodes[node_id], [])
        parts.append(part[:-1] + _detail_fields(past.last_changes[node_id]) if details else part)
    return _cached_list(parts, view, past.revision, PERMANENT)


def _detail_fields(last_change: LastChange) -> bytes:
    return b',"createdBy":%b,"revision":%d}' % (dump_json(last_change.created_by), last_change.revision)


def _cached_list(parts: list[bytes], view: ListView, revision: int, valid_until: int) -> CachedList:
    body = b"{" + b",".join(parts) + b"}\n"
    return CachedList(body, revision=revision, history=view.tracker.history, valid_until=valid_until)
