"""A watch: one stream of server-sent events from a cursor."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable
from typing import Final

from starlette.types import Receive, Send

from app.engine.list_view import ListView
from app.watch.change_feed import CHUNK_BYTES, ChangeFeed, sse
from app.watch.disconnect import run_until_disconnect
from app.watch.stream_quota import ClientSlots
from blocklist.model.errors import InvalidError, UnavailableError

KEEPALIVE_SECONDS: Final = 15.0
CATCH_UP_SECONDS: Final = 2.0
"""How long a cursor ahead of this replica waits for it before the database is asked whether that was ever reached."""
DIRECT: Final = "blocklist.direct"
"""The ASGI extension by which a server lets a stream write to its connection: a Write named `write`."""
_CURSOR: Final = re.compile(r"([0-9]{1,16})(?:-([0-9a-f]{8}))?", re.ASCII)


Write = Callable[[bytes], bool]
"""Sends a piece of the body now; False, with nothing sent, if the client has not read what came before, or has left."""


def parse_cursor(text: str, history: str) -> int | None:
    """The revision of `<revision>-<history>` or a bare revision; None if it is of another history.

    Raises InvalidError for anything else.
    """
    match = _CURSOR.fullmatch(text)
    if match is None or int(match[1]) > 2**53:
        raise InvalidError("since: give a revision, or <revision>-<history> as in the id of an event.")
    return int(match[1]) if match[2] in (None, history) else None


class EventStream:
    """A stream that lasts until the client leaves or the service stops.

    `cursor` is the revision after which to begin; None begins with a snapshot. A stream that has all there is waits in
    the feed, and is offered what comes: mostly `write` sends it straight to the connection, and the task sleeps on.
    """

    def __init__(
        self, view: ListView, feed: ChangeFeed, cursor: int | None, write: Write | None, place: ClientSlots
    ) -> None:
        self._view = view
        self._feed = feed
        self._start_cursor = cursor
        self._cursor = 0
        self._write = write
        self._slots = place
        self._history = feed.history
        self._waiter: asyncio.Future[None] | None = None
        self._keepalive_due = True
        self._ended = False
        self._keepalive_timer: asyncio.TimerHandle

    async def run(self, receive: Receive, send: Send) -> None:
        """Answer the request."""
        await send({"type": "http.response.start", "status": 200, "headers": _headers(self._feed)})
        self._feed.open_watches += 1
        try:
            with self._slots:
                await run_until_disconnect(receive, self._stream(send))
        finally:
            self._feed.open_watches -= 1

    def wake(self) -> None:
        """There is more, or the service stops. Nothing happens unless the stream waits."""
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
        """Whoever watches may no longer: say bye, and send nothing more."""
        self._ended = True
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
        # Spread over some seconds: the watchers of a stopped service do not come back all at once.
        retry = b"retry: %d\n" % random.randint(500, 3000)  # noqa: S311
        await send({"type": "http.response.body", "body": retry + bye, "more_body": False})

    async def _send_events(self, send: Send) -> None:
        """Send what comes until the service stops and all is sent, or the stream is cut."""
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
        # A timer of its own for each stream, so that the comments of thousands are spread over the time between.
        self._keepalive_due = True
        self._keepalive_timer = asyncio.get_running_loop().call_later(KEEPALIVE_SECONDS, self._start_keepalive_timer)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

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
        begin = self._start_cursor
        # Another replica may be ahead of this one; a cursor that the log does not reach is of a history that was lost.
        while begin is not None and begin > self._feed.revision and not self._is_over:
            if self._keepalive_due:
                await self._send_keepalive(send)
            if not await self._wait_for_revision(begin) and await self._feed.was_never_issued(begin):
                begin = None
        if begin is None:
            await self._send_snapshot(send)
        else:
            self._cursor = begin

    async def _wait_for_revision(self, revision: int) -> bool:
        return await self._view.changed.wait_for(
            lambda: self._feed.revision >= revision or self._is_over, CATCH_UP_SECONDS
        )

    async def _catch_up(self, send: Send) -> None:
        try:
            events = await self._feed.read(self._cursor)
        except UnavailableError:
            # The database is away: the cursor stays where it is.
            await asyncio.sleep(1)
            return
        if events is None:
            await self._send_snapshot(send)
        else:
            await _send(send, events[0])
            self._cursor = events[1]

    async def _send_snapshot(self, send: Send) -> None:
        event, self._cursor = self._feed.snapshot()
        for piece in event:
            await _send(send, piece)


def _headers(feed: ChangeFeed) -> list[tuple[bytes, bytes]]:
    return [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
        (b"blocklist-revision", b"%d" % feed.revision),
        (b"blocklist-history", feed.history.encode()),
    ]


async def _send(send: Send, body: bytes) -> None:
    for begin in range(0, len(body), CHUNK_BYTES):
        await send({"type": "http.response.body", "body": body[begin : begin + CHUNK_BYTES], "more_body": True})
