"""Patience: how long a connection may take to say something, how much of it may be head, and how many there may be.

uvicorn waits for ever for a request that does not end, for an answer that nobody reads, and takes every connection.
A connection in the middle of something stands on a clock, and one sweep looks at both clocks: requests that come in one
piece, as nearly all do, touch neither. One thread: the event loop's.
"""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import struct
import sys
from collections.abc import Set as AbstractSet
from http import HTTPStatus
from itertools import takewhile
from typing import Any, Final

from httptools import HttpParserCallbackError
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_HEAD: Final = 16 * 1024
"""Bytes that the head of a request may have."""
MAX_URL: Final = 8 * 1024
MAX_HEADERS: Final = 100
SWEEP_SECONDS: Final = 1.0
_SPARE: Final = 0.1
"""The share of the open files that is for the database, for pushes, and for those who are sent away."""
_NO_HEAD: Final = -1
_RESET: Final = struct.pack("ii", 1, 0)


class HeadTooLargeError(Exception):
    """The head of a request has too many bytes or lines."""


class Clock:
    """Who is in the middle of something, and since when; the earliest first."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._since: dict[PatientProtocol, float] = {}

    def start(self, one: PatientProtocol) -> None:
        self._since[one] = one.loop.time()

    def stop(self, one: PatientProtocol) -> None:
        self._since.pop(one, None)

    def late(self, now: float) -> list[PatientProtocol]:
        """Take off those whose time is up."""
        late = list(takewhile(lambda one: now - self._since[one] >= self.seconds, self._since))
        for one in late:
            del self._since[one]
        return late


class Patience:
    """What all connections share. `head` and `body` are in seconds."""

    def __init__(self, *, head: float, body: float, connections: int) -> None:
        self.heads, self.bodies = Clock(head), Clock(body)
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.most = connections if files == resource.RLIM_INFINITY else min(connections, int(files * (1 - _SPARE)))
        self.all: AbstractSet[Any] = frozenset()
        self._unread: dict[PatientProtocol, int] = {}

    async def run(self) -> None:
        """Look again and again, for ever."""
        loop = asyncio.get_running_loop()
        looked = loop.time()
        while True:
            await asyncio.sleep(min(SWEEP_SECONDS, self.heads.seconds / 4, self.bodies.seconds / 4))
            for clock in (self.heads, self.bodies):
                for one in clock.late(loop.time()):
                    one.is_late(clock)
            if loop.time() - looked >= self.bodies.seconds:
                looked = loop.time()
                self._abort_unread()

    def _abort_unread(self) -> None:
        """End connections of which nothing was read since the last look, though there is something to read."""
        sizes = {one: one.transport.get_write_buffer_size() for one in self.all}
        unread = {one: size for one, size in sizes.items() if size}
        for one, size in unread.items():
            if self._unread.get(one) == size:
                # With a reset, or the system would go on trying to deliver what it has taken.
                one.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                one.transport.abort()
        self._unread = unread


class PatientProtocol(HttpToolsProtocol):
    """uvicorn's protocol, but not for ever. Whoever overrides `on_headers_complete` calls `head_ends` first.

    What a subclass answers by itself it answers in `on_message_complete`; it sets `_complete` there.
    """

    # Not in the instance's dict, which is full: one more there and it doubles, for each of thousands of connections.
    __slots__ = ("_answering", "_clock", "_complete", "_exact", "_later")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._clock: Clock | None = None
        self._complete = True  # no request is under way
        self._later = _NO_HEAD  # bytes of the head under way, but for its first piece
        self._exact = False  # whether a head that ends is to be measured
        self._answering: RequestResponseCycle | None = None

    @property
    def patience(self) -> Patience:
        patience: Patience = self.app_state["patience"]
        return patience

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.patience.all = self.connections
        if len(self.connections) > self.patience.most:
            self.refuse(HTTPStatus.SERVICE_UNAVAILABLE, "There are too many connections: try again later.")
        else:
            self._stand_on(self.patience.heads)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave_clock()
        super().connection_lost(exc)
        answering, self._answering = self._answering, None
        if answering is not None and not answering.response_complete:
            # uvicorn tells the last request only, which may wait for this one; it would write to what is closed.
            answering.disconnected = True
            answering.message_event.set()

    def data_received(self, data: bytes) -> None:
        begun = self._later != _NO_HEAD
        if begun:
            self._later += len(data)
        self._exact = begun or len(data) > MAX_HEAD
        super().data_received(data)
        if self._complete:
            self._leave_clock()
        elif self._later == _NO_HEAD:
            self._stand_on(self.patience.bodies)
        elif self._later > MAX_HEAD:
            self.refuse(*self._too_large())
        else:
            self._stand_on(self.patience.heads)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def on_message_begin(self) -> None:
        self._complete = False
        self._later = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self.head_ends()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._complete = True
        super().on_message_complete()

    def head_ends(self) -> None:
        """The head is whole. Raises HeadTooLargeError, which ends the parsing, if it is more than is allowed."""
        if self._later == _NO_HEAD:
            return  # a subclass has called it
        if len(self.headers) > MAX_HEADERS or (self._exact and self._size() > MAX_HEAD):
            raise HeadTooLargeError
        self._later = _NO_HEAD
        self._leave_clock()

    def is_late(self, clock: Clock) -> None:
        """Its time on this clock is up."""
        self._clock = None
        if self.flow.read_paused:
            # It is us who do not read: a request before is not answered yet.
            self._stand_on(clock)
        elif self._complete:
            # It never said anything, and may be about to: an answer would be taken for one to that.
            self.transport.close()
        else:
            part = "head" if clock is self.patience.heads else "body"
            detail = f"The {part} of the request was not there within {clock.seconds:g} seconds."
            self.refuse(HTTPStatus.REQUEST_TIMEOUT, detail)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, or too much of it."""
        error = sys.exception()
        if isinstance(error, HttpParserCallbackError):
            self._later = 0  # it came from `on_headers_complete`, so there is no body yet
        if error is not None and isinstance(error.__context__, HeadTooLargeError):
            self.refuse(*self._too_large())
        else:
            self.refuse(HTTPStatus.BAD_REQUEST, msg)

    def refuse(self, status: HTTPStatus, detail: str) -> None:
        """End the connection with this answer to the request under way, unless it would be taken for another's."""
        self._leave_clock()
        if self.transport.is_closing():
            return
        due = self.cycle is not None and not self.cycle.response_complete
        begun = due and getattr(self.cycle, "response_started", False)
        in_body = not self._complete and self._later == _NO_HEAD
        if due and not begun and not in_body:
            self.cycle.keep_alive = False  # the answer to a request before is given first, and is the last one
            return
        if not begun and due == in_body and not self.pipeline:
            self.transport.write(_answer(status, detail, self.server_state.default_headers))
        self.transport.close()

    def _too_large(self) -> tuple[HTTPStatus, str]:
        if len(self.url) > MAX_URL:
            return HTTPStatus.REQUEST_URI_TOO_LONG, f"The URL is longer than {MAX_URL // 1024} KiB."
        detail = f"The head of the request has more than {MAX_HEAD // 1024} KiB, or more than {MAX_HEADERS} lines."
        return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, detail

    def _size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _stand_on(self, clock: Clock) -> None:
        if self._clock is not clock and not self.transport.is_closing():
            self._leave_clock()
            self._clock = clock
            clock.start(self)

    def _leave_clock(self) -> None:
        if self._clock is not None:
            self._clock.stop(self)
            self._clock = None


def _answer(status: HTTPStatus, detail: str, default_headers: list[tuple[bytes, bytes]]) -> bytes:
    """A problem as the service's routes answer it, for requests that never come to one."""
    kind = f"urn:blocklist:problem:{status.name.lower().replace('_', '-')}"
    problem = {"type": kind, "title": status.phrase, "status": status.value, "detail": detail, "errors": [detail]}
    body = json.dumps(problem).encode()
    lines = [
        b"HTTP/1.1 %d %b" % (status, status.phrase.encode()),
        *(b"%b: %b" % header for header in default_headers),
        b"content-type: application/problem+json",
        b"content-length: %d" % len(body),
        *([b"retry-after: 1"] if status == HTTPStatus.SERVICE_UNAVAILABLE else []),
        b"connection: close",
    ]
    return b"\r\n".join([*lines, b"", body])
