"""Watches and waiting requests: the change feed, from which each watch reads at its own cursor, and event streams."""

from __future__ import annotations

import asyncio
import random
import re
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol
from weakref import WeakValueDictionary

from fastapi import FastAPI
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.engine.list_view import ListView
from app.logs import isolated
from app.store.store import Store
from app.store.tables import UnreadableRowError, log_once
from blocklist.model.changes import Change
from blocklist.model.errors import InvalidError, UnavailableError
from blocklist.model.node import ALL_LISTENERS, AppliedBy
from blocklist.wire.body import dump_json
from blocklist.wire.changes import change_body, dump_snapshot

# StreamQuota: limits the number of watches and waiting requests per client.

RETRY_SECONDS: Final = 5


class ClientKey(NamedTuple):
    """Identifies a client by its name and address."""

    name: str | None
    address: str


class ClientSlots:
    """The open streams of one client. Enter it as a context manager once per stream, while that is open."""

    __slots__ = ("__weakref__", "open")

    def __init__(self) -> None:
        self.open = 0

    def __enter__(self) -> None:
        self.open += 1

    def __exit__(self, *_: object) -> None:
        self.open -= 1


class StreamQuota:
    """The slots of all clients; those of a client are dropped with its last request."""

    def __init__(self, max_open: int) -> None:
        self._max_open = max_open
        self._slots: WeakValueDictionary[ClientKey, ClientSlots] = WeakValueDictionary()

    def slots_of(self, client: ClientKey) -> ClientSlots:
        """The client's slots. Raises UnavailableError if all are in use."""
        slots = self._slots.get(client)
        if slots is None:
            slots = self._slots[client] = ClientSlots()
        if slots.open >= self._max_open:
            raise UnavailableError(
                f"This client has {slots.open} watches and waiting requests open; the limit is {self._max_open}.",
                retry_after=RETRY_SECONDS,
            )
        return slots


MAX_RECENT_CHANGES: Final = 4096
"""Number of changes kept in memory; a cursor further behind reads from the database."""
PAGE_CHANGES: Final = 250
"""Number of changes read from the database at once: limits the cost of a watch that is far behind."""
CHUNK_BYTES: Final = 64 * 1024
"""Maximum size of what is rendered and sent at once, unless one event is larger: limits the memory of a slow watch."""
STREAMS_PER_TURN: Final = 250
"""Number of streams woken before the event loop runs other tasks."""


class WaitingStream(Protocol):
    """A stream that is up to date and waits for changes."""

    def wake(self) -> None: ...


