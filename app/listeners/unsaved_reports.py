"""UnsavedReports: what listeners have reported to this replica and the database does not have yet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from app.listeners.entry import ListenerEntry


class UnsavedReports:
    """At most one item per listener: the names of the parts to save; none of them if only its lease or cursor moved.

    `urgent` is set when other replicas wait for an item; `shared` is whether there may be any. Belongs to the event
    loop.
    """

    def __init__(self, *, shared: bool) -> None:
        self.urgent = asyncio.Event()
        self._shared = shared
        self._parts: dict[ListenerEntry, set[str]] = {}

    def add(self, entry: ListenerEntry, at: int, *, acked: bool = False, parts: Iterable[str] = ()) -> None:
        """Record a heartbeat of `at` (Unix ms); `acked` is whether its cursor moved, `parts` are those that changed.

        Without other replicas only cursors are saved: leases and reports are rebuilt from heartbeats after a restart.
        """
        if not self._shared:
            if acked:
                self._parts.setdefault(entry, set())
            return
        unsaved = self._parts.setdefault(entry, set())
        for part in parts:
            entry.reported_at[part] = at
            unsaved.add(part)
        if acked or unsaved:
            self.urgent.set()

    def take(self) -> dict[ListenerEntry, set[str]]:
        """Remove and return all items."""
        taken, self._parts = self._parts, {}
        return taken

    def put_back(self, taken: Mapping[ListenerEntry, set[str]]) -> None:
        """Save these later: the database was unavailable."""
        for entry, parts in taken.items():
            self._parts.setdefault(entry, set()).update(parts)
