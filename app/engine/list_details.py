"""The list with who changed each node last, and the list as it once was: rendered like the plain one."""

from __future__ import annotations

from app.engine.last_changes import Origins
from app.engine.list_view import ListView, Rendering
from app.store.history_queries import Past
from app.store.queries import Origin
from blocklist.model.node import PERMANENT
from blocklist.wire.nodes import dump_json, dump_listed

_UNKNOWN = Origin(None, 0)


def detailed(view: ListView, origins: Origins) -> Rendering:
    """The list at this moment with origins, rendered anew each time: it is for people, not for pollers."""
    valid_until, shown = view.fragments()
    parts = [fragment[:-1] + _tail(origins.of(node_id) or _UNKNOWN) for node_id, fragment in shown]
    return _rendering(parts, view, view.tracker.revision, valid_until)


def past_list(past: Past, view: ListView, *, details: bool) -> Rendering:
    """The list as it once was. Nobody knows which TaskManagers were where."""
    parts = []
    for node_id in sorted(past.nodes):
        part = dump_listed(past.nodes[node_id], [])
        parts.append(part[:-1] + _tail(past.origins[node_id]) if details else part)
    return _rendering(parts, view, past.revision, PERMANENT)


def _tail(origin: Origin) -> bytes:
    return b',"createdBy":%b,"revision":%d}' % (dump_json(origin.created_by), origin.revision)


def _rendering(parts: list[bytes], view: ListView, revision: int, valid_until: int) -> Rendering:
    body = b"{" + b",".join(parts) + b"}"
    return Rendering(body, revision=revision, history=view.tracker.history, valid_until=valid_until)
