"""One connection: requests are parsed one at a time, and whatever a client may send or leave unread has a bound here.

uvicorn parses all that it receives at once, and limits nothing. Here the bytes behind a request stay bytes until it
has its response. Everything runs on the event loop.
"""

from __future__ import annotations

import asyncio
import json
import re
import resource
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Hashable
from collections.abc import Set as AbstractSet
from http import HTTPStatus
from itertools import takewhile
from typing import Any, Final

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.http.fast_path import FastPath, FastRequest, Fields
from app.logs import isolated
from app.net.addresses import Networks, client_address
from app.watch import DIRECT

MAX_HEAD_BYTES: Final = 16 * 1024
"""Of a head; also of trailers and of extensions of chunks without content between them."""
MAX_URL_BYTES: Final = 8 * 1024
MAX_HEADERS: Final = 100
MAX_UNFINISHED_BYTES: Final = 64 * 1024 * 1024
"""Of all connections together: bytes that were received and are not parsed, and bodies that are not complete."""
HEADER_SECONDS: Final = 10.0
"""For the head of a request, and for a TLS handshake; after it, 408."""
BODY_SECONDS: Final = 30.0
"""For the body of a request, after the head; after it, 408."""
KEEP_ALIVE_SECONDS: Final = 75.0
"""Timeout of an idle connection. Longer than the pause between polls, and than the timeout of a proxy (nginx: 60 s):
otherwise a client could send a request on a connection that is just being closed."""
SWEEP_SECONDS: Final = 1.0
ACCEPT_SECONDS: Final = 0.005
"""How long connections are accepted, if there are more, before the next request is begun."""
PIECES_PER_TURN: Final = 500
"""Maximum number of heads and chunks that are parsed before other connections have their turn: a few milliseconds."""
_RESERVED_FILES: Final = 0.1
"""Share of the open files that is reserved for the database, for pushes, and for connections that are refused."""
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
_UPGRADE: Final = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)
_HEAD_BEGINS: Final = re.compile(rb"[A-Za-z\r\n]")
_CREDENTIALS: Final = frozenset((b"authorization", b"cookie"))
_HEALTH: Final = frozenset((b"/healthz", b"/readyz"))
_READS: Final = frozenset(("GET", "HEAD"))


class RefusedError(Exception):
    """The request is refused before it reaches the service. The arguments are the status and the detail."""


class HeadWithBody:
    """Writes the head of a response together with the first part of its body, if that follows in the same turn.

    uvicorn writes them one by one. Then a proxy may have passed on the head of a replica that is killed before it has
    written the body, and can no longer ask another replica.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = b""

    def write(self, data: bytes) -> None:
        """Keep the first data for this turn of the event loop, and write the following data at once."""
        if self._head is None:
            self._transport.write(data)
        elif self._head:
            self.flush(data)
        else:
            self._head = data
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self, body: bytes = b"") -> None:
        """Write the head, if it is still here, and the body."""
        if self._head is not None:
            head, self._head = self._head, None
            self._transport.write(head + body)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self.flush()
        self._transport.close()


class DeadlineQueue:
    """Connections that wait for something, the earliest deadline first. `timeout` is in seconds."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._started_at: dict[HttpConnection, float] = {}

    def add(self, connection: HttpConnection) -> None:
        self._started_at[connection] = connection.loop.time()

    def remove(self, connection: HttpConnection) -> None:
        self._started_at.pop(connection, None)

    def pop_expired(self, now: float) -> list[HttpConnection]:
        waiting = self._started_at
        expired = list(takewhile(lambda connection: now - waiting[connection] >= self.timeout, waiting))
        for connection in expired:
            del waiting[connection]
        return expired


