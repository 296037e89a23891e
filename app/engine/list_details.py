"""The list with who changed each node last, and the list as it once was: rendered like the plain one."""

from __future__ import annotations

from app.engine.last_changes import LastChanges
from app.engine.list_view import CachedList, ListView
from app.store.history_queries import PastList
from app.store.queries import LastChange
from blocklist.model.node import PERMANENT
from blocklist.wire.nodes import dump_json, dump_list_entry

_UNKNOWN = LastChange(None, 0)


def list_with_details(view: ListView, last_changes: LastChanges) -> CachedList:
    """The list at this moment with origins, rendered anew each time: it is for people, not for pollers."""
    valid_until, shown = view.fragments()
    parts = [fragment[:-1] + _detail_fields(last_changes.get(node_id) or _UNKNOWN) for node_id, fragment in shown]
    return _cached_list(parts, view, view.tracker.revision, valid_until)


def past_list(past: PastList, view: ListView, *, details: bool) -> CachedList:
    """The list as it once was. Nobody knows which TaskManagers were where."""
    parts = []
    for node_id in sorted(past.nodes):
        part = dump_list_entry(past.nodes[node_id], [])
        parts.append(part[:-1] + _detail_fields(past.last_changes[node_id]) if details else part)
    return _cached_list(parts, view, past.revision, PERMANENT)


def _detail_fields(last_change: LastChange) -> bytes:
    return b',"createdBy":%b,"revision":%d}' % (dump_json(last_change.created_by), last_change.revision)


def _cached_list(parts: list[bytes], view: ListView, revision: int, valid_until: int) -> CachedList:
    body = b"{" + b",".join(parts) + b"}"
    return CachedList(body, revision=revision, history=view.tracker.history, valid_until=valid_until)
