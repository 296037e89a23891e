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

from app.listeners.member import Member
from app.listeners.registry import Registry
from app.net.callback_policy import AllowedHosts, PushError, Target
from app.push.batches import Batch, Batches
from app.push.resource_manager_barrier import ManagersFirst
from app.watch.change_feed import ChangeFeed
from blocklist.model.backoff import Backoff
from blocklist.model.errors import BlocklistError
from blocklist.model.listener import Role

if TYPE_CHECKING:
    from app.push.webhook_client import Answer, Sender

log = structlog.get_logger(__name__)

BACKOFF: Final = Backoff(first=0.2, cap=10.0)
ENDED_SECONDS: Final = 0.1
"""The time between two looks at a lease that has ended: it is about to lapse, unless another replica renewed it."""


class Pusher:
    """Belongs to the event loop. `sent` and `failed` count POSTs, `seconds` is told how long each took."""

    def __init__(
        self,
        registry: Registry,
        feed: ChangeFeed,
        batches: Batches,
        gate: ManagersFirst,
        allowed: AllowedHosts,
        clock: Callable[[], int],
        heartbeat: float,
    ) -> None:
        self.sent = 0
        self.failed = 0
        self.seconds: Callable[[float], None] = lambda _: None
        self._registry = registry
        self._feed = feed
        self._batches = batches
        self._gate = gate
        self._allowed = allowed
        self._clock = clock
        self._heartbeat = heartbeat
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._sleeping: dict[Member, asyncio.Future[None]] = {}
        self._sender: Sender | None = None

    def came(self, member: Member) -> None:
        """A listener has registered, or is now pushed to from here: its pushes begin, and those of before end."""
        if (before := self._tasks.pop(member.id, None)) is not None:
            before.cancel()
        if self._registry.pushes_to(member):
            # Not in the context of the request that registered it: its log lines are not that request's.
            task = self._tasks[member.id] = asyncio.create_task(self._serve(member), context=Context())
            task.add_done_callback(lambda done: self._ended(member.id, done))

    def offer(self) -> None:
        """The feed has more."""
        sleeping, self._sleeping = self._sleeping, {}
        for waiter in sleeping.values():
            if not waiter.done():
                waiter.set_result(None)

    async def close(self) -> None:
        """Push no more."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._sender is not None:
            await self._sender.close()

    def _ended(self, listener_id: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(listener_id) is task:
            del self._tasks[listener_id]
        if not task.cancelled() and task.exception() is not None:
            log.error("pushing to a listener failed", listener=listener_id, exc_info=task.exception())

    async def _serve(self, member: Member) -> None:
        """Push until the listener's lease lapses, it leaves, registers anew, or is another replica's to push to."""
        failures = 0
        target: Target | None = None
        while self._registry.pushes_to(member):
            if not member.listener.live(self._clock()):
                await asyncio.sleep(ENDED_SECONDS)
                continue
            if failures:
                await asyncio.sleep(BACKOFF.delay(failures, random.random()))  # noqa: S311 - jitter is no secret
            elif member.applied(self._feed.revision):
                await self._sleep(member)
            try:
                target = target or await self._allowed.pin(member.listener.callback_url or "")
                await self._push(member, target)
            except (BlocklistError, PushError) as error:
                failures = self._failure(member, str(error), failures)
            except Exception:
                log.exception("a fault of ours in pushing", listener=member.id)
                failures = self._failure(member, "The service failed in pushing; see its log.", failures)
            else:
                failures = 0

    async def _sleep(self, member: Member) -> None:
        """Until the feed has more, or the listener has been quiet for long enough."""
        waiter = asyncio.get_running_loop().create_future()
        self._sleeping[member] = waiter
        # Spread: those who registered together are not asked together for ever.
        seconds = self._heartbeat * random.uniform(0.8, 1.0)  # noqa: S311
        timer = asyncio.get_running_loop().call_later(seconds, _wake, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._sleeping.pop(member, None)

    async def _push(self, member: Member, target: Target) -> None:
        listener, until = member.listener, self._feed.revision
        if listener.role is Role.JOB_MASTER and listener.behind(until):
            await self._gate.passed(until)
        batch = await self._batches.get(member.listener.acked, until)
        history = self._feed.history
        if not self._registry.pushes_to(member) or not member.listener.live(self._clock()):
            return
        began = monotonic()
        answer = await self._post(member, target, batch)
        self.seconds(monotonic() - began)
        self.sent += 1
        report = answer.report
        if listener.role is not Role.JOB_MASTER:
            # Only they may give evidence; it is passed over, for the acknowledgement counts all the same.
            report = replace(report, evidence=None)
        # If the list has begun anew meanwhile, what it acknowledged says nothing any more.
        acked = batch.until if history == self._feed.history else None
        self._registry.answered(member, acked, report, answer.error)

    async def _post(self, member: Member, target: Target, batch: Batch) -> Answer:
        now, listener = self._clock(), member.listener
        body = b'{"listenerId":"%b","sessionId":"%b",%b' % (listener.id.encode(), listener.session.encode(), batch.body)
        beat = f"-{now}" if batch.empty else ""
        message_id = f"{self._feed.history}-{listener.id}-{batch.since}-{batch.until}{beat}"
        if self._sender is None:
            from app.push.webhook_client import Sender  # noqa: PLC0415 - aiohttp is 10 MB that only pushes need

            self._sender = Sender()
        return await self._sender.post(target, body, message_id, member.secret.valid(now), now)

    def _failure(self, member: Member, why: str, failures: int) -> int:
        self.failed += 1
        if member.error != why:
            log.warning("a push failed", listener=member.id, reason=why)
        self._registry.told_of(member, why)
        return failures + 1


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
