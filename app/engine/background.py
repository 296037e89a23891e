"""Background tasks: expire blocks, compact the change log, probe a database that is unavailable."""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from time import monotonic
from typing import Final

import structlog

from app.engine.handler import BlocklistHandler
from app.logs import isolated
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
            now=self._clock(),
        )
        with isolated("metrics of compaction"):
            self._on_compacted(removed)
        return removed


# Supervision: a background task that fails is started again, and `/readyz` reports it until it runs again.

RESTART_SECONDS: Final = 1.0
"""Delay before a background task that failed is started again."""
RECOVERY_SECONDS: Final = 10.0
"""How long a task must run after its restart until it counts as recovered.

Longer than the longest interval at which a task works (5 s, the refresh of tokens): one that fails each time it works
is reported without a break.
"""


async def supervise(task: str, work: Callable[[], Awaitable[None]], on_failure: Callable[[str], None]) -> None:
    """Run `work` until it returns. If it fails, log that, call `on_failure` with `task`, and start it again.

    It has failed, too, if something that it awaited was cancelled. A cancellation of this task itself ends it.
    """
    while True:
        try:
            return await work()
        except (Exception, asyncio.CancelledError):
            if _is_cancelled():
                raise
            log.exception("background task failed; restarting", task=task)
        with isolated("report of a failed task"):
            on_failure(task)
        await asyncio.sleep(RESTART_SECONDS)


class TaskHealth:
    """The background tasks that this process needs, and which of them have failed. Belongs to the event loop.

    `restarts` counts the restarts of each task.
    """

    def __init__(self) -> None:
        self.restarts: Tally[str] = Tally()
        self._failed_at: dict[str, float] = {}

    def start(self, task: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Run `work` in a supervised task of this name."""
        self.restarts[task] += 0  # The metric shows a task from its start on.
        return asyncio.create_task(supervise(task, work, self.record_failure))

    @asynccontextmanager
    async def running(self, task: str, work: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        """Run `work` in such a task until the context is left."""
        running = self.start(task, work)
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def record_failure(self, task: str) -> None:
        """The task has failed, and will be restarted after RESTART_SECONDS."""
        self.restarts[task] += 1
        self._failed_at[task] = monotonic()

    def failed(self) -> list[str]:
        """The tasks that have failed and have not run for RECOVERY_SECONDS since."""
        recovered_before = monotonic() - RESTART_SECONDS - RECOVERY_SECONDS
        return sorted(task for task, at in self._failed_at.items() if at > recovered_before)

    def check(self) -> None:
        """Raises UnavailableError with the names of the tasks that have failed, if any."""
        if failed := self.failed():
            raise UnavailableError(
                f"A background task has failed: {', '.join(failed)}. It is restarted by itself; the service's log has "
                "the error. Restart the service if this lasts.",
                retry_after=RECOVERY_SECONDS,
            )


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