class Turns:
    """Begins one request in a turn of the event loop, those of each client alternately.

    A long list takes tens of milliseconds to render. The loop runs all tasks that it finds in one turn, and accepts one
    connection in a turn: a client that asks for hundreds of lists at once would keep everybody waiting for all of them.
    """

    def __init__(self) -> None:
        self._begun = False  # and not long enough ago
        self._paused_at: float | None = None
        self._accepted = False  # a connection, in this turn
        # The client whose turn is next comes first.
        self._waiting: dict[Hashable, deque[Callable[[], object]]] = {}

    def accept(self) -> None:
        """A connection was accepted; more may follow."""
        self._accepted = True

    def begin(self, client_key: Callable[[], Hashable], start: Callable[[], object]) -> None:
        """Call `start` now if nobody waits, otherwise behind those of the same client."""
        if self._begun:
            self._waiting.setdefault(client_key(), deque()).append(start)
        else:
            self._start(start)

    def _start(self, start: Callable[[], object]) -> None:
        self._begun, self._paused_at = True, None
        with isolated("begin of a request"):
            start()
        asyncio.get_running_loop().call_soon(self._begin_next)

    def _begin_next(self) -> None:
        # The loop's own clock stands still in a turn of uvloop.
        now = time.monotonic()
        self._paused_at = self._paused_at or now
        if self._accepted and now - self._paused_at < ACCEPT_SECONDS:
            self._accepted = False
            asyncio.get_running_loop().call_soon(self._begin_next)
        elif not self._waiting:
            self._begun = False
        else:
            client = next(iter(self._waiting))
            starts = self._waiting.pop(client)
            start = starts.popleft()
            if starts:
                self._waiting[client] = starts
            self._start(start)


class ConnectionLimits:
    """What all connections share: deadlines, turns, the number of connections, and the bytes of unfinished requests."""

    def __init__(self, max_connections: int, trusted_proxies: Networks | None = None, root_path: bytes = b"") -> None:
        self.turns = Turns()
        self.root_path = root_path
        self.trusted_proxies = trusted_proxies or Networks(())
        self.idle, self.heads, self.bodies = map(DeadlineQueue, (KEEP_ALIVE_SECONDS, HEADER_SECONDS, BODY_SECONDS))
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        unlimited = files == resource.RLIM_INFINITY
        self.max_connections = (
            max_connections if unlimited else min(max_connections, int(files * (1 - _RESERVED_FILES)))
        )
        self.connections: AbstractSet[Any] = frozenset()
        self.unfinished_bytes = 0
        # In the order in which their requests began.
        self._unfinished: dict[HttpConnection, int] = {}
        self._unread_sizes: dict[HttpConnection, int] = {}

    def set_unfinished(self, connection: HttpConnection, size: int) -> None:
        """How many bytes of unfinished requests a connection has. Beyond the limit, the oldest ones are refused.

        Those of a client that sends at once are complete before they are the oldest.
        """
        self.unfinished_bytes += size - self._unfinished.get(connection, 0)
        if size:
            self._unfinished[connection] = size
        else:
            self._unfinished.pop(connection, None)
        while self.unfinished_bytes > MAX_UNFINISHED_BYTES:
            next(iter(self._unfinished)).refuse(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"The service has more than {MAX_UNFINISHED_BYTES // 1024**2} MiB of requests that are not complete;"
                " this one was the oldest. Send it again.",
            )

    async def run(self) -> None:
        """Sweep for ever: time out partial requests, reset connections whose responses are not read."""
        loop = asyncio.get_running_loop()
        queues = (self.idle, self.heads, self.bodies)
        checked_at = loop.time()
        while True:
            await asyncio.sleep(min(SWEEP_SECONDS, *(queue.timeout / 4 for queue in queues)))
            for queue in queues:
                for connection in queue.pop_expired(loop.time()):
                    # It is no longer in the queue, and the others that expired are not either.
                    with isolated("timeout of a connection"):
                        connection.on_timeout(queue)
            if loop.time() - checked_at >= self.bodies.timeout:
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


