"""Follower: takes over what is written of listeners, by other replicas or before a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import structlog

from app.listeners.directory import ListenerDirectory
from app.listeners.entry import ListenerEntry
from app.store.listener_reports import ReportPart
from app.store.listeners import ListenerUpdates, StoredListener
from blocklist.model.errors import InvalidError
from blocklist.model.tracker import BlocklistTracker

log = structlog.get_logger(__name__)


class ListenerUpdateSource(Protocol):
    """Where listeners are kept, for all replicas. See app.store.listener_store."""

    async def updates_since(self, since: int) -> ListenerUpdates: ...
    async def ids(self) -> set[str]: ...


class ListenerReader:
    """Belongs to the event loop. `came` is told of each Member that registers, or whose pushes are another's by now.

    `changing` is held by whoever reads from the database and enters what he read: what is entered later is newer.
    """

    def __init__(self, database: ListenerUpdateSource, directory: ListenerDirectory, tracker: BlocklistTracker) -> None:
        self.on_registered: Callable[[ListenerEntry], None] = lambda _: None
        self.lock = asyncio.Lock()
        self._database = database
        self._directory = directory
        self._tracker = tracker
        self._version = -1

    async def sync(self) -> None:
        """Know all that is written by now. Raises UnavailableError."""
        async with self.lock:
            news = await self._database.updates_since(self._version)
            for stored in news.changed:
                self.upsert(stored, news.history)
            for said in news.reports:
                self._apply_report(said)
            if news.total != len(self._directory):
                for gone in self._directory.ids - await self._database.ids():
                    self._directory.remove(gone)
            self._version = news.version

    def upsert(self, stored: StoredListener, history: str) -> ListenerEntry:
        """The entry of a listener that is kept so: the same one if it registered once, else a new one."""
        listener = stored.listener
        if history != self._tracker.history:
            listener = replace(listener, acked=None)  # It says nothing of the list as it is here.
        known = self._directory.get(listener.id)
        if known is None or known.listener.registration_key != listener.registration_key:
            known = ListenerEntry(listener=listener, secret=stored.secret, expired=stored.expired_at is not None)
            self._directory.add(known)
            before = None
        else:
            before = known.listener.callback_url, known.owner
            self._merge(known, replace(stored, listener=listener))
        known.owner = stored.owner
        if before != (listener.callback_url, stored.owner):
            self.on_registered(known)
        return known

    def _merge(self, known: ListenerEntry, stored: StoredListener) -> None:
        """It renewed its lease, acknowledged something, or lapsed."""
        before = known.listener
        if stored.expired_at is None:
            known.listener = stored.listener.with_latest(before)
        else:
            known.listener = replace(stored.listener, acked=before.acked)
        known.secret = stored.secret
        self._directory.index(known)
        if known.listener.acked != before.acked:
            self._directory.record_ack(known)
        if stored.expired_at is not None and not known.expired:
            self._directory.expire(known)

    def _apply_report(self, said: ReportPart) -> None:
        """What a listener said, most often to another replica; later than what is known, or the same again."""
        entry = self._directory.get(said.listener)
        if (
            entry is None
            or entry.expired
            or entry.listener.registration_key != (said.session, said.since)
            or said.at < entry.reported_at.get(said.part, said.at)
        ):
            return
        entry.reported_at[said.part] = said.at
        try:
            self._directory.import_part(entry, said.part, said.text, said.at)
        except InvalidError as error:
            log.warning("what a listener said to another replica is passed over", listener=entry.id, reason=str(error))
