"""Pusher: pushes to each listener with a callback what it has not applied, and an empty push after a quiet interval.

A listener is a cursor: its task reads from the revision that the listener acknowledged, and has one POST in flight at a
time. So changes arrive in order and at least once, and nothing is queued. A listener that is slow, dead or hostile
delays only its own task.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextvars import Context
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final

import structlog

from app.engine.supervision import supervise
from app.listeners.directory import ListenerDirectory
from app.listeners.entry import ListenerEntry
from app.listeners.heartbeats import HeartbeatRecorder
from app.listeners.ownership import PushOwnership
from app.logs.isolation import isolated
from app.net.callback_policy import CallbackPolicy, PinnedTarget, PushError, PushRejectedError
from app.push.batches import Batch, BatchCache
from app.push.resource_manager_barrier import ResourceManagerBarrier
from app.watch.change_feed import ChangeFeed
from blocklist.model.backoff import Backoff
from blocklist.model.errors import BlocklistError
from blocklist.model.listener import ListenerRole

if TYPE_CHECKING:
    from app.push.webhook_client import PushResponse, WebhookClient

log = structlog.get_logger(__name__)

BACKOFF: Final = Backoff(initial=0.2, cap=10.0)
NOT_DELIVERED: Final = (
    "The listener could not be reached, or did not respond with a 2xx status; the log of the service has the reason."
)
IGNORED_REPORT: Final = (
    "The report in the listener's response is not valid and was ignored; the log of the service has the reason."
)
EXPIRED_POLL_SECONDS: Final = 0.1
"""Interval at which a lease that has ended is checked: it expires soon, unless another replica has renewed it."""


class Pusher:
    """Belongs to the event loop.

    `sent` and `failed` count POSTs, `restarts` the tasks that failed. `on_duration` is called with the duration of each
    POST that succeeded, in seconds. A listener that has applied everything gets an empty push every
    `heartbeat_seconds`.
    """

    def __init__(
        self,
        directory: ListenerDirectory,
        ownership: PushOwnership,
        heartbeats: HeartbeatRecorder,
        feed: ChangeFeed,
        batches: BatchCache,
        barrier: ResourceManagerBarrier,
        callback_policy: CallbackPolicy,
        clock: Callable[[], int],
        *,
        heartbeat_seconds: float,
        on_duration: Callable[[float], None],
    ) -> None:
        self.sent = 0
        self.failed = 0
        self.restarts = 0
        self._directory = directory
        self._ownership = ownership
        self._heartbeats = heartbeats
        self._feed = feed
        self._batches = batches
        self._barrier = barrier
        self._callback_policy = callback_policy
        self._clock = clock
        self._heartbeat_seconds = heartbeat_seconds
        self._on_duration = on_duration
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._idle: dict[ListenerEntry, asyncio.Future[None]] = {}
        self._client: WebhookClient | None = None
        feed.streams.add(self)

    def on_registered(self, entry: ListenerEntry) -> None:
        """Start to push if this replica owns the listener; end the pushes of its earlier registration."""
        if (before := self._tasks.pop(entry.id, None)) is not None:
            before.cancel()
        if self._is_responsible(entry):
            # An empty context: log lines of the task do not belong to the request that registered the listener.
            pushing = supervise(f"pushes to {entry.id}", partial(self._push_loop, entry), self._count_restart)
            task = self._tasks[entry.id] = asyncio.create_task(pushing, context=Context())
            task.add_done_callback(lambda done: self._on_task_done(entry.id, done))

    def wake(self) -> None:
        """The feed has more changes."""
        idle, self._idle = self._idle, {}
        for waiter in idle.values():
            _complete(waiter)

    async def close(self) -> None:
        """End all pushes."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    def _is_responsible(self, entry: ListenerEntry) -> bool:
        """Whether the listener wants pushes, and this replica is the one that pushes to it."""
        pushed = entry.listener.callback_url is not None
        return pushed and self._directory.is_current(entry) and self._ownership.owns(entry.owner)

    def _on_task_done(self, listener_id: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(listener_id) is task:
            del self._tasks[listener_id]

    def _count_restart(self, _: str) -> None:
        self.restarts += 1

    async def _push_loop(self, entry: ListenerEntry) -> None:
        """Push until the listener expires, is removed, registers again, or belongs to another replica."""
        failures = 0
        target: PinnedTarget | None = None
        while self._is_responsible(entry):
            if not entry.is_live(self._clock()):
                await asyncio.sleep(EXPIRED_POLL_SECONDS)
                continue
            if failures:
                await asyncio.sleep(BACKOFF.delay(failures, random.random()))  # noqa: S311 - jitter is no secret
            elif entry.has_acked(self._feed.revision):
                await self._wait(entry)
            try:
                target = target or await self._callback_policy.resolve(entry.listener.callback_url or "")
                await self._push(entry, target)
            except (BlocklistError, PushError) as error:
                failures = self._record_failure(entry, str(error), _shown_error(error, target), failures)
            except Exception:
                log.exception("push failed because of a bug in the service", listener=entry.id)
                reason = "Internal error in the service; see its log."
                failures = self._record_failure(entry, reason, reason, failures)
            else:
                failures = 0

    async def _wait(self, entry: ListenerEntry) -> None:
        """Wait for changes, at most until the next empty push is due."""
        waiter = asyncio.get_running_loop().create_future()
        self._idle[entry] = waiter
        # Jitter: listeners that registered together do not get their empty pushes together for ever.
        seconds = self._heartbeat_seconds * random.uniform(0.8, 1.0)  # noqa: S311
        timer = asyncio.get_running_loop().call_later(seconds, _complete, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._idle.pop(entry, None)

    async def _push(self, entry: ListenerEntry, target: PinnedTarget) -> None:
        listener, history, until = entry.listener, self._feed.history, self._feed.revision
        if listener.role is ListenerRole.JOB_MASTER and listener.is_behind(until):
            await self._barrier.wait(history, until)
            if history != self._feed.history:
                return
        batch = await self._batches.get(entry.listener.acked, until)
        if not self._is_responsible(entry) or not entry.is_live(self._clock()):
            return
        started_at = monotonic()
        response = await self._post(entry, target, batch)
        with isolated("metrics of pushes"):
            self._on_duration(monotonic() - started_at)
        self.sent += 1
        report = response.report
        if listener.role is not ListenerRole.JOB_MASTER:
            # Only JobMasters may give evidence. Dropped instead of refused: the acknowledgement counts.
            report = replace(report, evidence=None)
        # If the list was reloaded meanwhile, the acknowledged revision is of another history.
        acked = batch.to_revision if batch.history == self._feed.history else None
        if response.error is not None:
            _log_error("report in a push response ignored", entry, response.error)
        entry.logged_error = response.error
        error = response.error if response.error is None or target.named else IGNORED_REPORT
        self._heartbeats.record_push_response(entry, acked, report, error)

    async def _post(self, entry: ListenerEntry, target: PinnedTarget, batch: Batch) -> PushResponse:
        now, listener = self._clock(), entry.listener
        body = b'{"listenerId":"%b","sessionId":"%b",%b' % (listener.id.encode(), listener.session.encode(), batch.body)
        # An empty push has no revisions of its own: the time makes its id unique.
        suffix = f"-{now}" if batch.empty else ""
        message_id = f"{batch.history}-{listener.id}-{batch.from_revision}-{batch.to_revision}{suffix}"
        if self._client is None:
            from app.push.webhook_client import WebhookClient  # noqa: PLC0415 - aiohttp is 10 MB that only pushes need

            self._client = WebhookClient()
        return await self._client.post(target, body, message_id, entry.secret.valid_secrets(now), now)

    def _record_failure(self, entry: ListenerEntry, reason: str, shown: str, failures: int) -> int:
        self.failed += 1
        _log_error("push failed", entry, reason)
        entry.logged_error = reason
        self._heartbeats.record_push_error(entry, shown)
        return failures + 1


def _shown_error(error: Exception, target: PinnedTarget | None) -> str:
    """What callers see: whoever registers a callback must not learn what answers at an address."""
    rejected_by_named = isinstance(error, PushRejectedError) and target is not None and target.named
    return str(error) if isinstance(error, BlocklistError) or rejected_by_named else NOT_DELIVERED


def _log_error(event: str, entry: ListenerEntry, reason: str) -> None:
    """Log a reason, unless it is that of the push before."""
    if entry.logged_error != reason:
        log.warning(event, listener=entry.id, reason=reason)


def _complete(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
