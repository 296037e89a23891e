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

MAX_HEAD_BYTES: Final = 16 * 1024
"""Bytes that the head of a request may have."""
MAX_URL_BYTES: Final = 8 * 1024
MAX_HEADERS: Final = 100
SWEEP_SECONDS: Final = 1.0
_RESERVED_FILES: Final = 0.1
"""The share of the open files that is for the database, for pushes, and for those who are sent away."""
_NOT_IN_HEAD: Final = -1
_RESET: Final = struct.pack("ii", 1, 0)


class HeadTooLargeError(Exception):
    """The head of a request has too many bytes or lines."""


class DeadlineQueue:
    """Who is in the middle of something, and since when; the earliest first."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._started_at: dict[LimitingProtocol, float] = {}

    def add(self, connection: LimitingProtocol) -> None:
        self._started_at[connection] = connection.loop.time()

    def remove(self, connection: LimitingProtocol) -> None:
        self._started_at.pop(connection, None)

    def pop_expired(self, now: float) -> list[LimitingProtocol]:
        """Take off those whose time is up."""
        late = list(takewhile(lambda one: now - self._started_at[one] >= self.timeout, self._started_at))
        for one in late:
            del self._started_at[one]
        return late


class ConnectionLimits:
    """What all connections share. `head` and `body` are in seconds."""

    def __init__(self, *, header_timeout: float, body_timeout: float, max_connections: int) -> None:
        self.header_deadlines, self.body_deadlines = DeadlineQueue(header_timeout), DeadlineQueue(body_timeout)
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.max_connections = (
            max_connections
            if files == resource.RLIM_INFINITY
            else min(max_connections, int(files * (1 - _RESERVED_FILES)))
        )
        self.connections: AbstractSet[Any] = frozenset()
        self._unread_sizes: dict[LimitingProtocol, int] = {}

    async def run(self) -> None:
        """Look again and again, for ever."""
        loop = asyncio.get_running_loop()
        looked = loop.time()
        while True:
            await asyncio.sleep(min(SWEEP_SECONDS, self.header_deadlines.timeout / 4, self.body_deadlines.timeout / 4))
            for clock in (self.header_deadlines, self.body_deadlines):
                for one in clock.pop_expired(loop.time()):
                    one.on_timeout(clock)
            if loop.time() - looked >= self.body_deadlines.timeout:
                looked = loop.time()
                self._reset_stalled_readers()

    def _reset_stalled_readers(self) -> None:
        """End connections of which nothing was read since the last look, though there is something to read."""
        sizes = {one: one.transport.get_write_buffer_size() for one in self.connections}
        unread = {one: size for one, size in sizes.items() if size}
        for one, size in unread.items():
            if self._unread_sizes.get(one) == size:
                # With a reset, or the system would go on trying to deliver what it has taken.
                one.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                one.transport.abort()
        self._unread_sizes = unread


class LimitingProtocol(HttpToolsProtocol):
    """uvicorn's protocol, but not for ever. Whoever overrides `on_headers_complete` calls `check_head` first.

    What a subclass answers by itself it answers in `on_message_complete`; it sets `_complete` there.
    """

    # Not in the instance's dict, which is full: one more there and it doubles, for each of thousands of connections.
    __slots__ = ("_deadlines", "_later_head_bytes", "_measure_head", "_request_complete", "_response_cycle")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadlines: DeadlineQueue | None = None
        self._request_complete = True  # no request is under way
        self._later_head_bytes = _NOT_IN_HEAD  # bytes of the head under way, but for its first piece
        self._measure_head = False  # whether a head that ends is to be measured
        self._response_cycle: RequestResponseCycle | None = None

    @property
    def limits(self) -> ConnectionLimits:
        patience: ConnectionLimits = self.app_state["connection_limits"]
        return patience

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.limits.connections = self.connections
        if len(self.connections) > self.limits.max_connections:
            self.refuse(HTTPStatus.SERVICE_UNAVAILABLE, "There are too many connections: try again later.")
        else:
            self._start_timer(self.limits.header_deadlines)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)
        answering, self._response_cycle = self._response_cycle, None
        if answering is not None and not answering.response_complete:
            # uvicorn tells the last request only, which may wait for this one; it would write to what is closed.
            answering.disconnected = True
            answering.message_event.set()

    def data_received(self, data: bytes) -> None:
        begun = self._later_head_bytes != _NOT_IN_HEAD
        if begun:
            self._later_head_bytes += len(data)
        self._measure_head = begun or len(data) > MAX_HEAD_BYTES
        super().data_received(data)
        if self._request_complete:
            self._stop_timer()
        elif self._later_head_bytes == _NOT_IN_HEAD:
            self._start_timer(self.limits.body_deadlines)
        elif self._later_head_bytes > MAX_HEAD_BYTES:
            self.refuse(*self._too_large())
        else:
            self._start_timer(self.limits.header_deadlines)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._response_cycle = cycle
        super()._start_asgi_task(cycle, app)

    def on_message_begin(self) -> None:
        self._request_complete = False
        self._later_head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self.check_head()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._request_complete = True
        super().on_message_complete()

    def check_head(self) -> None:
        """The head is whole. Raises HeadTooLargeError, which ends the parsing, if it is more than is allowed."""
        if self._later_head_bytes == _NOT_IN_HEAD:
            return  # a subclass has called it
        if len(self.headers) > MAX_HEADERS or (self._measure_head and self._head_size() > MAX_HEAD_BYTES):
            raise HeadTooLargeError
        self._later_head_bytes = _NOT_IN_HEAD
        self._stop_timer()

    def on_timeout(self, deadlines: DeadlineQueue) -> None:
        """Its time on this clock is up."""
        self._deadlines = None
        if self.flow.read_paused:
            # It is us who do not read: a request before is not answered yet.
            self._start_timer(deadlines)
        elif self._request_complete:
            # It never said anything, and may be about to: an answer would be taken for one to that.
            self.transport.close()
        else:
            part = "head" if deadlines is self.limits.header_deadlines else "body"
            detail = f"The {part} of the request was not there within {deadlines.timeout:g} seconds."
            self.refuse(HTTPStatus.REQUEST_TIMEOUT, detail)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, or too much of it."""
        error = sys.exception()
        if isinstance(error, HttpParserCallbackError):
            self._later_head_bytes = 0  # it came from `on_headers_complete`, so there is no body yet
        if error is not None and isinstance(error.__context__, HeadTooLargeError):
            self.refuse(*self._too_large())
        else:
            self.refuse(HTTPStatus.BAD_REQUEST, msg)

    def refuse(self, status: HTTPStatus, detail: str) -> None:
        """End the connection with this answer to the request under way, unless it would be taken for another's."""
        self._stop_timer()
        if self.transport.is_closing():
            return
        due = self.cycle is not None and not self.cycle.response_complete
        begun = due and getattr(self.cycle, "response_started", False)
        in_body = not self._request_complete and self._later_head_bytes == _NOT_IN_HEAD
        if due and not begun and not in_body:
            self.cycle.keep_alive = False  # the answer to a request before is given first, and is the last one
            return
        if not begun and due == in_body and not self.pipeline:
            self.transport.write(_problem_response(status, detail, self.server_state.default_headers))
        self.transport.close()

    def _too_large(self) -> tuple[HTTPStatus, str]:
        if len(self.url) > MAX_URL_BYTES:
            return HTTPStatus.REQUEST_URI_TOO_LONG, f"The URL is longer than {MAX_URL_BYTES // 1024} KiB."
        detail = (
            f"The head of the request has more than {MAX_HEAD_BYTES // 1024} KiB, or more than {MAX_HEADERS} lines."
        )
        return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, detail

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _start_timer(self, deadlines: DeadlineQueue) -> None:
        if self._deadlines is not deadlines and not self.transport.is_closing():
            self._stop_timer()
            self._deadlines = deadlines
            deadlines.add(self)

    def _stop_timer(self) -> None:
        if self._deadlines is not None:
            self._deadlines.remove(self)
            self._deadlines = None


def _problem_response(status: HTTPStatus, detail: str, default_headers: list[tuple[bytes, bytes]]) -> bytes:
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
