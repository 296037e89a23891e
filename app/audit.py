"""AuditLog: who logs in or fails to, changes tokens or modes, or forces a change; and the settings at each start.

A record that belongs to a transaction, such as that of a new token, is written in it (`app.store.audit.add`). All
others are noted in memory and written within a second, so that no request waits for them. If the database is away they
wait for it, at most MAX_WAITING; what is dropped is logged, counted, and recorded as `lost`. Forced changes are not
lost even so: they are recorded from the change log, by whichever replica comes first.

Attempts and log-ins can come by the thousand. So each kind has a bound: in WINDOW_MS, the first one from each address
with the same details is recorded at once, further ones are summed in one record at the end. So are those of an address
that has had MAX_NAMED_OF_ADDRESS, and thus hides nobody else's; and all further ones once there are MAX_NAMED.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import structlog

from app.store.audit import AuditEvent, AuditFilter, AuditPageRows, Origin, add_all, read_page, unrecorded
from app.store.store import Store
from blocklist.model.changes import Change
from blocklist.model.errors import UnavailableError
from blocklist.wire.audit import AuditKind, Way

log = structlog.get_logger(__name__)

WINDOW_MS: Final = 900_000
"""15 minutes: how long equal events are summed."""
MAX_NAMED: Final[Mapping[AuditKind, int]] = {AuditKind.LOGIN_FAILED: 20, AuditKind.LOGIN: 200}
"""Maximum number of different events of a kind in a window that have records of their own.

