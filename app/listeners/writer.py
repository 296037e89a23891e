"""Keeper: writes down what is heard of listeners, for other replicas and for after a restart; and ends their leases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final, Protocol

import structlog

from app.listeners.directory import ListenerDirectory
from app.listeners.entry import ListenerEntry
from app.listeners.ownership import RENEW_SECONDS, PushOwnership
from app.listeners.reader import ListenerReader
from app.store.listener_reports import ReportPart
from blocklist.model.errors import UnavailableError
from blocklist.model.listener import Listener
from blocklist.model.tracker import BlocklistTracker

log = structlog.get_logger(__name__)

FLUSH_SECONDS: Final = 0.5
"""How often cursors are kept: a crash loses less than this of them, and pushes come again."""
BATCH_SECONDS: Final = 0.01
"""How long news for other replicas gather."""
LEASE_GRACE_MS: Final = 2000
"""Milliseconds after the end of a lease in which another replica's word of a heartbeat may still come."""


class ListenerUpdateStore(Protocol):
    """Where listeners are kept, for all replicas. See app.store.listener_store."""

    async def remove(self, ids: Collection[str], lease_ended_before: int | None = None) -> None: ...
    async def save_heartbeats(
        self, updated: Sequence[Listener], reports: Sequence[ReportPart], history: str
    ) -> None: ...
    async def save_expired(self, listener_ids: Sequence[str], now: int, lease_ended_before: int) -> set[str]: ...


