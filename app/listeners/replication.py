"""What replicas share of listeners: who pushes to which, what is saved and read, and which leases have ended."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import structlog

from app.listeners.reports import part_names
from app.listeners.state import ListenerDirectory, ListenerEntry
from app.logs import isolated
from app.store.listeners import ListenerStore, ModesVersion, ReportPart, StoredListener
from blocklist.model.draft import BlocklistTracker
from blocklist.model.errors import InvalidError, UnavailableError
from blocklist.model.listener import Listener, Modes

log = structlog.get_logger(__name__)


LEASE_SECONDS: Final = 5.0
"""A replica that has not renewed its lease for this long is gone."""
MARGIN_SECONDS: Final = 1.0
RENEW_SECONDS: Final = 1.0


class PushOwnership:
    """Which replica pushes to which listener. Belongs to the event loop.

    Each listener with a callback has an owner: the replica that pushes to it. A replica is live while it renews its
    lease, by the database's clock; by its own clock it stops pushing MARGIN_SECONDS before others may take over. So two
    replicas never push to one listener, whatever fails or is cut off, and clocks are never compared.

    `shared` is whether there may be other replicas, `others` are those that were live at the last renewal.
    """

    def __init__(self, database: ListenerStore, replica_id: str, *, shared: bool) -> None:
        self.id = replica_id
        self.shared = shared
        self.others: set[str] = set()
        self._database = database
        self._valid_until = 0.0
        self._renewed_at = 0.0

    @property
    def is_valid(self) -> bool:
        """Whether this replica's lease is certainly valid, so that no other one has taken over."""
        return not self.shared or time.monotonic() < self._valid_until

    @property
    def is_first(self) -> bool | None:
        """Whether this is the first of the live replicas, the one that does what must be done once; None: uncertain."""
        if not self.is_valid:
            return None
        return not self.shared or all(self.id < other for other in self.others)

    def owns(self, owner: str | None) -> bool:
        """Whether this replica pushes to a listener with this owner."""
        return not self.shared or (owner == self.id and self.is_valid)

    def is_orphan(self, owner: str | None) -> bool:
        """Whether no live replica pushes to a listener with this owner."""
        return self.shared and owner != self.id and owner not in self.others

    def owner_for(self, owner: str | None) -> str | None:
        """The owner of a listener that registers here: its current owner if that is live, else this replica."""
        if not self.shared:
            return None
        return self.id if owner is None or self.is_orphan(owner) else owner

    async def take_over(self, now: int) -> bool:
        """If no other replica is live, become the first one at `now` (Unix ms). Raises UnavailableError."""
        # Read first: beside a live one, which may hold the lock of the listeners for seconds, nothing is locked.
        if await self._database.live_replicas() - {self.id}:
            return False
        return await self._database.take_over(LEASE_SECONDS, now)

    async def renew(self) -> None:
        """Renew this replica's lease and read the others; call `confirm` afterwards. Raises UnavailableError."""
        started_at = time.monotonic()
        self.others = await self._database.renew_replica_lease(LEASE_SECONDS) - {self.id}
        self._renewed_at = started_at

    def confirm(self) -> None:
        """Extend the ownership to the renewed lease: the directory is up to date with the last renewal."""
        self._valid_until = self._renewed_at + LEASE_SECONDS - MARGIN_SECONDS

    async def claim(self, orphans: Collection[str]) -> None:
        """Become the owner of a fair share of these listeners. Raises UnavailableError."""
        share = -(-len(orphans) // (1 + len(self.others)))
        await self._database.claim_listeners(sorted(orphans)[:share])

    async def release(self) -> None:
        """Give up all pushes; the other replicas take over at once. Raises UnavailableError."""
        self._valid_until = 0.0
        if self.shared:
            await self._database.remove_replica()


class UnsavedReports:
    """What listeners have reported to this replica and the database does not have yet.

    At most one item per listener: the names of the parts to save; none of them if only its lease or cursor moved.

    `urgent` is set when other replicas wait for an item; `shared` is whether there may be any. Belongs to the event
    loop.
    """

    def __init__(self, *, shared: bool) -> None:
        self.urgent = asyncio.Event()
        self._shared = shared
        self._parts: dict[ListenerEntry, set[str]] = {}
        self._taken: dict[ListenerEntry, set[str]] = {}  # being saved

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
        """All items, to be saved now; call `saved` or `put_back` afterwards."""
        self._taken, self._parts = self._parts, {}
        return self._taken

    def saved(self) -> None:
        self._taken = {}

    def put_back(self) -> None:
        """Save what was taken later: the database was unavailable."""
        taken, self._taken = self._taken, {}
        for entry, parts in taken.items():
            self._parts.setdefault(entry, set()).update(parts)

    def parts_of(self, entry: ListenerEntry) -> set[str]:
        """The parts of its report that are lost if this replica is killed now."""
        return self._parts.get(entry, set()) | self._taken.get(entry, set())


_NOT_IN_FORCE: Final = part_names(("refused", "pending", "not_here", "mode"))
RECENT_SECONDS: Final = 0.5
"""What was read from the database within this time is used without asking again, whatever notifications say."""
MAX_GAP_SECONDS: Final = 2.0
"""A longer time between two reads is an outage, of the database or of this replica."""


class ListenerReader:
    """Applies what other replicas, or this one before a restart, have stored. Belongs to the event loop.

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
        self._modes_version: ModesVersion | None = None
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
        """Apply everything written before the call. Raises UnavailableError."""
        called_at = time.monotonic()
        async with self.lock:
            # Calls that wait for the lock share the first read that began after them.
            if self._read_at <= called_at:
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
        updates = await self._database.updates_since(self._version, self._modes_version)
        if updates.modes is not None:
            self._directory.modes, self._modes_version = Modes(updates.modes), updates.modes_version
        parts = defaultdict[str, list[ReportPart]](list)
        for part in updates.reports:
            parts[part.listener].append(part)
        for stored in updates.changed:
            await self._apply(stored, parts.pop(stored.listener.id, ()), updates.history)
        for rest in parts.values():
            await self._apply(None, rest, updates.history)
        if updates.total != len(self._directory):
            for removed in self._directory.ids - await self._database.ids():
                self._directory.remove(removed)
        self._record_read(updates.version, read_at, read_at_millis)

    async def _apply(self, stored: StoredListener | None, parts: Collection[ReportPart], history: str) -> None:
        """Apply what was stored of one listener. What is not in force there is known as soon as its acknowledgement."""
        new = stored is not None and not self._is_known(stored)
        if not new:
            # First: what runs there was reported before the acknowledgement, or with it.
            await self._apply_in_turns(parts)
        if new and stored is not None:
            self._upsert_isolated(stored, history)
        for part in (it for it in parts if it.part in _NOT_IN_FORCE):
            self._apply_isolated(part)
        if not new and stored is not None:
            self._upsert_isolated(stored, history)
        await asyncio.sleep(0)
        if new:
            await self._apply_in_turns(parts)

    async def _apply_in_turns(self, parts: Collection[ReportPart]) -> None:
        """Each of the others may have thousands of nodes: nobody must wait for all of them."""
        for part in (it for it in parts if it.part not in _NOT_IN_FORCE):
            self._apply_isolated(part)
            await asyncio.sleep(0)

    def _upsert_isolated(self, stored: StoredListener, history: str) -> None:
        with isolated(f"stored listener {stored.listener.id}"):
            self.upsert(stored, history)

    def _is_known(self, stored: StoredListener) -> bool:
        entry = self._directory.get(stored.listener.id)
        return entry is not None and entry.listener.registration_key == stored.listener.registration_key

    def _apply_isolated(self, part: ReportPart) -> None:
        with isolated(f"stored report of {part.listener}"):
            self._apply_part(part)

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
        if entry is None or not self._is_known(stored):
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
        known, listener = entry.listener, stored.listener
        # Who knows of the later end of the lease knows best. Without replicas it is not stored.
        if not self._replicated or listener.lease_end <= known.lease_end:
            listener = replace(listener, confirmed=known.confirmed)
        if stored.expired_at is None:
            self._directory.renew(entry, listener.with_latest(known))
        else:
            entry.listener = replace(listener, acked=known.acked)
        entry.secret = stored.secret
        if _indexed(known) != _indexed(listener):
            self._directory.index(entry)
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


def _indexed(listener: Listener) -> tuple[object, ...]:
    """What the indexes of the directory depend on: most rows only renew a lease, or acknowledge."""
    return listener.role, listener.principal, listener.min_nodes, listener.cluster


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
    """Saves heartbeats for other replicas and for a restart, and expires leases. Belongs to the event loop.

    `expired_leases` counts the leases that this replica expired.

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
                entry.listener = replace(entry.listener, confirmed=False)

    def notify_remote_change(self) -> None:
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
        if not self._ownership.is_valid:
            self._doubt_ended_leases()
            if await self._ownership.take_over(self._clock()):
                # What this replica knows of them counts, after an outage: those whose leases have not ended still live.
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
        try:
            if current:
                listeners, reports = [entry.listener for entry in current], self._report_parts(current)
                await self._database.save_heartbeats(listeners, reports, self._tracker.history)
        except BaseException:
            self._unsaved.put_back()
            raise
        self._unsaved.saved()

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

    def _doubt_ended_leases(self) -> None:
        """After a pause of this replica, or an outage: a listener whose lease ended meanwhile may have ended, too."""
        now = self._clock()
        for entry in self._directory.entries:
            if not entry.is_live(now):
                entry.listener = replace(entry.listener, confirmed=False)

    def _knows_renewals(self) -> bool:
        """Whether heartbeats that other replicas received have been saved by them, and read here."""
        settled = not self._ownership.others or self._reader.regular_seconds >= SETTLE_SECONDS
        return self._ownership.is_valid and settled

    async def _expire_leases(self) -> None:
        """Expire the leases that nobody renewed. With replicas the database decides."""
        if not self._knows_renewals():
            return
        now = self._clock()
        self._cut_leases(now)
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

    def _cut_leases(self, now: int) -> None:
        """None lasts longer from now on than it is long: the clock was set back, or another replica's is ahead."""
        for entry in self._directory.entries:
            if entry.listener.lease_end > now + entry.listener.lease and not entry.expired:
                entry.listener = replace(entry.listener, lease_end=now + entry.listener.lease)

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