So whatever callers send makes at most 45 records of failed log-ins a window and replica: 1.7 million, or half a GB, in
400 days.
"""
MAX_NAMED_OF_ADDRESS: Final[Mapping[AuditKind, int]] = {AuditKind.LOGIN_FAILED: 5, AuditKind.LOGIN: 200}
MAX_WAITING: Final = 2000
"""Maximum number of events that wait for the database."""
GATHER_SECONDS: Final = 0.2
"""Time that an event waits for others, to be written with them."""
CHECK_SECONDS: Final = 30.0
"""Interval at which forced changes without a record are searched, and windows end."""
RETRY_SECONDS: Final = 1.0

_Key = tuple[AuditKind, object]


@dataclass(kw_only=True, slots=True)
class _Repeats:
    """What followed the first one of its kind in this window, if anything did; times are in Unix ms."""

    origin: Origin
    details: Mapping[str, object]
    named: bool = False
    count: int = 0
    first: int = 0
    last: int = 0

    def add(self, now: int) -> None:
        self.first, self.last, self.count = self.first or now, now, self.count + 1

    def event(self, kind: AuditKind) -> AuditEvent:
        details = {**self.details, "count": self.count, "lastAt": str(self.last)}
        return AuditEvent(at=self.first, kind=kind, origin=self.origin, details=details)


class AuditLog:
    """Belongs to the event loop. `on_lost` is called with the number of events that are dropped."""

    def __init__(self, store: Store, clock: Callable[[], int], on_lost: Callable[[int], None]) -> None:
        self._store = store
        self._clock = clock
        self._on_lost = on_lost
        self._waiting: list[AuditEvent] = []
        self._forced: dict[int, Origin] = {}
        self._window_end = 0
        self._repeats: dict[_Key, _Repeats] = {}
        self._lost = 0
        self._lost_since = 0
        self._wake = asyncio.Event()
        self._lock = asyncio.Lock()
        self._flushing: asyncio.Task[None] | None = None

    async def write(self, kind: AuditKind, origin: Origin, details: Mapping[str, object]) -> None:
        """Record an event; it is stored when this returns. Raises UnavailableError."""
        now = self._clock()
        event = AuditEvent(at=now, kind=kind, origin=origin, details=details)
        await self._store.write(lambda connection: add_all(connection, [event], {}, now))

    def note(self, kind: AuditKind, origin: Origin, details: Mapping[str, object]) -> None:
        """Record an event soon. Never fails, and never waits."""
        self._append(AuditEvent(at=self._clock(), kind=kind, origin=origin, details=details))

    def note_repeatable(self, kind: AuditKind, origin: Origin, details: Mapping[str, object]) -> None:
        """The same for one of the kinds in MAX_NAMED, which callers can repeat as often as they like."""
        now = self._clock()
        self._end_window(now)
        key: _Key = kind, (origin.principal, origin.way, origin.address, *sorted(map(str, details.items())))
        if (repeats := self._repeats.get(key)) is None:
            named = [it.origin.address for (of, _), it in self._repeats.items() if of is kind and it.named]
            crowded = named.count(origin.address) >= MAX_NAMED_OF_ADDRESS[kind]
            if not crowded and len(named) < MAX_NAMED[kind]:
                self._repeats[key] = _Repeats(origin=origin, details=details, named=True)
                self.note(kind, origin, details)
                return
            address = origin.address if crowded else None
            others = _Repeats(origin=Origin(way=Way.SERVICE, address=address), details={"others": True})
            repeats = self._repeats.setdefault((kind, address), others)
        repeats.add(now)

    def note_forced(self, changes: Sequence[Change], origin: Origin) -> None:
        """These changes were forced from there: they are recorded from the change log."""
        if len(self._forced) < MAX_WAITING:
            self._forced |= {change.revision: origin for change in changes if change.forced is not None}
            self._wake.set()

    async def page(self, criteria: AuditFilter, *, after: int | None, newest: bool, limit: int) -> AuditPageRows:
        """At most `limit` records after this id; with `newest` the newest first. Raises UnavailableError."""
        return await self._store.read(
            lambda connection: read_page(connection, criteria, after=after, newest=newest, limit=limit)
        )

    async def run(self) -> None:
        """Write what is noted; never returns."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._wake.wait()
                await asyncio.sleep(GATHER_SECONDS)
            self._flushing = asyncio.create_task(self.flush())
            try:
                # Not cancelled at the end: `close` would write the same again.
                await asyncio.shield(self._flushing)
            except UnavailableError:
                self._wake.set()
                await asyncio.sleep(RETRY_SECONDS)

    async def flush(self) -> None:
        """Write what is noted, and the forced changes that nobody has recorded. Raises UnavailableError."""
        async with self._lock:
            await self._flush()

    async def _flush(self) -> None:
        now = self._clock()
        self._end_window(now)
        self._wake.clear()
        events, forced, lost = self._waiting.copy(), self._forced.copy(), self._lost
        if lost:
            details = {"count": lost, "since": str(self._lost_since)}
            events.append(AuditEvent(at=now, kind=AuditKind.LOST, origin=Origin(way=Way.SERVICE), details=details))
        if not events and not await self._store.read(
            lambda connection: connection.execute(unrecorded(now, list(forced)).limit(1)).first() is not None
        ):
            return
        await self._store.write(lambda connection: add_all(connection, events, forced, now))
        self._lost -= lost
        del self._waiting[: len(events) - bool(lost)]
        self._forced = {revision: it for revision, it in self._forced.items() if revision not in forced}

    async def close(self) -> None:
        """Write the rest; what cannot be written is logged."""
        if self._flushing is not None:
            await asyncio.wait([self._flushing])
        self._end_window(None)
        try:
            await self.flush()
        except UnavailableError:
            for event in self._waiting:
                self._drop(event)

    def _end_window(self, now: int | None) -> None:
        """Record what was summed if the window has ended at `now`; None ends it."""
        if now is not None and now < self._window_end:
            return
        repeats, self._repeats = self._repeats, {}
        self._window_end = 0 if now is None else now + WINDOW_MS
        for (kind, _), it in repeats.items():
            if it.count:
                self._append(it.event(kind))

    def _append(self, event: AuditEvent) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self._lost_since = self._lost_since if self._lost else event.at
            self._lost += 1
            self._drop(event)
            return
        self._waiting.append(event)
        self._wake.set()

    def _drop(self, event: AuditEvent) -> None:
        self._on_lost(1)
        origin = event.origin
        log.warning(
            "audit record lost: the database is unavailable",
            kind=event.kind.value,
            at=event.at,
            principal=origin.principal,
            way=origin.way.value,
            address=origin.address,
            request=origin.request_id,
            details=dict(event.details),
        )
