"""Pushes: a task for each listener with a callback, and what all of them share."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final

import structlog

from app.engine.background import supervise
from app.engine.list_view import ListView
from app.listeners.operations import HeartbeatRecorder
from app.listeners.replication import PushOwnership
from app.listeners.state import ListenerDirectory, ListenerEntry
from app.logs import isolated
from app.net.addresses import CallbackPolicy, PinnedTarget, PushError, PushRejectedError
from app.watch import ChangeFeed
from blocklist.model.errors import BlocklistError
from blocklist.model.listener import ListenerRole
from blocklist.model.node import Backoff
from blocklist.wire.body import Json, dump_json
from blocklist.wire.changes import changes_batch, empty_batch, snapshot_batch

if TYPE_CHECKING:
    from app.listeners.webhook_client import PushResponse, WebhookClient

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """`body` is the JSON after the listener's own fields, to the closing brace; `empty` is a push without changes.

    Its revisions belong to `history`.
    """

    from_revision: int
    to_revision: int
    history: str
    empty: bool
    body: bytes


class BatchCache:
    """The body of a push, rendered once for all listeners at the same cursor. Belongs to the event loop.

    Keeps the last batch of changes and the last snapshot.
    """

    def __init__(self, feed: ChangeFeed, view: ListView) -> None:
        self._feed = feed
        self._view = view
        self._changes_cache: tuple[tuple[str, int, int], Batch] | None = None
        self._snapshot_cache: tuple[int, Batch] | None = None

    async def get(self, acked: int | None, until: int) -> Batch:
        """All changes after `acked` up to `until`; the whole list if `acked` is None or no longer in the log.

        Raises UnavailableError if the changes are only in the database, and that is unavailable.
        """
        if acked is None:
            return self._snapshot(0)
        history = self._feed.history
        if self._changes_cache is not None and self._changes_cache[0] == (history, acked, until):
            return self._changes_cache[1]
        if acked >= until:
            return _batch(acked, empty_batch(acked, history), empty=True)
        changes = await self._feed.changes(acked, until)
        if changes is None or history != self._feed.history:
            return self._snapshot(acked)
        batch = _batch(acked, changes_batch(changes, history), empty=False)
        self._changes_cache = ((history, acked, until), batch)
        return batch

    def _snapshot(self, from_revision: int) -> Batch:
        if self._snapshot_cache is not None:
            valid_until, batch = self._snapshot_cache
            current = (batch.history, batch.to_revision) == (self._feed.history, self._feed.revision)
            if current and self._view.clock() < valid_until:
                return _from_revision(batch, from_revision)
        valid_until, snapshot = self._view.snapshot()
        batch = _batch(from_revision, snapshot_batch(snapshot), empty=False)
        self._snapshot_cache = (valid_until, batch)
        return batch


def _batch(from_revision: int, fields: Json, *, empty: bool) -> Batch:
    # `fromRevision` is first: `_from_revision` replaces it.
    body = dump_json({"fromRevision": from_revision, **fields})[1:]
    return Batch(
        from_revision=from_revision,
        to_revision=fields["toRevision"],
        history=fields["history"],
        empty=empty,
        body=body,
    )


def _from_revision(batch: Batch, revision: int) -> Batch:
    """The same batch for a listener with another cursor."""
    if batch.from_revision == revision:
        return batch
    rest = batch.body[batch.body.index(b",") :]
    return replace(batch, from_revision=revision, body=b'"fromRevision":%d%b' % (revision, rest))


MAX_WAIT_SECONDS: Final = 1.0
"""For each revision: a ResourceManager that hangs must not keep jobs on a blocked node."""


class ResourceManagerBarrier:
    """A JobMaster gets a revision once every live ResourceManager has applied it, or after MAX_WAIT_SECONDS.

    FLIP-224, Blocklist synchronisation: otherwise a job could request slots and be given some on the node just blocked.
    All waiters for a revision share one task. Belongs to the event loop.
    """

    def __init__(self, directory: ListenerDirectory) -> None:
        self._directory = directory
        self._waits: dict[tuple[str, int], asyncio.Task[None]] = {}

    async def wait(self, history: str, revision: int) -> None:
        """Return when JobMasters may get `revision` of the current history."""
        if self._directory.resource_managers_applied(revision):
            return
        task = self._waits.get((history, revision))
        if task is None:
            task = self._waits[history, revision] = asyncio.create_task(self._wait_for_acks(history, revision))
        await asyncio.shield(task)

    async def _wait_for_acks(self, history: str, revision: int) -> None:
        directory = self._directory
        try:
            await directory.acks.wait_for(lambda: directory.resource_managers_applied(revision), MAX_WAIT_SECONDS)
        finally:
            # Kept for a while: a JobMaster that comes to this revision late does not wait again.
            asyncio.get_running_loop().call_later(MAX_WAIT_SECONDS + 1, self._waits.pop, (history, revision), None)


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
    """Pushes to each listener with a callback what it has not applied. Belongs to the event loop.

    A listener is a cursor: its task reads from the revision that the listener acknowledged, and has one POST in flight
    at a time. So changes arrive in order and at least once, and nothing is queued. A listener that is slow, dead or
    hostile delays only its own task.

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
        view: ListView,
        callback_policy: CallbackPolicy,
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
        self._batches = BatchCache(feed, view)
        self._barrier = ResourceManagerBarrier(directory)
        self._callback_policy = callback_policy
        self._clock = view.clock
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
        idle, self._idle = self._idle, {}
        for waiter in idle.values():
            _complete(waiter)

    async def close(self) -> None:
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
                target = await self._allowed_target(entry, target)
                await self._push(entry, target)
            except (BlocklistError, PushError) as error:
                failures = self._record_failure(entry, str(error), _shown_error(error, target), failures)
            except Exception:
                log.exception("push failed because of a bug in the service", listener=entry.id)
                reason = "Internal error in the service; see its log."
                failures = self._record_failure(entry, reason, reason, failures)
            else:
                failures = 0

    async def _allowed_target(self, entry: ListenerEntry, target: PinnedTarget | None) -> PinnedTarget:
        """The target, if it is still allowed; otherwise a new one. Raises InvalidError, UnavailableError."""
        if target is not None and self._callback_policy.allows(target):
            return target
        listener = entry.listener
        return await self._callback_policy.resolve(listener.callback_url or "", listener.principal)

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
        # What only the other role may report is dropped instead of refused: the acknowledgement counts.
        report = response.report.of_role(listener.role)
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
            from app.listeners.webhook_client import WebhookClient  # noqa: PLC0415 - aiohttp is 10 MB that only pushes need

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
