"""Limits of a connection: time for a request's head and body, size of what is no content, number of connections.

uvicorn has none of these. A connection with a partial request is in a deadline queue, which a periodic sweep checks;
requests that are read in one piece, as nearly all are, never enter one. Everything runs on the event loop.
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

from httptools import HttpParserCallbackError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.logs import isolated

MAX_HEAD_BYTES: Final = 16 * 1024
MAX_URL_BYTES: Final = 8 * 1024
MAX_HEADERS: Final = 100
HEADER_SECONDS: Final = 10.0
"""For the head of a request, and for a TLS handshake; after it, 408."""
BODY_SECONDS: Final = 30.0
"""For the body of a request, after the head; after it, 408."""
SWEEP_SECONDS: Final = 1.0
_RESERVED_FILES: Final = 0.1
"""Share of the open files that is reserved for the database, for pushes, and for connections that are refused."""
_NOT_IN_HEAD: Final = -1
_UPGRADE_FIELDS: Final = frozenset((b"upgrade", b"http2-settings"))
"""Header fields, and options of Connection, that ask for another protocol."""
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class InvalidHeadError(Exception):
    """The head of a request is too large, or has no single Host. The arguments are the status and the detail."""


class DeadlineQueue:
    """Connections that wait for something, the earliest deadline first. `timeout` is in seconds."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._started_at: dict[LimitingProtocol, float] = {}

    def add(self, connection: LimitingProtocol) -> None:
        self._started_at[connection] = connection.loop.time()

    def remove(self, connection: LimitingProtocol) -> None:
        self._started_at.pop(connection, None)

    def pop_expired(self, now: float) -> list[LimitingProtocol]:
        """Remove and return the connections whose deadline has passed."""
        waiting = self._started_at
        expired = list(takewhile(lambda connection: now - waiting[connection] >= self.timeout, waiting))
        for connection in expired:
            del waiting[connection]
        return expired


class ConnectionLimits:
    """The limits and deadline queues that all connections share."""

    def __init__(self, max_connections: int) -> None:
        self.header_deadlines, self.body_deadlines = DeadlineQueue(HEADER_SECONDS), DeadlineQueue(BODY_SECONDS)
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        unlimited = files == resource.RLIM_INFINITY
        self.max_connections = (
            max_connections if unlimited else min(max_connections, int(files * (1 - _RESERVED_FILES)))
        )
        self.connections: AbstractSet[Any] = frozenset()
        self._unread_sizes: dict[LimitingProtocol, int] = {}

    async def run(self) -> None:
        """Sweep for ever: time out partial requests, reset connections whose responses are not read."""
        loop = asyncio.get_running_loop()
        checked_at = loop.time()
        while True:
            queues = (self.header_deadlines, self.body_deadlines)
            await asyncio.sleep(min(SWEEP_SECONDS, *(queue.timeout / 4 for queue in queues)))
            for queue in queues:
                for connection in queue.pop_expired(loop.time()):
                    # It is no longer in the queue, and the others that expired are not either.
                    with isolated("timeout of a connection"):
                        connection.on_timeout(queue)
            if loop.time() - checked_at >= self.body_deadlines.timeout:
                checked_at = loop.time()
                self._reset_stalled_readers()

    def _reset_stalled_readers(self) -> None:
        """Reset connections whose client has read nothing of a buffered response since the last check."""
        sizes = {connection: connection.transport.get_write_buffer_size() for connection in self.connections}
        unread = {connection: size for connection, size in sizes.items() if size}
        for connection, size in unread.items():
            if self._unread_sizes.get(connection) == size:
                with isolated("reset of a connection"):
                    _reset(connection.transport)
        self._unread_sizes = unread


class LimitingProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits.

    A subclass that overrides `on_headers_complete` calls `check_head` first. A subclass that answers a request itself
    does so in `on_message_complete`, and sets `_request_complete` there.
    """

    # Slots, because one more key would double the size of the instance's dict, for each of thousands of connections.
    __slots__ = (
        "_bytes_without_content",
        "_deadlines",
        "_later_head_bytes",
        "_measure_head",
        "_request_complete",
        "_response_cycle",
        "_upgrade_at",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.url = b""  # uvicorn sets it when a request begins
        self._deadlines: DeadlineQueue | None = None  # the queue that this connection is in
        self._request_complete = True  # no request is being read
        self._later_head_bytes = _NOT_IN_HEAD  # bytes of the head being read, without its first piece
        self._bytes_without_content = 0  # bytes of a body since its last content: trailers, extensions of chunks
        self._measure_head = False  # whether the size of the head must be computed when it is complete
        self._response_cycle: RequestResponseCycle | None = None
        self._upgrade_at: int | None = None  # where the head ends that asks for another protocol

    @property
    def limits(self) -> ConnectionLimits:
        limits: ConnectionLimits = self.app_state["connection_limits"]
        return limits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.limits.connections = self.connections
        if len(self.connections) > self.limits.max_connections:
            self.refuse(HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections; try again later.")
        else:
            self._start_timer(self.limits.header_deadlines)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)
        cycle, self._response_cycle = self._response_cycle, None
        if cycle is not None and not cycle.response_complete:
            # uvicorn notifies only the last request, which may be queued behind this one; this one would then write
            # to a closed connection.
            cycle.disconnected = True
            cycle.message_event.set()

    def data_received(self, data: bytes) -> None:
        in_head = self._later_head_bytes != _NOT_IN_HEAD
        if in_head:
            self._later_head_bytes += len(data)
        self._measure_head = in_head or len(data) > MAX_HEAD_BYTES
        self._bytes_without_content += len(data)
        super().data_received(data)
        while self._upgrade_at is not None:
            data = self._without_upgrade(data)
            super().data_received(data)
        if self._request_complete:
            self._stop_timer()
        elif self._later_head_bytes == _NOT_IN_HEAD:
            if self._bytes_without_content > MAX_HEAD_BYTES:
                detail = f"The body has more than {MAX_HEAD_BYTES // 1024} KiB of trailers or chunk extensions."
                self.refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, detail)
            else:
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
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_chunk_header(self) -> None:
        # Trailers, behind the last chunk, are discarded: uvicorn would add them to the headers of the request, behind
        # the back of a proxy that replaces these.
        self.headers = []

    def on_body(self, body: bytes) -> None:
        self._bytes_without_content = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._request_complete = True
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """Called by uvicorn where the parser stopped behind a head that asks for another protocol."""
        stopped = sys.exception()
        assert isinstance(stopped, HttpParserUpgrade)
        if self.parser.get_method() == b"CONNECT":
            self.refuse(HTTPStatus.METHOD_NOT_ALLOWED, "CONNECT is not supported: this service is not a proxy.")
        else:
            self._upgrade_at = stopped.args[0]

    def _without_upgrade(self, data: bytes) -> bytes:
        """The request being read without its Upgrade, followed by the rest of `data`; a new parser reads them.

        A server may ignore Upgrade and continue with HTTP/1.1 (RFC 9110, section 7.8). Java's HttpClient sends one with
        its first request. The parser would read neither a body behind such a head nor another request.
        """
        rest, self._upgrade_at = data[self._upgrade_at :], None
        request_line = b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        fields = [
            (name, _without_upgrade_options(value) if name == b"connection" else value)
            for name, value in self.headers
            if name not in _UPGRADE_FIELDS
        ]
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return b"\r\n".join([request_line, *(b"%b: %b" % field for field in fields), b"", rest])

    def check_head(self) -> None:
        """The head is complete. Raises InvalidHeadError, which ends the parsing, unless the request can be served."""
        if self._later_head_bytes == _NOT_IN_HEAD:
            return  # a subclass has called it
        if len(self.headers) > MAX_HEADERS or (self._measure_head and self._head_size() > MAX_HEAD_BYTES):
            raise InvalidHeadError(*self._too_large())
        self._check_host()
        self._later_head_bytes = _NOT_IN_HEAD
        self._bytes_without_content = 0
        self._stop_timer()

    def _check_host(self) -> None:
        """Raises InvalidHeadError unless there is one Host, which HTTP/1.0 may omit (RFC 9112, section 3.2)."""
        hosts = [name for name, _ in self.headers].count(b"host")
        if hosts > 1 or (hosts == 0 and self.parser.get_http_version() >= "1.1"):
            fault = "no Host header" if hosts == 0 else "more than one Host header"
            raise InvalidHeadError(HTTPStatus.BAD_REQUEST, f"The request has {fault}; send one.")

    def on_timeout(self, deadlines: DeadlineQueue) -> None:
        """The deadline of this connection in this queue has passed; it is no longer in the queue."""
        self._deadlines = None
        if self.flow.read_paused:
            # The service itself does not read: an earlier request has no response yet.
            self._start_timer(deadlines)
        elif self._request_complete:
            # Nothing was sent yet. A response now could be taken for the one to a request that is just being sent.
            self.transport.close()
        else:
            part = "head" if deadlines is self.limits.header_deadlines else "body"
            detail = f"The {part} of the request was not received within {deadlines.timeout:g} seconds."
            self.refuse(HTTPStatus.REQUEST_TIMEOUT, detail)

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is malformed, or whose head is too large."""
        error = sys.exception()
        if isinstance(error, HttpParserCallbackError):
            self._later_head_bytes = 0  # raised in `on_headers_complete`, so the body has not begun
        if error is not None and isinstance(error.__context__, InvalidHeadError):
            self.refuse(*error.__context__.args)
        else:
            self.refuse(HTTPStatus.BAD_REQUEST, msg)

    def refuse(self, status: HTTPStatus, detail: str) -> None:
        """Close the connection; before that send a problem, unless it could be taken for another request's response."""
        self._stop_timer()
        if self.transport.is_closing():
            return
        if self._close_behind_responses():
            return
        if not self._response_started() and self._response_pending() == self._in_body() and not self.pipeline:
            path = self.url[:MAX_URL_BYTES].partition(b"?")[0].decode("latin-1")
            self.transport.write(_problem_response(status, detail, path, self.server_state.default_headers))
        self.transport.close()

    def _close_behind_responses(self) -> bool:
        """Whether a whole request has no response yet; the last such response then ends the connection."""
        if not self._response_pending() or self._response_started() or self._in_body():
            return False
        self.cycle.keep_alive = False
        return True

    def _response_pending(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _response_started(self) -> bool:
        return self._response_pending() and getattr(self.cycle, "response_started", False)

    def _in_body(self) -> bool:
        return not self._request_complete and self._later_head_bytes == _NOT_IN_HEAD

    def _too_large(self) -> tuple[HTTPStatus, str]:
        if len(self.url) > MAX_URL_BYTES:
            return HTTPStatus.REQUEST_URI_TOO_LONG, f"The URL is longer than {MAX_URL_BYTES // 1024} KiB."
        detail = f"The head of the request exceeds {MAX_HEAD_BYTES // 1024} KiB or {MAX_HEADERS} headers."
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


def _reset(transport: asyncio.Transport) -> None:
    # Without a reset the kernel would go on trying to deliver what is in its own buffer.
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.abort()


def _problem_response(status: HTTPStatus, detail: str, path: str, default_headers: list[tuple[bytes, bytes]]) -> bytes:
    """A problem as app.api.responses renders it, for requests that never reach a route."""
    kind = f"urn:blocklist:problem:{status.name.lower().replace('_', '-')}"
    problem = {
        "type": kind,
        "title": status.phrase,
        "status": status.value,
        "detail": detail,
        "instance": path,
        "errors": [detail],
    }
    body = json.dumps(problem).encode() + b"\n"
    lines = [
        b"HTTP/1.1 %d %b" % (status, status.phrase.encode()),
        *(b"%b: %b" % header for header in default_headers),
        b"content-type: application/problem+json",
        b"content-length: %d" % len(body),
        *([b"retry-after: 1"] if status == HTTPStatus.SERVICE_UNAVAILABLE else []),
        b"connection: close",
    ]
    return b"\r\n".join([*lines, b"", body])


def _without_upgrade_options(connection: bytes) -> bytes:
    """The value of a Connection header without the options that ask for another protocol."""
    options = (option.strip() for option in connection.split(b","))
    return b", ".join(option for option in options if option.lower() not in _UPGRADE_FIELDS)