class ChangeFeed:
    """The recent changes, rendered on demand and once for all streams at the same cursor.

    Nothing is queued per stream: a slow one is a cursor that is behind. `streams` are woken when there are changes.
    Belongs to the event loop.
    """

    def __init__(self, store: Store, view: ListView) -> None:
        self.revision = view.tracker.revision
        self.history = view.tracker.history
        self.closed = False
        self.open_watches = 0
        self.streams: set[WaitingStream] = set()
        self._store = store
        self._view = view
        self._recent: deque[Change] = deque(maxlen=MAX_RECENT_CHANGES)
        self._events_cache: tuple[int, int, bytes, int] = (-1, -1, b"", -1)
        self._snapshot_cache: tuple[int, int, list[bytes]] = (0, -1, [])

    def publish(self, changes: Sequence[Change]) -> None:
        self._recent.extend(changes)
        self.revision = changes[-1].revision
        if self.streams:
            # Later: the requests that made the changes get their responses before a thousand streams are woken.
            asyncio.get_running_loop().call_soon(self._wake_streams)

    def reset(self) -> None:
        """The list was reloaded. Streams of another history end; their clients reconnect and get a snapshot."""
        self.revision, self.history = self._view.tracker.revision, self._view.tracker.history
        self._recent.clear()
        self._events_cache = (-1, -1, b"", -1)
        self._snapshot_cache = (0, -1, [])
        asyncio.get_running_loop().call_soon(self._wake_streams)

    def close(self) -> None:
        """The service stops: streams end with a `bye` event."""
        self.closed = True
        self._wake_streams()

    async def read(self, cursor: int) -> tuple[bytes, int] | None:
        """Events after `cursor`, and the cursor after them; None if they are no longer in the log.

        Raises UnavailableError if they are only in the database, and that is unavailable.
        """
        if (recent := self.recent_events(cursor)) is not None:
            return recent
        history = self.history
        changes = await self._stored(cursor, PAGE_CHANGES)
        if not changes or history != self.history or changes[0].revision != cursor + 1:
            return None
        return self._events(changes)

    async def changes(self, cursor: int, end: int) -> list[Change] | None:
        """The changes after `cursor` up to `end`; None if they are no longer in the log, or too many.

        Raises UnavailableError if they are only in the database, and that is unavailable.
        """
        first = self.revision - len(self._recent)
        if cursor >= first:
            return list(islice(self._recent, cursor - first, end - first))
        if end - cursor > MAX_RECENT_CHANGES:
            return None
        changes = await self._stored(cursor, end - cursor)
        return changes if changes and changes[0].revision == cursor + 1 else None

    async def was_never_issued(self, revision: int) -> bool:
        """Whether a revision ahead of this replica does not exist; False if it cannot be known."""
        try:
            return not await self._store.changes(revision - 1, 1)
        except UnavailableError:
            return False

    def timestamp_of(self, revision: int) -> int | None:
        """When a revision was committed (Unix ms); None if it is not in memory."""
        first = self.revision - len(self._recent)
        return self._recent[revision - first - 1].at if first < revision <= self.revision else None

    def recent_events(self, cursor: int) -> tuple[bytes, int] | None:
        """Events after `cursor`, and the cursor after them; None if they are not in memory."""
        first = self.revision - len(self._recent)
        if cursor < first:
            return None
        if cursor >= self.revision:
            return b"", cursor
        if self._events_cache[:2] != (cursor, self.revision):
            self._events_cache = (cursor, self.revision, *self._events(islice(self._recent, cursor - first, None)))
        return self._events_cache[2:]

    def snapshot(self) -> tuple[list[bytes], int]:
        """The whole list as an event in chunks, and the cursor after it; rendered once per state of the list."""
        until, revision, event = self._snapshot_cache
        if revision != self.revision or until <= self._view.clock():
            until, snapshot = self._view.snapshot()
            revision = snapshot.revision
            event = list(_chunks(sse_parts("snapshot", dump_snapshot(snapshot), f"{revision}-{self.history}")))
            self._snapshot_cache = (until, revision, event)
        return event, revision

    async def _stored(self, cursor: int, limit: int) -> list[Change]:
        """Changes in the database; none if one of them cannot be read, as if they had been compacted."""
        try:
            return await self._store.changes(cursor, limit)
        except UnreadableRowError as error:
            log_once(error.detail)
            return []

    def _wake_streams(self, streams: Sequence[WaitingStream] = ()) -> None:
        streams = streams or tuple(self.streams)
        isolated_stream = isolated("stream")
        for stream in streams[:STREAMS_PER_TURN]:
            with isolated_stream:
                stream.wake()
        if len(streams) > STREAMS_PER_TURN:
            asyncio.get_running_loop().call_soon(self._wake_streams, streams[STREAMS_PER_TURN:])

    def _events(self, changes: Iterable[Change]) -> tuple[bytes, int]:
        """The events of as many of these changes as fit into a chunk, and the cursor after them."""
        events: list[bytes] = []
        size = cursor = 0
        for change in changes:
            event = sse(change.type.value, dump_json(change_body(change)), f"{change.revision}-{self.history}")
            size += len(event)
            if events and size > CHUNK_BYTES:
                break
            events.append(event)
            cursor = change.revision
        return b"".join(events), cursor


def sse(event: str, data: bytes, event_id: str | None = None) -> bytes:
    """A server-sent event; the data must be one line, such as compact JSON."""
    return b"".join(sse_parts(event, (data,), event_id))


def sse_parts(event: str, data: Iterable[bytes], event_id: str | None = None) -> Iterator[bytes]:
    """The same, in parts, from data in parts."""
    identity = f"id: {event_id}\n" if event_id is not None else ""
    yield b"%bevent: %b\ndata: " % (identity.encode(), event.encode())
    yield from data
    yield b"\n\n"