class HttpConnection(HttpToolsProtocol):
    """uvicorn's protocol with limits; requests that `app.http.fast_path` answers never become an ASGI task."""

    # Slots, because one more key would double the size of the instance's dict, for each of thousands of connections.
    __slots__ = (
        "_bare_bytes", "_deadlines", "_fast_path", "_fast_request", "_has_more", "_head", "_idle", "_in_body",
        "_in_trailers", "_left", "_limits", "_parsing", "_request_bytes", "_unparsed", "_used",
    )  # fmt: skip

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits: ConnectionLimits = self.app_state["connection_limits"]
        self._fast_path: FastPath | None = self.app_state["fast_path"]
        self._fast_request: FastRequest | None = None
        self._deadlines: DeadlineQueue | None = None  # the queue that this connection is in
        self._idle = False  # all requests have their responses, and nothing else was received
        self._used = False  # while it was in the queue of idle connections
        self.url = b""
        self._unparsed = b""
        self._parsing = False
        self._has_more = False  # to parse in the next turn
        self._head = b""  # of the request at hand
        self._in_body = False
        self._request_bytes = 0  # of the head, and of the body so far
        self._bare_bytes = 0  # of a body since its last content: trailers, extensions of chunks
        self._left: int | None = None  # bytes of the body, or of a chunk and its line break, that are not parsed yet
        self._in_trailers = False

    # Reading

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.client is not None:
            # A client of IPv4 at a socket for both.
            self.client = (self.client[0].removeprefix("::ffff:"), self.client[1])
        self._limits.connections = self.connections
        self._limits.turns.accept()
        if len(self.connections) > self._limits.max_connections:
            self.refuse(HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections; try again later.")
        else:
            self._wait_in(self._limits.heads)

    def connection_lost(self, exc: Exception | None) -> None:
        self._drop_unparsed()
        if (on_lost := getattr(self.cycle, "on_lost", None)) is not None:
            on_lost()
        super().connection_lost(exc)
        # Breaks reference cycles, which would keep 10 kB for each watcher until the garbage collector runs.
        self.cycle = self.scope = None  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self._idle and self._fast_path is not None and len(data) <= MAX_HEAD_BYTES:
            # As `_is_answered`, with fewer calls: most of the time it is one whole read of a poller.
            response = self._fast_path.read(data, self.server_state.default_headers, self._begin_waiting)
            if response is not None:
                self._used = True
                if response:
                    self.transport.write(response)
                if not response or self.flow.write_paused:
                    self._limit()
                return
        self._unparsed = self._unparsed + data if self._unparsed else data
        self._parse()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._parse()

    def _parse(self) -> None:
        """Parse at most up to the end of one request, and the next ones once it has its response."""
        if self._parsing or self.transport.is_closing():
            return
        self._parsing = True
        try:
            self._parse_pieces()
        except RefusedError as error:
            self.refuse(*error.args)
        finally:
            self._parsing = False
        self._limit()

    def _parse_pieces(self) -> None:
        data, begin, pieces = self._unparsed, 0, 0
        try:
            while begin < len(data) and (self._in_body or self._is_ready()):
                if (pieces := pieces + 1) > PIECES_PER_TURN:
                    self._go_on_later()
                    break
                end = (self._end_of_content if self._in_body else self._end_of_head)(data, begin)
                if not end:
                    break
                piece = data[begin:end]
                begin = end
                self._request_bytes += len(piece)
                if self._in_body or not self._is_answered(piece):
                    self._feed(piece)
        finally:
            self._unparsed = data[begin:]

    def _go_on_later(self) -> None:
        self.flow.pause_reading()
        if not self._has_more:
            self._has_more = True
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._has_more = False
        self._parse()
        pending = self.cycle.body if self._response_pending() else b""
        # A body that the service has not read yet is read on when it has.
        if (
            not self._has_more
            and self._in_body
            and len(pending) <= HIGH_WATER_LIMIT
            and not self.transport.is_closing()
        ):
            self.flow.resume_reading()

    def _limit(self) -> None:
        """Count the bytes that are kept, and set the timer for what is awaited."""
        self._idle = False
        if self.transport.is_closing():
            self._drop_unparsed()
            return
        limits, unparsed = self._limits, len(self._unparsed)
        if self._in_body:
            self._wait_in(limits.bodies)
        elif not self._is_ready():
            self._wait_in(None)
            if unparsed:
                self.flow.pause_reading()
        else:
            if not self._has_more:
                self.flow.resume_reading()
            self._idle = not unparsed
            self._wait_in(limits.idle if self._idle else limits.heads)
        kept = unparsed + (self._request_bytes if self._in_body and self._response_pending() else 0)
        limits.set_unfinished(self, kept)

    def _drop_unparsed(self) -> None:
        self._wait_in(None)
        self._unparsed = b""
        self._limits.set_unfinished(self, 0)

    def _is_ready(self) -> bool:
        """Whether the next request may be parsed: the one before has its response, and the client reads it."""
        return not (self._response_pending() or self.flow.write_paused or self.transport.is_closing())

    def _is_answered(self, data: bytes) -> bool:
        """Whether these bytes are the head of a read that the fast path answers, now or later."""
        if self._fast_path is None or len(data) > MAX_HEAD_BYTES:
            return False
        response = self._fast_path.read(data, self.server_state.default_headers, self._begin_waiting)
        if response:
            self.transport.write(response)
        return response is not None

    def _begin_waiting(self, fields: Fields) -> FastRequest:
        return self._begin_fast_request(FastRequest(fields))

    def _end_of_head(self, data: bytes, begin: int) -> int:
        """Where a head ends; 0 if it is not complete. Raises RefusedError if it is too large."""
        end = data.find(b"\r\n\r\n", begin) + 4
        size = (end if end > 3 else len(data)) - begin
        if size > MAX_HEAD_BYTES:
            self.url = _requested(data[begin : begin + size])
            raise _too_large(self.url)
        if end > 3:
            self._head = data[begin:end]
            return end
        # What is no head is not waited for: the parser refuses it.
        return 0 if _HEAD_BEGINS.match(data, begin) else len(data)

    def _end_of_content(self, data: bytes, begin: int) -> int:
        """Where the next part of a body ends, which is not beyond the body; 0 if it is not complete.

        The parser reads the same bytes and decides what they mean. Raises RefusedError.
        """
        if self._left is None:
            length = next((value for name, value in self.headers if name == b"content-length"), b"0")
            self._left = int(length)
        if self._left:
            end = min(len(data), begin + self._left)
            self._left -= end - begin
            return end
        end = data.find(b"\n", begin) + 1
        self._bare_bytes += (end or len(data)) - begin
        if self._bare_bytes > MAX_HEAD_BYTES:
            detail = f"The body has more than {MAX_HEAD_BYTES // 1024} KiB of trailers or chunk extensions."
            raise RefusedError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, detail)
        if not end:
            self._bare_bytes -= len(data) - begin
        elif not self._in_trailers:
            self._left = _chunk_size(data[begin:end])
            self._in_trailers = not self._left
        return end

    def _feed(self, piece: bytes) -> None:
        """Have the parser read a piece. Raises RefusedError."""
        try:
            self.parser.feed_data(piece)
        except HttpParserUpgrade:
            self._feed_without_upgrade()
        except HttpParserError as error:
            if isinstance(error, HttpParserCallbackError) and isinstance(error.__context__, RefusedError):
                raise error.__context__ from None
            detail = "Invalid HTTP request received."
            self.logger.warning(detail)
            raise RefusedError(HTTPStatus.BAD_REQUEST, detail) from None

    def _feed_without_upgrade(self) -> None:
        """Have a new parser read the head again, without its Upgrade.

        A server may ignore Upgrade and continue with HTTP/1.1 (RFC 9110, section 7.8). Java's HttpClient sends one with
        its first request. The parser would read neither a body behind such a head nor another request.
        """
        if self.parser.get_method() == b"CONNECT":
            detail = "CONNECT is not supported: this service is not a proxy."
            raise RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, detail)
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._head = _UPGRADE.sub(b"", self._head)
        self._feed(self._head)

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_headers_complete(self) -> None:
        self._check_head()
        if self.parser.should_upgrade():
            return
        self._bare_bytes, self._request_bytes = 0, len(self._head)
        self._left, self._in_trailers = None, False
        if self._fast_path is not None:
            line = self._head[: self._head.index(b"\r\n")]
            self._fast_request = self._fast_path.claim_put(line, self.headers)
        if self._fast_request is None:
            self._begin_asgi_request()
        else:
            self._begin_fast_request(self._fast_request)
        # Not before: a target that uvicorn cannot parse is refused as a head.
        self._in_body = True

    def _begin_fast_request(self, request: FastRequest) -> FastRequest:
        request.client, request.server_state, request.respond = self.client, self.server_state, self._respond
        self.cycle = request  # type: ignore[assignment]
        return request

    def _begin_asgi_request(self) -> None:
        url, expects, headers = self.url, self.expect_100_continue, self.headers
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers
        if self._local_url().startswith(b"/blocklist/watch") and self.parser.get_http_version() != "1.0":
            self.scope["extensions"] = {DIRECT: {"write": self._write_chunk}}
        super().on_headers_complete()
        self.cycle.transport = HeadWithBody(self.transport)  # type: ignore[assignment]

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        start = super()._start_asgi_task
        if self.parser.get_http_version() == "1.0":
            app = _without_chunks(cycle, app)
        self._limits.turns.begin(self._client_key, lambda: None if cycle.disconnected else start(cycle, app))

    def _client_key(self) -> Hashable:
        """Whose turn a request is. Health checks and changes do not wait for reads of the same client."""
        forwarded = [value.decode("latin-1") for name, value in self.headers if name == b"x-forwarded-for"]
        credentials = [value for name, value in self.headers if name in _CREDENTIALS]
        peer = self.client[0] if self.client is not None else ""
        url = self._local_url()
        kind = url if url in _HEALTH else self.scope["method"] in _READS
        return client_address(peer, forwarded, self._limits.trusted_proxies), *credentials, kind

    def _local_url(self) -> bytes:
        """The URL without the root path, which a proxy may have kept."""
        return self.url.removeprefix(self._limits.root_path)

    def on_chunk_header(self) -> None:
        # Trailers, behind the last chunk, are discarded: uvicorn would add them to the headers of the request, behind
        # the back of a proxy that replaces these.
        self.headers = []

    def on_body(self, body: bytes) -> None:
        self._bare_bytes = 0
        if self._fast_request is None:
            super().on_body(body)
        else:
            self._fast_request.body += body

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._in_body = False
        request, self._fast_request = self._fast_request, None
        if request is None or self._fast_path is None:
            super().on_message_complete()
        else:
            self._fast_path.put(request)

    def _check_head(self) -> None:
        """Raises RefusedError, which ends the parsing, unless the request can be served."""
        if len(self.headers) > MAX_HEADERS:
            raise _too_large(self.url)
        hosts = [name for name, _ in self.headers].count(b"host")
        # HTTP/1.0 may omit it (RFC 9112, section 3.2).
        if hosts != 1 and (hosts or self.parser.get_http_version() >= "1.1"):
            fault = "more than one Host header" if hosts else "no Host header"
            raise RefusedError(HTTPStatus.BAD_REQUEST, f"The request has {fault}; send one.")
        codings = [value for name, value in self.headers if name == b"transfer-encoding"]
        if codings and self.parser.get_http_version() < "1.1":
            # RFC 9112, section 6.1: the framing is faulty, and a proxy may see another end of the body.
            raise RefusedError(HTTPStatus.BAD_REQUEST, "Transfer-Encoding needs HTTP/1.1.")
        if codings and b",".join(codings).strip().lower() != b"chunked":
            raise RefusedError(
                HTTPStatus.NOT_IMPLEMENTED, "Transfer-Encoding may be chunked only; send the body plain."
            )

    # Responses

    def _respond(self, request: FastRequest, response: bytes | None) -> None:
        """Send the response; close the connection if there is none."""
        request.response_complete = True
        if request.disconnected or self.transport.is_closing():
            return
        if response is None:
            self.transport.close()
            return
        self.transport.write(response)
        if not request.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def on_response_complete(self) -> None:
        """Called by uvicorn, too, where it would begin the next request of its queue, which is always empty."""
        self.server_state.total_requests += 1
        # The response to a HEAD has no body, and the next response may be written at once.
        if isinstance(pending := getattr(self.cycle, "transport", None), HeadWithBody):
            pending.flush()
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self._parse()

    def _write_chunk(self, data: bytes) -> bool:
        """Write one chunk of a chunked body, for app.watch, in a third of the time of ASGI's `send`."""
        if self.flow.write_paused or self.transport.is_closing():
            return False
        self.cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def _response_pending(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def on_timeout(self, deadlines: DeadlineQueue) -> None:
        """The deadline of this connection in this queue has passed; it is no longer in the queue."""
        self._deadlines = None
        if self._in_body and self.flow.read_paused:
            # The service itself does not read.
            self._wait_in(deadlines)
        elif self._used and self._idle:
            self._used = False
            self._wait_in(deadlines)
        elif not (self._in_body or self._unparsed):
            # Nothing was sent yet. A response now could be taken for the one to a request that is just being sent.
            self.transport.close()
        else:
            part = "body" if self._in_body else "head"
            self.url = self.url if self._in_body else _requested(self._unparsed)
            detail = f"The {part} of the request was not received within {deadlines.timeout:g} seconds."
            self.refuse(HTTPStatus.REQUEST_TIMEOUT, detail)

    def refuse(self, status: HTTPStatus, detail: str) -> None:
        """Close the connection; before that send a problem, unless it could be taken for another request's response."""
        self._drop_unparsed()
        if self.transport.is_closing():
            return
        pending = self._response_pending()
        if pending and not self._in_body:
            # What comes behind a whole request is refused: its response ends the connection.
            self.cycle.keep_alive = False
            return
        if pending == self._in_body and not (pending and getattr(self.cycle, "response_started", False)):
            url = self._limits.root_path + self._local_url()
            self.transport.write(_problem(status, detail, url, self.server_state.default_headers))
        self.transport.close()

    def _wait_in(self, deadlines: DeadlineQueue | None) -> None:
        if self._deadlines is not deadlines:
            if self._deadlines is not None:
                self._deadlines.remove(self)
            self._deadlines = deadlines
            if deadlines is not None:
                deadlines.add(self)


def _without_chunks(cycle: RequestResponseCycle, app: ASGI3Application) -> ASGI3Application:
    """The app for a client that knows no chunks: a body of unknown length ends with the connection (RFC 9112, 6.1)."""

    async def run(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        async def send_plain(message: ASGISendEvent) -> None:
            if message["type"] == "http.response.start":
                if all(name.lower() != b"content-length" for name, _ in message.get("headers", ())):
                    cycle.chunked_encoding = cycle.keep_alive = False
            elif message["type"] == "http.response.body" and not cycle.keep_alive:
                # uvicorn compares the body with the length that was announced.
                cycle.expected_content_length = max(cycle.expected_content_length, len(message.get("body", b"")))
            await send(message)

        await app(scope, receive, send_plain)

    return run


def _chunk_size(line: bytes) -> int:
    """How many bytes the line of a chunk announces, with the line break behind them; 0 for the last chunk."""
    try:
        size = int(line.partition(b";")[0], 16)
    except ValueError:
        return 0  # The parser refuses it.
    return size + 2 if size else 0


def _requested(head: bytes) -> bytes:
    """The URL in a head that may be cut anywhere."""
    return head.partition(b" ")[2].partition(b" ")[0].partition(b"\r")[0]


def _too_large(url: bytes) -> RefusedError:
    if len(url) > MAX_URL_BYTES:
        return RefusedError(HTTPStatus.REQUEST_URI_TOO_LONG, f"The URL is longer than {MAX_URL_BYTES // 1024} KiB.")
    detail = f"The head of the request exceeds {MAX_HEAD_BYTES // 1024} KiB or {MAX_HEADERS} headers."
    return RefusedError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, detail)


def _reset(transport: asyncio.Transport) -> None:
    # Without a reset the kernel would go on trying to deliver what is in its own buffer.
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.abort()


def _problem(status: HTTPStatus, detail: str, url: bytes, default_headers: list[tuple[bytes, bytes]]) -> bytes:
    """A problem as app.api renders it, for requests that never reach a route."""
    problem = {
        "type": f"urn:blocklist:problem:{status.name.lower().replace('_', '-')}",
        "title": status.phrase,
        "status": status.value,
        "detail": detail,
        "instance": url[:MAX_URL_BYTES].partition(b"?")[0].decode("latin-1"),
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
