"""Pusher: tells each listener with a callback what it has yet to apply, and asks the quiet ones whether they live.

A listener is a cursor: its task reads on from the revision that it has acknowledged, in one POST at a time, so that it
is told in order and at least once, and nothing is kept for it. Who is slow, dead or hostile has only its own task.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextvars import Context
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Final

import structlog

from app.listeners.entry import ListenerEntry
from app.listeners.registry import ListenerRegistry
from app.net.callback_policy import CallbackPolicy, PinnedTarget, PushError
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
EXPIRED_POLL_SECONDS: Final = 0.1
"""The time between two looks at a lease that has ended: it is about to lapse, unless another replica renewed it."""


class Pusher:
    """Belongs to the event loop. `sent` and `failed` count POSTs, `seconds` is told how long each took."""

    def __init__(
        self,
        registry: ListenerRegistry,
        feed: ChangeFeed,
        batches: BatchCache,
        barrier: ResourceManagerBarrier,
        callback_policy: CallbackPolicy,
        clock: Callable[[], int],
        heartbeat: float,
    ) -> None:
        self.sent = 0
        self.failed = 0
        self.on_duration: Callable[[float], None] = lambda _: None
        self._registry = registry
        self._feed = feed
        self._batches = batches
        self._barrier = barrier
        self._callback_policy = callback_policy
        self._clock = clock
        self._heartbeat = heartbeat
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._idle: dict[ListenerEntry, asyncio.Future[None]] = {}
        self._client: WebhookClient | None = None

    def on_registered(self, entry: ListenerEntry) -> None:
        """A listener has registered, or is now pushed to from here: its pushes begin, and those of before end."""
        if (before := self._tasks.pop(entry.id, None)) is not None:
            before.cancel()
        if self._registry.pushes_to(entry):
            # Not in the context of the request that registered it: its log lines are not that request's.
            task = self._tasks[entry.id] = asyncio.create_task(self._push_loop(entry), context=Context())
            task.add_done_callback(lambda done: self._on_task_done(entry.id, done))

    def wake(self) -> None:
        """The feed has more."""
        sleeping, self._idle = self._idle, {}
        for waiter in sleeping.values():
            if not waiter.done():
                waiter.set_result(None)

    async def close(self) -> None:
        """Push no more."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    def _on_task_done(self, listener_id: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(listener_id) is task:
            del self._tasks[listener_id]
        if not task.cancelled() and task.exception() is not None:
            log.error("pushing to a listener failed", listener=listener_id, exc_info=task.exception())

    async def _push_loop(self, entry: ListenerEntry) -> None:
        """Push until the listener's lease lapses, it leaves, registers anew, or is another replica's to push to."""
        failures = 0
        target: PinnedTarget | None = None
        while self._registry.pushes_to(entry):
            if not entry.listener.is_live(self._clock()):
                await asyncio.sleep(EXPIRED_POLL_SECONDS)
                continue
            if failures:
                await asyncio.sleep(BACKOFF.delay(failures, random.random()))  # noqa: S311 - jitter is no secret
            elif entry.has_applied(self._feed.revision):
                await self._wait(entry)
            try:
                target = target or await self._callback_policy.resolve(entry.listener.callback_url or "")
                await self._push(entry, target)
            except (BlocklistError, PushError) as error:
                failures = self._record_failure(entry, str(error), failures)
            except Exception:
                log.exception("a fault of ours in pushing", listener=entry.id)
                failures = self._record_failure(entry, "The service failed in pushing; see its log.", failures)
            else:
                failures = 0

    async def _wait(self, entry: ListenerEntry) -> None:
        """Until the feed has more, or the listener has been quiet for long enough."""
        waiter = asyncio.get_running_loop().create_future()
        self._idle[entry] = waiter
        # Spread: those who registered together are not asked together for ever.
        seconds = self._heartbeat * random.uniform(0.8, 1.0)  # noqa: S311
        timer = asyncio.get_running_loop().call_later(seconds, _complete, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._idle.pop(entry, None)

    async def _push(self, entry: ListenerEntry, target: PinnedTarget) -> None:
        listener, until = entry.listener, self._feed.revision
        if listener.role is ListenerRole.JOB_MASTER and listener.is_behind(until):
            await self._barrier.wait(until)
        batch = await self._batches.get(entry.listener.acked, until)
        history = self._feed.history
        if not self._registry.pushes_to(entry) or not entry.listener.is_live(self._clock()):
            return
        began = monotonic()
        answer = await self._post(entry, target, batch)
        self.on_duration(monotonic() - began)
        self.sent += 1
        report = answer.report
        if listener.role is not ListenerRole.JOB_MASTER:
            # Only they may give evidence; it is passed over, for the acknowledgement counts all the same.
            report = replace(report, evidence=None)
        # If the list has begun anew meanwhile, what it acknowledged says nothing any more.
        acked = batch.to_revision if history == self._feed.history else None
        self._registry.on_push_response(entry, acked, report, answer.error)

    async def _post(self, entry: ListenerEntry, target: PinnedTarget, batch: Batch) -> PushResponse:
        now, listener = self._clock(), entry.listener
        body = b'{"listenerId":"%b","sessionId":"%b",%b' % (listener.id.encode(), listener.session.encode(), batch.body)
        beat = f"-{now}" if batch.empty else ""
        message_id = f"{self._feed.history}-{listener.id}-{batch.from_revision}-{batch.to_revision}{beat}"
        if self._client is None:
            from app.push.webhook_client import WebhookClient  # noqa: PLC0415 - aiohttp is 10 MB that only pushes need

            self._client = WebhookClient()
        return await self._client.post(target, body, message_id, entry.secret.valid_secrets(now), now)

    def _record_failure(self, entry: ListenerEntry, why: str, failures: int) -> int:
        self.failed += 1
        if entry.error != why:
            log.warning("a push failed", listener=entry.id, reason=why)
        self._registry.record_push_error(entry, why)
        return failures + 1


def _complete(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
