"""ListenerWriter: saves heartbeats for other replicas and for a restart, and expires leases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

import structlog

from app.listeners.directory import ListenerDirectory
from app.listeners.entry import ListenerEntry
from app.listeners.ownership import RENEW_SECONDS, PushOwnership
from app.listeners.reader import ListenerReader
from app.listeners.unsaved_reports import UnsavedReports
from app.logs.isolation import isolated
from app.store.listeners import ListenerStore, ReportPart
from blocklist.model.errors import UnavailableError
from blocklist.model.tracker import BlocklistTracker

log = structlog.get_logger(__name__)

FLUSH_SECONDS: Final = 0.5
"""Interval at which cursors are saved; a crash loses less than this, and what it loses is pushed again."""
BATCH_SECONDS: Final = 0.01
"""Time for which reports that other replicas wait for are collected into one transaction."""
FORGET_AFTER_MS: Final = 86_400_000
"""How long after the end of its lease a listener is removed."""
LEASE_GRACE_MS: Final = 2000
"""Time after the end of a lease in which a heartbeat that another replica received may still arrive."""
SETTLE_SECONDS: Final = 5.0
"""Time after an outage in which replicas save the heartbeats that they received during it."""


class ListenerWriter:
    """Belongs to the event loop. `expired_leases` counts the leases that this replica expired.

    Replicas receive different heartbeats. They agree because sessions are fenced in the database, cursors and leases
    only move forward, and of each part of a report the latest counts.
    """

    def __init__(
        self,
        database: ListenerStore,
        ownership: PushOwnership,
        directory: ListenerDirectory,
        reader: ListenerReader,
        unsaved: UnsavedReports,
        tracker: BlocklistTracker,
        clock: Callable[[], int],
    ) -> None:
        self.expired_leases = 0
        self._database = database
        self._ownership = ownership
        self._directory = directory
        self._reader = reader
        self._unsaved = unsaved
        self._tracker = tracker
        self._clock = clock
        self._expiring: set[str] = set()
        self._sync_due = False
        self._next_renewal = self._next_sweep = 0.0

    async def load(self) -> None:
        """Read the stored listeners. Raises UnavailableError."""
        if self._ownership.shared:
            await self._renew_replica_lease()
        else:
            await self._reader.sync()
            self._renew_leases()
            for entry in self._directory.entries:
                entry.confirmed = False

    def notify_remote_change(self, _replica: str | None = None) -> None:
        """Another replica has written something about listeners."""
        self._sync_due = True
        self._unsaved.urgent.set()

    async def refresh(self) -> None:
        """Read what other replicas have written. Raises UnavailableError."""
        if self._ownership.shared:
            await self._sync()

    async def run(self) -> None:
        """Save, read, expire and remove, for ever."""
        while True:
            await self._wait_for_work()
            try:
                await self._run_once()
            except UnavailableError:
                # What is unsaved stays so until the database is available again.
                await asyncio.sleep(FLUSH_SECONDS)

    async def close(self) -> None:
        """Save what is unsaved, and give up all pushes to other replicas. Raises UnavailableError."""
        await self._flush()
        await self._ownership.release()

    async def _wait_for_work(self) -> None:
        """Until the next flush; only for BATCH_SECONDS if other replicas wait."""
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._unsaved.urgent.wait()
                await asyncio.sleep(BATCH_SECONDS)
        except TimeoutError:
            return
        self._unsaved.urgent.clear()

    async def _run_once(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._ownership.shared and now >= self._next_renewal:
            self._next_renewal = now + RENEW_SECONDS
            await self._renew_replica_lease()
        if self._sync_due or (self._ownership.shared and not self._reader.is_recent):
            # Also without a notification, which may be lost or late: pushes to a superseded session must end.
            await self._sync()
        await self._flush()
        if now >= self._next_sweep:
            self._next_sweep = now + FLUSH_SECONDS
            await self._expire_leases()
            await self._remove_forgotten()

    async def _renew_replica_lease(self) -> None:
        """Renew this replica's lease. If it had expired, other replicas may have taken over: read everything again."""
        if not self._ownership.is_valid and await self._ownership.is_alone():
            # No replica could receive heartbeats meanwhile, so each live listener gets a whole lease. Saved before this
            # replica is live, because replicas that see it live take the stored leases as they are.
            await self._reader.sync()
            self._renew_leases()
            await self._flush()
        await self._ownership.renew()
        was_valid = self._ownership.is_valid
        if not was_valid:
            await self._sync()
        self._ownership.confirm()
        if not was_valid:
            for entry in self._directory.entries:
                self._reader.notify_registered(entry)
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
        """Take over listeners whose replica is gone."""
        orphans = [
            entry.id
            for entry in self._directory.entries
            if entry.listener.callback_url is not None and not entry.expired and self._ownership.is_orphan(entry.owner)
        ]
        if orphans:
            await self._ownership.claim(orphans)
            self.notify_remote_change()

    async def _flush(self) -> None:
        """Save what is unsaved. Raises UnavailableError."""
        taken = self._unsaved.take()
        current = {entry: parts for entry, parts in taken.items() if self._directory.is_current(entry)}
        if not current:
            return
        try:
            reports = self._report_parts(current)
            await self._database.save_heartbeats([entry.listener for entry in current], reports, self._tracker.history)
        except BaseException:
            self._unsaved.put_back(current)
            raise

    def _report_parts(self, entries: Mapping[ListenerEntry, Collection[str]]) -> list[ReportPart]:
        """These parts of reports, without those that cannot be written because of a bug."""
        reports: list[ReportPart] = []
        for entry, parts in entries.items():
            for part in sorted(parts):
                with isolated(f"report of {entry.id}"):
                    reports.append(self._report_part(entry, part))
        return reports

    def _report_part(self, entry: ListenerEntry, part: str) -> ReportPart:
        session, since = entry.listener.registration_key
        text = self._directory.export_part(entry, part)
        return ReportPart(entry.id, session, since, part, entry.reported_at[part], text)

    def _renew_leases(self) -> None:
        now = self._clock()
        for entry in self._directory.entries:
            if not entry.expired:
                entry.listener = replace(entry.listener, lease_end=now + entry.listener.lease)
                self._unsaved.add(entry, now)

    def _knows_renewals(self) -> bool:
        """Whether heartbeats that other replicas received have been saved by them, and read here."""
        settled = not self._ownership.others or self._reader.regular_seconds >= SETTLE_SECONDS
        return self._ownership.is_valid and settled

    async def _expire_leases(self) -> None:
        """Expire the leases that nobody renewed. With replicas the database decides."""
        if not self._knows_renewals():
            return
        now = self._clock()
        before = now - (LEASE_GRACE_MS if self._ownership.others else 0)
        ended = [entry for entry in self._directory.entries if not entry.expired and not entry.listener.is_live(before)]
        self._expiring.update(entry.id for entry in ended)
        if not self._ownership.shared:
            await self._expire(ended, before)
        if self._expiring:
            expired = await self._database.save_expired(sorted(self._expiring), now, before)
            self._expiring.clear()
            if self._ownership.shared:
                await self._sync()
                for entry in ended:
                    if entry.id in expired:
                        self._log_expired(entry)

    async def _expire(self, ended: Sequence[ListenerEntry], before: int) -> None:
        for entry in ended:
            if self._directory.is_current(entry) and not entry.listener.is_live(before):
                self._directory.expire(entry)
                self._log_expired(entry)
            await asyncio.sleep(0)  # Each may have thousands of nodes: others must not wait for all of them.

    def _log_expired(self, entry: ListenerEntry) -> None:
        self.expired_leases += 1
        log.warning("listener lease expired", listener=entry.id, session=entry.listener.session)

    async def _remove_forgotten(self) -> None:
        before = self._clock() - FORGET_AFTER_MS
        async with self._reader.lock:
            forgotten = [entry.id for entry in self._directory.entries if entry.listener.lease_end < before]
            if forgotten:
                await self._database.remove(forgotten, before)
            for listener_id in forgotten:
                self._directory.remove(listener_id)
