"""ListenerReader: reads listeners that other replicas, or this one before a restart, have written."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import structlog

from app.listeners.directory import ListenerDirectory
from app.listeners.entry import ListenerEntry
from app.logs.isolation import isolated
from app.store.listeners import ListenerStore, ReportPart, StoredListener
from blocklist.model.errors import InvalidError
from blocklist.model.tracker import BlocklistTracker

log = structlog.get_logger(__name__)

RECENT_SECONDS: Final = 0.5
"""What was read from the database within this time is used without asking again, whatever notifications say."""
MAX_GAP_SECONDS: Final = 2.0
"""A longer time between two reads is an outage, of the database or of this replica."""


class ListenerReader:
    """Applies rows of the database to the directory. Belongs to the event loop.

    `on_registered` is called with each entry that registered or whose callback URL or owner changed. Hold `lock` from
    reading rows to applying them, so that older rows never overwrite newer state. A row that cannot be applied is
    logged and skipped: it must not stop what is read after it.
    """

    def __init__(
        self,
        database: ListenerStore,
        directory: ListenerDirectory,
        tracker: BlocklistTracker,
        *,
        on_registered: Callable[[ListenerEntry], None],
        clock: Callable[[], int],
        replicated: bool,
    ) -> None:
        """`replicated` is whether other replicas may renew leases."""
        self._on_registered = on_registered
        self.lock = asyncio.Lock()
        self._database = database
        self._directory = directory
        self._tracker = tracker
        self._version = -1
        self._read_at = float("-inf")
        self._regular_since = float("-inf")
        self._clock = clock
        self._replicated = replicated

    @property
    def is_recent(self) -> bool:
        """Whether everything written until RECENT_SECONDS ago has been applied."""
        return self._was_recent(time.monotonic())

    @property
    def regular_seconds(self) -> float:
        """Seconds since which the rows have been read without a gap of MAX_GAP_SECONDS."""
        return self._read_at - self._regular_since

    async def sync(self) -> None:
        """Apply everything written since the last call. Raises UnavailableError."""
        async with self.lock:
            await self._sync()

    async def sync_unless_recent(self) -> None:
        """Apply everything written until RECENT_SECONDS before the call. Raises UnavailableError."""
        called_at = time.monotonic()
        if self._was_recent(called_at):
            return
        async with self.lock:
            # Calls that wait for the lock share one read.
            if not self._was_recent(called_at):
                await self._sync()

    def _was_recent(self, at: float) -> bool:
        return at - self._read_at < RECENT_SECONDS

    async def _sync(self) -> None:
        read_at, read_at_millis = time.monotonic(), self._clock()
        updates = await self._database.updates_since(self._version)
        # Each may have thousands of nodes: others must not wait for all of them.
        for stored in updates.changed:
            with isolated(f"stored listener {stored.listener.id}"):
                self.upsert(stored, updates.history)
            await asyncio.sleep(0)
        for part in updates.reports:
            with isolated(f"stored report of {part.listener}"):
                self._apply_part(part)
            await asyncio.sleep(0)
        if updates.total != len(self._directory):
            for removed in self._directory.ids - await self._database.ids():
                self._directory.remove(removed)
        self._record_read(updates.version, read_at, read_at_millis)

    def _record_read(self, version: int, read_at: float, read_at_millis: int) -> None:
        if read_at - self._read_at > MAX_GAP_SECONDS:
            self._regular_since = read_at
        self._version, self._read_at = version, read_at
        if self._replicated:
            self._directory.renewals_known_at = read_at_millis

    def upsert(self, stored: StoredListener, history: str) -> ListenerEntry:
        """The entry of a stored listener: the existing one for the same registration, else a new one."""
        listener = stored.listener
        if history != self._tracker.history:
            listener = replace(listener, acked=None)  # Its cursor is a revision of another history.
        entry = self._directory.get(listener.id)
        if entry is None or entry.listener.registration_key != listener.registration_key:
            entry = ListenerEntry(listener=listener, secret=stored.secret, expired=stored.expired_at is not None)
            self._directory.add(entry)
            before = None
        else:
            before = entry.listener.callback_url, entry.owner
            self._merge(entry, replace(stored, listener=listener))
        entry.owner = stored.owner
        if before != (listener.callback_url, stored.owner):
            self.notify_registered(entry)
        return entry

    def notify_registered(self, entry: ListenerEntry) -> None:
        """Call `on_registered`: the entry registered, or who pushes to it may have changed."""
        with isolated(f"registration of {entry.id}"):
            self._on_registered(entry)

    def _merge(self, entry: ListenerEntry, stored: StoredListener) -> None:
        """Apply a renewal, an acknowledgement or an expiry."""
        before = entry.listener
        if stored.expired_at is None:
            entry.listener = stored.listener.with_latest(before)
        else:
            entry.listener = replace(stored.listener, acked=before.acked)
        entry.secret = stored.secret
        self._directory.index(entry)
        if entry.listener.acked != before.acked:
            self._directory.record_ack(entry)
        if stored.expired_at is not None and not entry.expired:
            self._directory.expire(entry)

    def _apply_part(self, part: ReportPart) -> None:
        """Apply a part of a report, unless the registration has ended or a later report is known."""
        entry = self._directory.get(part.listener)
        if (
            entry is None
            or entry.expired
            or entry.listener.registration_key != (part.session, part.registered_at)
            or part.reported_at < entry.reported_at.get(part.part, part.reported_at)
        ):
            return
        entry.reported_at[part.part] = part.reported_at
        try:
            self._directory.import_part(entry, part.part, part.text, part.reported_at)
        except InvalidError as error:
            log.warning("cannot read a report from another replica; ignored", listener=entry.id, reason=str(error))