class ListenerWriter:
    """Belongs to the event loop. `lapses` counts the leases whose end was written down here.

    Replicas hear of different heartbeats: sessions are fenced in the database; cursors and leases only move on; of what
    a listener says the latest counts, part by part. What is unsaved is at most an entry for each listener.
    """

    def __init__(
        self,
        database: ListenerUpdateStore,
        replica: PushOwnership,
        directory: ListenerDirectory,
        follower: ListenerReader,
        tracker: BlocklistTracker,
        clock: Callable[[], int],
        forget_after: int,
    ) -> None:
        self.expired_leases = 0
        self._database = database
        self._ownership = replica
        self._directory = directory
        self._reader = follower
        self._tracker = tracker
        self._clock = clock
        self._forget_after = forget_after
        self._unsaved: set[ListenerEntry] = set()
        self._expiring: set[str] = set()
        self._sync_due = False
        self._flush_now = asyncio.Event()
        self._next_renewal = self._next_sweep = 0.0

    async def load(self) -> None:
        """Take over what was kept. Raises UnavailableError."""
        if self._ownership.shared:
            await self._renew_replica_lease()
        else:
            await self._reader.sync()
            self._renew_leases()

    def notify_remote_change(self) -> None:
        """Another replica has heard something."""
        self._sync_due = True
        self._flush_now.set()

    def mark_dirty(self, entry: ListenerEntry, at: int, *, moved: bool = False, parts: Iterable[str] = ()) -> None:
        """It gave a sign of life here; `moved` says that its cursor did, and `news` are parts that it said at `at`."""
        if not self._ownership.shared:
            if moved:
                self._unsaved.add(entry)
            return
        self._unsaved.add(entry)
        for part in parts:
            entry.reported_at[part] = at
            entry.unsynced.add(part)
        if moved or entry.unsynced:
            self._flush_now.set()

    async def run(self) -> None:
        """Keep, share and follow, notice leases that lapse, and forget listeners that are long gone; for ever."""
        while True:
            await self._wait_for_work()
            try:
                await self._run_once()
            except UnavailableError:
                # The database is away: what is unsaved stays so until it is back.
                await asyncio.sleep(FLUSH_SECONDS)

    async def close(self) -> None:
        """The service stops: keep what was heard, and let other replicas push. Raises UnavailableError."""
        await self._flush()
        await self._ownership.release()

    async def _wait_for_work(self) -> None:
        """Until it is time to keep what was heard; only a moment where other replicas wait for it."""
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._flush_now.wait()
                await asyncio.sleep(BATCH_SECONDS)
        except TimeoutError:
            return
        self._flush_now.clear()

    async def _run_once(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._ownership.shared and now >= self._next_renewal:
            self._next_renewal = now + RENEW_SECONDS
            await self._renew_replica_lease()
        if self._sync_due:
            await self._sync()
        await self._flush()
        if now >= self._next_sweep:
            self._next_sweep = now + FLUSH_SECONDS
            await self._expire_leases()
            await self._forget_expired()

    async def _renew_replica_lease(self) -> None:
        """Say that this replica lives. If the others may have thought that it did not, everything is looked at anew."""
        if not self._ownership.is_valid and await self._ownership.is_alone():
            # Nobody could be heard meanwhile: who was live has a whole lease from now on. Before this replica says that
            # it lives, for whoever sees it live will take leases as they are kept.
            await self._reader.sync()
            self._renew_leases()
            await self._flush()
        await self._ownership.renew()
        held = self._ownership.is_valid
        if not held:
            await self._sync()
        self._ownership.confirm()
        if not held:
            for entry in self._directory.entries:
                self._reader.on_registered(entry)
        await self._claim_orphans()

    async def _sync(self) -> None:
        self._sync_due = False
        try:
            await self._reader.sync()
            await self._claim_orphans()
        except BaseException:
            self._sync_due = True
            raise

    async def _claim_orphans(self) -> None:
        """Push to those who have nobody else to do it."""
        orphans = [
            entry.id
            for entry in self._directory.entries
            if entry.listener.callback_url is not None and not entry.expired and self._ownership.is_orphan(entry.owner)
        ]
        if orphans:
            await self._ownership.claim(orphans)
            self.notify_remote_change()

    async def _flush(self) -> None:
        """Keep, and share, what was heard. Raises UnavailableError."""
        unsaved, self._unsaved = self._unsaved, set()
        entries = {entry: entry.unsynced for entry in unsaved if self._directory.is_current(entry)}
        if not entries:
            return
        said = [self._report_part(entry, part) for entry, untold in entries.items() for part in sorted(untold)]
        for entry in entries:
            entry.unsynced = set()
        try:
            await self._database.save_heartbeats([entry.listener for entry in entries], said, self._tracker.history)
        except UnavailableError:
            self._unsaved |= unsaved
            for entry, untold in entries.items():
                entry.unsynced |= untold
            raise

    def _report_part(self, entry: ListenerEntry, part: str) -> ReportPart:
        session, since = entry.listener.registration_key
        return ReportPart(
            entry.id, session, since, part, entry.reported_at[part], self._directory.export_part(entry, part)
        )

    def _renew_leases(self) -> None:
        now = self._clock()
        for entry in self._directory.entries:
            if not entry.expired:
                entry.listener = replace(entry.listener, lease_end=now + entry.listener.lease)
                self.mark_dirty(entry, now)

    async def _expire_leases(self) -> None:
        """End the leases that nobody renewed. Where there are replicas the database has the last word."""
        if not self._ownership.is_valid:
            return  # Others may hear what this one cannot know of.
        now = self._clock()
        before = now - (LEASE_GRACE_MS if self._ownership.others else 0)
        ended = [entry for entry in self._directory.entries if not entry.expired and not entry.listener.is_live(before)]
        self._expiring.update(entry.id for entry in ended)
        if not self._ownership.shared:
            for entry in ended:
                self._directory.expire(entry)
                self._log_expired(entry)
        if self._expiring:
            lapsed = await self._database.save_expired(sorted(self._expiring), now, before)
            self._expiring.clear()
            if self._ownership.shared:
                await self._sync()
                for entry in ended:
                    if entry.id in lapsed:
                        self._log_expired(entry)

    def _log_expired(self, entry: ListenerEntry) -> None:
        self.expired_leases += 1
        log.warning("a listener's lease has lapsed", listener=entry.id, session=entry.listener.session)

    async def _forget_expired(self) -> None:
        before = self._clock() - self._forget_after
        async with self._reader.lock:
            gone = [entry.id for entry in self._directory.entries if entry.listener.lease_end < before]
            if gone:
                await self._database.remove(gone, before)
            for own in gone:
                self._directory.remove(own)
