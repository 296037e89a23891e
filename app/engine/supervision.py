"""Supervision: a background task that fails is started again, and `/readyz` reports it until it runs again."""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Final

import structlog

from app.logs.isolation import isolated
from blocklist.model.errors import UnavailableError

log = structlog.get_logger(__name__)

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
