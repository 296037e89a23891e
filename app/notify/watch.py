"""A watch: one stream of server-sent events from a cursor."""

from __future__ import annotations

import asyncio
import random
import re
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.disconnect import until_disconnect
from app.notify.feed import ChangeFeed, sse
from app.view import ListView
from blocklist.errors import InvalidError, UnavailableError

COMMENT_SECONDS: Final = 15.0
REACH_SECONDS: Final = 2.0
"""How long a cursor ahead of this replica may wait for it before it is taken for one of a lost history."""
_CURSOR: Final = re.compile(r"([0-9]{1,16})(?:-([0-9a-f]{8}))?", re.ASCII)


def parse_cursor(text: str, history: str) -> int | None:
    """The revision of `<revision>-<history>` or a bare revision; None if it is of another history.

    Raises InvalidError for anything else.
    """
    match = _CURSOR.fullmatch(text)
    if match is None or int(match[1]) > 2**53:
        raise InvalidError("since: give a revision, or <revision>-<history> as in the id of an event.")
    return int(match[1]) if match[2] in (None, history) else None


class WatchResponse(Response):
    """An ASGI response that streams until the client leaves or the service stops.

    `cursor` is the revision after which to begin; None begins with a snapshot.
    """

    def __init__(self, view: ListView, feed: ChangeFeed, cursor: int | None) -> None:
        super().__init__()
        self._view = view
        self._feed = feed
        self._cursor = cursor
        self._waiter: asyncio.Future[None] | None = None
        self._comment_due = True
        self._ticking: asyncio.TimerHandle

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _headers(self._feed)})
        self._feed.readers += 1
        try:
            await until_disconnect(receive, self._stream(send))
        finally:
            self._feed.readers -= 1

    async def _stream(self, send: Send) -> None:
        self._tick()
        try:
            cursor = await self._events(send)
        finally:
            self._ticking.cancel()
        bye = sse("bye", b'{"revision":%d}' % cursor)
        # Spread over some seconds: the watchers of a stopped service do not come back all at once.
        retry = b"retry: %d\n" % random.randint(500, 3000)  # noqa: S311
        await send({"type": "http.response.body", "body": retry + bye, "more_body": False})

    async def _events(self, send: Send) -> int:
        """Send what comes until the service stops and all is sent; the cursor behind it."""
        feed = self._feed
        await self._comment(send)
        cursor = await self._begin(send)
        while True:
            if self._comment_due:
                await self._comment(send)
            elif cursor < feed.revision:
                cursor = await self._catch_up(send, cursor)
            elif feed.closed:
                return cursor
            else:
                await self._wait()

    def _tick(self) -> None:
        # A timer of its own for each stream, so that the comments of thousands are spread over the time between.
        self._comment_due = True
        self._ticking = asyncio.get_running_loop().call_later(COMMENT_SECONDS, self._tick)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _comment(self, send: Send) -> None:
        self._comment_due = False
        await _send(send, b": watching\n\n")

    async def _wait(self) -> None:
        self._waiter = self._feed.bell.waiter()
        try:
            await self._waiter
        finally:
            self._feed.bell.leave(self._waiter)

    async def _begin(self, send: Send) -> int:
        cursor = self._cursor
        if cursor is not None and cursor > self._feed.revision:
            # Another replica may be ahead of this one; a cursor that stays ahead is of a history that was lost.
            reached = await self._view.reached(cursor, REACH_SECONDS)
            cursor = cursor if reached else None
        return await self._snapshot(send) if cursor is None else cursor

    async def _catch_up(self, send: Send, cursor: int) -> int:
        try:
            events = await self._feed.read(cursor)
        except UnavailableError:
            # The database is away: the cursor stays where it is.
            await asyncio.sleep(1)
            return cursor
        if events is None:
            return await self._snapshot(send)
        await _send(send, events[0])
        return events[1]

    async def _snapshot(self, send: Send) -> int:
        revision, body = self._view.snapshot()
        await _send(send, sse("snapshot", body, f"{revision}-{self._feed.history}"))
        return revision


def _headers(feed: ChangeFeed) -> list[tuple[bytes, bytes]]:
    return [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
        (b"blocklist-revision", b"%d" % feed.revision),
        (b"blocklist-history", feed.history.encode()),
    ]


async def _send(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})