def _chunks(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The parts, joined to chunks of at most CHUNK_BYTES."""
    chunk: list[bytes] = []
    size = 0
    for part in parts:
        if size + len(part) > CHUNK_BYTES:
            yield b"".join(chunk)
            chunk, size = [], 0
        chunk.append(part)
        size += len(part)
    yield b"".join(chunk)


# EventStream: the response to a watch, a stream of server-sent events from a cursor.

KEEPALIVE_SECONDS: Final = 15.0
"""Interval of `ping` events: they keep proxies from closing the connection, detect clients that are gone, and show a
client that the service still works. A comment would not do: browsers hide comments from pages."""
CATCH_UP_SECONDS: Final = 2.0
"""Time that a cursor ahead of this replica waits for it; then the database is asked whether the revision exists."""
DIRECT: Final = "blocklist.direct"
"""ASGI extension with a key `write`, a Write: the server lets a stream write to its connection directly."""
_CURSOR: Final = re.compile(r"([0-9]{1,16})(?:-([0-9a-f]{8}))?", re.ASCII)


Write = Callable[[bytes], bool]
"""Writes a part of the body at once; False, with nothing written, if earlier data is unread or the client gone."""


def parse_cursor(text: str, history: str) -> int | None:
    """The revision of `<revision>-<history>` or a bare revision; None if it is of another history.

    Raises InvalidError for anything else.
    """
    match = _CURSOR.fullmatch(text)
    if match is None or int(match[1]) > 2**53:
        raise InvalidError("since: give a revision, or <revision>-<history> as in the id of an event.")
    return int(match[1]) if match[2] in (None, history) else None


class EventStream:
    """Lasts until the client disconnects or the service stops.

    `cursor` is the revision after which to start; None starts with a snapshot. A stream that is up to date waits in the
    feed, which wakes it for new changes: mostly `write` sends them to the connection, and the task need not run.
    """

    def __init__(
        self, view: ListView, feed: ChangeFeed, cursor: int | None, write: Write | None, slots: ClientSlots
    ) -> None:
        self._view = view
        self._feed = feed
        self._start_cursor = cursor
        self._cursor = 0
        self._write = write
        self._slots = slots
        self._history = feed.history
        self._waiter: asyncio.Future[None] | None = None
        self._keepalive_due = True
        self._ended = False
        self._keepalive_timer: asyncio.TimerHandle

    async def run(self, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _headers(self._feed)})
        self._feed.open_watches += 1
        try:
            with self._slots:
                await run_until_disconnect(receive, self._stream(send))
        finally:
            self._feed.open_watches -= 1

    def wake(self) -> None:
        """Send new changes, or end because the service stops. Does nothing unless the stream waits."""
        if self._waiter is None or self._waiter.done():
            return
        events = self._feed.recent_events(self._cursor)
        if self._is_over or self._keepalive_due or events is None or not self._try_write(events[0]):
            self._waiter.set_result(None)
            return
        self._cursor = events[1]
        if self._cursor < self._feed.revision:
            self._waiter.set_result(None)

    def close(self) -> None:
        """Send `bye` and nothing more: the credential of the request has ended."""
        self._ended = True
        self._resume()

    def _resume(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def _is_over(self) -> bool:
        return self._ended or self._feed.closed or self._history != self._feed.history

    def _try_write(self, events: bytes) -> bool:
        return not events or (self._write is not None and len(events) <= CHUNK_BYTES and self._write(events))

    async def _stream(self, send: Send) -> None:
        self._start_keepalive_timer()
        try:
            await self._send_events(send)
        finally:
            self._keepalive_timer.cancel()
        bye = sse("bye", b'{"revision":%d}' % self._cursor)
        # Jitter: the clients of a stopped service do not all reconnect at once.
        retry = b"retry: %d\n" % random.randint(500, 3000)  # noqa: S311
        await send({"type": "http.response.body", "body": retry + bye, "more_body": False})

    async def _send_events(self, send: Send) -> None:
        """Send all changes, until the service stops or the stream is closed."""
        self._keepalive_due = False
        await _send(send, b": watching\n\n")
        await self._start(send)
        while not self._ended and self._history == self._feed.history:
            if self._keepalive_due:
                await self._send_keepalive(send)
            elif self._cursor < self._feed.revision:
                await self._catch_up(send)
            elif self._feed.closed:
                return
            else:
                await self._wait()

    def _start_keepalive_timer(self) -> None:
        # One timer per stream, so that the pings of thousands of streams are spread over the interval.
        self._keepalive_due = True
        self._keepalive_timer = asyncio.get_running_loop().call_later(KEEPALIVE_SECONDS, self._start_keepalive_timer)
        self._resume()

    async def _send_keepalive(self, send: Send) -> None:
        self._keepalive_due = False
        await _send(send, sse("ping", b"{}"))

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        self._feed.streams.add(self)
        try:
            await self._waiter
        finally:
            self._feed.streams.discard(self)

    async def _start(self, send: Send) -> None:
        cursor = self._start_cursor
        # Another replica may be ahead of this one. A revision that does not exist either was lost with a failover.
        while cursor is not None and cursor > self._feed.revision and not self._is_over:
            if self._keepalive_due:
                await self._send_keepalive(send)
            if not await self._wait_for_revision(cursor) and await self._feed.was_never_issued(cursor):
                cursor = None
        if cursor is None:
            await self._send_snapshot(send)
        else:
            self._cursor = cursor

    async def _wait_for_revision(self, revision: int) -> bool:
        return await self._view.changed.wait_for(
            lambda: self._feed.revision >= revision or self._is_over, CATCH_UP_SECONDS
        )

    async def _catch_up(self, send: Send) -> None:
        try:
            events = await self._feed.read(self._cursor)
        except UnavailableError:
            # Retry from the same cursor once the database is available.
            await asyncio.sleep(1)
            return
        if events is None:
            await self._send_snapshot(send)
        else:
            await _send(send, events[0])
            self._cursor = events[1]

    async def _send_snapshot(self, send: Send) -> None:
        event, self._cursor = self._feed.snapshot()
        for chunk in event:
            await _send(send, chunk)


def _headers(feed: ChangeFeed) -> list[tuple[bytes, bytes]]:
    return [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache, no-transform"),  # compressed, an event may wait in a proxy for the next one
        (b"x-accel-buffering", b"no"),
        (b"blocklist-revision", b"%d" % feed.revision),
        (b"blocklist-history", feed.history.encode()),
    ]


async def _send(send: Send, body: bytes) -> None:
    for start in range(0, len(body), CHUNK_BYTES):
        await send({"type": "http.response.body", "body": body[start : start + CHUNK_BYTES], "more_body": True})


# Streams run outside the routes that start them.
#
# FastAPI and Starlette keep a dozen frames and three exit stacks for each request until it ends: 10 MB for a thousand
# watches that last for hours. So the response of a route only stores the stream in the scope, and the application
# runs it after the route has returned.

_STREAM: Final = "blocklist.stream"
_KEPT_KEYS: Final = frozenset(("type", "method", "path"))
"""Keys of a scope that the server still reads; the others are dropped to free memory."""


class DeferredStream(Protocol):
    """Sends the whole response to a request."""

    async def run(self, receive: Receive, send: Send) -> None: ...


class StreamResponse(Response):
    def __init__(self, stream: DeferredStream) -> None:
        super().__init__()
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        scope[_STREAM] = self._stream


class StreamingApp(FastAPI):
    """A FastAPI application that runs the streams that its routes start."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.run_routes(scope, receive, send)
        await run_stream(scope, receive, send)

    async def run_routes(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request in FastAPI; a stream is only stored in the scope."""
        await super().__call__(scope, receive, send)


async def run_stream(scope: Scope, receive: Receive, send: Send) -> None:
    """Run the stream that a route has stored in the scope, if any."""
    stream: DeferredStream | None = scope.get(_STREAM)
    if stream is not None:
        for key in scope.keys() - _KEPT_KEYS:
            del scope[key]
        await stream.run(receive, send)


# Stops work for a client that has disconnected.


async def run_until_disconnect(receive: Receive, work: Coroutine[Any, Any, object]) -> None:
    """Await `work`; cancel it when the client disconnects. ASGI servers report that only through `receive`."""
    task = asyncio.current_task()
    assert task is not None
    watcher = asyncio.create_task(_cancel_on_disconnect(receive, task))
    try:
        await work
    except asyncio.CancelledError:
        if not watcher.done():
            raise
        task.uncancel()
    finally:
        watcher.cancel()


async def _cancel_on_disconnect(receive: Receive, task: asyncio.Task[Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    task.cancel()


# The Prefer header (RFC 7240). Pure.

MAX_WAIT: Final = 60
"""Maximum of `Prefer: wait=N`, in seconds."""
_WAIT: Final = re.compile(r'wait\s*=\s*(?:"([0-9]{1,99})"|([0-9]{1,99}))', re.ASCII | re.IGNORECASE)


def wait_seconds(prefer: Iterable[str]) -> int | None:
    """N of the first valid `wait=N` in Prefer headers, at most MAX_WAIT; None if there is none."""
    for preference in ",".join(prefer).split(","):
        if match := _WAIT.fullmatch(preference.partition(";")[0].strip()):
            return min(int(match[1] or match[2]), MAX_WAIT)
    return None


def applied_by(prefer: Iterable[str]) -> AppliedBy:
    """The first valid `applied-by=95%` or `applied-by=managers` in Prefer headers; all listeners if there is none."""
    for preference in ",".join(prefer).split(","):
        name, _, value = preference.partition(";")[0].partition("=")
        if name.strip().lower() == "applied-by":
            with suppress(ValueError):
                return AppliedBy.parse(value.strip().strip('"'))
    return ALL_LISTENERS
