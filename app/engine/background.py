"""Background tasks: expire blocks, compact the change log, probe a database that is unavailable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from time import monotonic
from typing import Final

import structlog

from app.engine.handler import BlocklistHandler
from app.logs.isolation import isolated
from app.store.store import Store
from blocklist.model.changes import Author, Source
from blocklist.model.draft import Draft
from blocklist.model.errors import UnavailableError
from blocklist.model.time import to_millis
from blocklist.model.tracker import BlocklistTracker

log = structlog.get_logger(__name__)

EXPIRY_CHECK_SECONDS: Final = 0.25
"""Maximum interval between two checks: the wall clock may be set forward during a longer sleep."""
MIN_RETAINED: Final = 1000
"""Number of changes that always stay in the log, whatever the settings."""
CHUNK: Final = 1000
"""Maximum number of changes removed in one transaction, so that writers do not wait long."""
COMPACT_SECONDS: Final = 10.0
PROBE_SECONDS: Final = 1.0


async def expire_blocks(tracker: BlocklistTracker, handler: BlocklistHandler, clock: Callable[[], int]) -> None:
    """Commit the `expired` or `narrowed` change of each block when it, or one of its claims, ends; never returns."""
    while True:
        now = clock()
        if tracker.next_expiry() <= now:
            await _expire([node.id for node in tracker.ended(now)], handler)
        await asyncio.sleep(min(EXPIRY_CHECK_SECONDS, max(0.0, (tracker.next_expiry() - clock()) / 1000)))


async def _expire(ids: list[str], handler: BlocklistHandler) -> None:
    def expire(draft: Draft) -> None:
        for node_id in ids:
            draft.expire(node_id)

    try:
        await handler.submit(expire, Author(source=Source.TIME))
    except UnavailableError:
        # Reads already show the node as free; the change is committed once the database is available.
        await asyncio.sleep(1)


async def probe_database(store: Store, read_again: Callable[[], Awaitable[None]]) -> None:
    """Probe the database during an outage, and then read everything again, until that succeeds; never returns.

    Until then reads have an Age header: other replicas may have written while this one could not read.
    """
    while True:
        await asyncio.sleep(PROBE_SECONDS)
        if store.breaker.outdated_seconds() is not None:
            with isolated("recovery of the database"), suppress(UnavailableError):
                if store.breaker.open_seconds() is not None:
                    await store.probe()
                read_at = monotonic()
                await read_again()
                store.breaker.record_up_to_date(read_at)


class Compactor:
    """Removes the oldest changes from the log by number and age, never the last MIN_RETAINED."""

    def __init__(
        self,
        tracker: BlocklistTracker,
        store: Store,
        clock: Callable[[], int],
        *,
        max_changes: int,
        max_age: timedelta,
        on_compacted: Callable[[int], None],
    ) -> None:
        self._tracker = tracker
        self._store = store
        self._clock = clock
        self._max_changes = max_changes
        self._max_age = to_millis(max_age)
        self._on_compacted = on_compacted

    async def run(self) -> None:
        """Compact every COMPACT_SECONDS; never returns."""
        failing = False
        while True:
            pause = COMPACT_SECONDS
            try:
                if await self.step() == CHUNK:
                    pause = 0.05  # More to remove: let writers in between.
                failing = False
            except UnavailableError:
                if not failing:
                    log.warning("the change log could not be compacted")
                failing = True
            await asyncio.sleep(pause)

    async def step(self) -> int:
        """Remove at most CHUNK changes; return how many. Raises UnavailableError."""
        revision = self._tracker.revision
        removed = await self._store.compact(
            keep_from=revision - self._max_changes + 1,
            older_than=self._clock() - self._max_age,
            always_keep_from=revision - MIN_RETAINED + 1,
            limit=CHUNK,
        )
        with isolated("metrics of compaction"):
            self._on_compacted(removed)
        return removed
