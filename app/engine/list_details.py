"""Details of the list: who changed each node last and who claims it, and lists rendered with that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from app.engine.cached_list import CachedList
from app.engine.list_view import ListView
from app.store.history_queries import PastList
from app.store.queries import LastChange
from blocklist.model.changes import Change
from blocklist.model.claims import Claims, expand, live_claims
from blocklist.model.node import PERMANENT
from blocklist.model.node_lookup import claims_on
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

    def revision_of(self, node_id: str, newest: int) -> int:
        """The revision of a blocked node's last change; an unknown one counts as the newest of the list."""
        last_change = self._by_node.get(node_id)
        return newest if last_change is None else last_change.revision

    def created_by(self, node_id: str) -> str | None:
        """The author of a blocked node's last change; None if unknown, or if the node is free."""
        last_change = self._by_node.get(node_id)
        return None if last_change is None else last_change.created_by


def selected_list(
    view: ListView, selected: Callable[[str], bool] | None, last_changes: LastChanges | None
) -> CachedList:
    """The nodes of the current list for which `selected` is true, with details unless `last_changes` is None.

    Rendered at each call: it is for people, not for pollers.
    """
    valid_until, fragments = view.fragments()
    parts = [
        part if last_changes is None else part[:-1] + _current_details(view, last_changes, node_id)
        for node_id, part in fragments
        if selected is None or selected(node_id)
    ]
    return _cached_list(parts, view, view.tracker.revision, valid_until)


def past_list(past: PastList, view: ListView, *, details: bool) -> CachedList:
    """A past list. Its TaskManagers are empty: they are not stored."""
    parts = []
    for node_id in sorted(past.nodes):
        node = past.nodes[node_id]
        part = dump_list_entry(node, [])
        claims = live_claims(expand(past.claims[node_id], node), past.at)
        parts.append(part[:-1] + _details(past.last_changes[node_id], claims) if details else part)
    return _cached_list(parts, view, past.revision, PERMANENT)


def _current_details(view: ListView, last_changes: LastChanges, node_id: str) -> bytes:
    node = view.tracker.get(node_id)
    claims = () if node is None else claims_on(view.tracker, node, view.clock())
    return _details(last_changes.get(node_id) or _UNKNOWN, claims)


def _details(last_change: LastChange, claims: Claims) -> bytes:
    created_by, owners = dump_json(last_change.created_by), dump_json([claim.owner for claim in claims])
    return b',"createdBy":%b,"revision":%d,"owners":%b}' % (created_by, last_change.revision, owners)


def _cached_list(parts: list[bytes], view: ListView, revision: int, valid_until: int) -> CachedList:
    body = b"{" + b",".join(parts) + b"}\n"
    return CachedList(body, revision=revision, history=view.tracker.history, valid_until=valid_until)
