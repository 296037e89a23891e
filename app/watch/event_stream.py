"""EventStream: the response to a watch, a stream of server-sent events from a cursor."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable
from typing import Final

from starlette.types import Receive, Send

from app.engine.list_view import ListView
from app.watch.change_feed import CHUNK_BYTES, ChangeFeed, sse
from app.watch.stream_quota import ClientSlots
from app.watch.streaming import run_until_disconnect
from blocklist.model.errors import InvalidError, UnavailableError

KEEPALIVE_SECONDS: Final = 15.0
"""Interval of comments, which keep proxies from closing the connection and detect clients that are gone."""
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
        await self._send_keepalive(send)
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
        # One timer per stream, so that the comments of thousands of streams are spread over the interval.
        self._keepalive_due = True
        self._keepalive_timer = asyncio.get_running_loop().call_later(KEEPALIVE_SECONDS, self._start_keepalive_timer)
        self._resume()

    async def _send_keepalive(self, send: Send) -> None:
        self._keepalive_due = False
        await _send(send, b": watching\n\n")

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
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
        (b"blocklist-revision", b"%d" % feed.revision),
        (b"blocklist-history", feed.history.encode()),
    ]


async def _send(send: Send, body: bytes) -> None:
    for start in range(0, len(body), CHUNK_BYTES):
        await send({"type": "http.response.body", "body": body[start : start + CHUNK_BYTES], "more_body": True})
