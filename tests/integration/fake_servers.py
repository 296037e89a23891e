"""Servers that are no blocklist service, and a relay in front of one that is: each real, on a free port of loopback."""

from __future__ import annotations

import re
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Final

Responder = Callable[[socket.socket], None]
"""What a stranger does on a connection when it has read a request; then it closes the connection."""

SERVICE_HEADERS: Final = ("Blocklist-Revision: 7", "Blocklist-History: 00c0ffee")
"""The headers by which the service is known."""


@dataclass(frozen=True, kw_only=True)
class FakeServer:
    """`requests` are those of all connections, `times` the moments at which they were read (seconds, monotonic)."""

    url: str
    requests: list[bytes] = field(default_factory=list)
    request_times: list[float] = field(default_factory=list)


def http_response(body: bytes = b"", status: str = "200 OK", *headers: str, length: int | None = None) -> bytes:
    """The bytes of an answer; `length` is what Content-Length says if not the truth."""
    size = len(body) if length is None else length
    lines = [f"HTTP/1.1 {status}", *headers, "Connection: close", f"Content-Length: {size}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def event_stream_head(events: str = "", *headers: str) -> bytes:
    """The beginning of an event stream, as the service answers it."""
    head = "\r\n".join(["HTTP/1.1 200 OK", "Content-Type: text/event-stream", *(headers or SERVICE_HEADERS), "", ""])
    return f"{head}: watching\n\n{events}".encode()


def respond(data: bytes) -> Responder:
    return lambda connection: connection.sendall(data)


def respond_and_hang(data: bytes = b"") -> Responder:
    """Says it, and nothing more until the client leaves."""

    def serve(connection: socket.socket) -> None:
        connection.sendall(data)
        while connection.recv(65536):
            pass

    return serve


def respond_endlessly(data: bytes, more: bytes) -> Responder:
    """Says `more` again and again, until the client leaves."""

    def serve(connection: socket.socket) -> None:
        connection.sendall(data)
        while True:
            connection.sendall(more)

    return serve


def respond_and_reset(data: bytes = b"") -> Responder:
    """Says it, and resets the connection."""

    def serve(connection: socket.socket) -> None:
        connection.sendall(data)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    return serve


@contextmanager
def fake_server(*answers: Responder | bytes) -> Iterator[FakeServer]:
    """A server that gives each connection the next of the answers, the last one again and again.

    Leaving waits for the connections to end: a client that keeps one open fails the test by timeout.
    """
    each = chain((respond(it) if isinstance(it, bytes) else it for it in answers), repeat(_last(answers)))

    def serve(connection: socket.socket) -> None:
        if request := _read_request(connection):
            known.requests.append(request)
            known.request_times.append(time.monotonic())
            next(each)(connection)

    with tcp_server(serve) as url:
        known = FakeServer(url=url)
        yield known


@contextmanager
def relay(
    to: str, *, host: str = "127.0.0.1", prefix: bytes = b"", limits: Iterable[int] = repeat(2**62)
) -> Iterator[FakeServer]:
    """The service at `to`, also elsewhere, its paths behind a prefix; cuts each connection after so many bytes."""
    address, _, port = to.removeprefix("http://").partition(":")
    each = iter(limits)

    def serve(client: socket.socket) -> None:
        with socket.create_connection((address, int(port))) as service:
            back = threading.Thread(target=_copy, args=(service, client, next(each)))
            back.start()
            while data := client.recv(65536):
                known.requests.append(data)
                service.sendall(data.replace(b" " + prefix + b"/blocklist", b" /blocklist", 1))
            with suppress(OSError):
                service.shutdown(socket.SHUT_RDWR)
            back.join()

    with tcp_server(serve, host) as url:
        known = FakeServer(url=url + prefix.decode())
        yield known


def _copy(source: socket.socket, target: socket.socket, limit: int) -> None:
    with suppress(OSError):
        while limit and (data := source.recv(min(65536, limit))):
            target.sendall(data)
            limit -= len(data)
        target.shutdown(socket.SHUT_RDWR)


def _last(answers: tuple[Responder | bytes, ...]) -> Responder:
    last = answers[-1]
    return respond(last) if isinstance(last, bytes) else last


def _read_request(connection: socket.socket) -> bytes:
    """A whole request with its body; nothing if the client leaves before."""
    request = b""
    while b"\r\n\r\n" not in request:
        if not (data := connection.recv(65536)):
            return b""
        request += data
    head, _, body = request.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
    while length and len(body) < int(length[1]):
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


@contextmanager
def tcp_server(serve: Responder, host: str = "127.0.0.1", *, daemon: bool = False) -> Iterator[str]:
    """A server that does this on each connection, in a thread of its own; gives its URL.

    Leaving waits for the connections to end, but not for those of a `daemon`.
    """

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            # The client may leave at any time.
            with suppress(OSError):
                serve(self.request)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = daemon
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    with Server((host, 0), Handler) as server:
        accepting = threading.Thread(target=server.serve_forever, args=(0.02,))
        accepting.start()
        try:
            yield f"http://{f'[{host}]' if ':' in host else host}:{server.server_address[1]}"
        finally:
            server.shutdown()
            accepting.join()
