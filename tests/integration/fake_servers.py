"""Servers on loopback that are not a blocklist service, and a relay in front of one."""

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
"""What a fake server does on a connection after it has read a request; then it closes the connection."""

SERVICE_HEADERS: Final = ("Blocklist-Revision: 7", "Blocklist-History: 00c0ffee")
"""The headers by which clients recognize the service."""


@dataclass(frozen=True, kw_only=True)
class FakeServer:
    """`requests` of all connections, and `request_times` at which they were read (seconds, monotonic)."""

    url: str
    requests: list[bytes] = field(default_factory=list)
    request_times: list[float] = field(default_factory=list)


def http_response(body: bytes = b"", status: str = "200 OK", *headers: str, length: int | None = None) -> bytes:
    """The bytes of a response; `length` is for a wrong Content-Length."""
    size = len(body) if length is None else length
    lines = [f"HTTP/1.1 {status}", *headers, "Connection: close", f"Content-Length: {size}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def event_stream_head(events: str = "", *headers: str) -> bytes:
    """The beginning of an event stream as the service sends it."""
    head = "\r\n".join(["HTTP/1.1 200 OK", "Content-Type: text/event-stream", *(headers or SERVICE_HEADERS), "", ""])
    return f"{head}: watching\n\n{events}".encode()


def respond(data: bytes) -> Responder:
    return lambda connection: connection.sendall(data)


def respond_and_hang(data: bytes = b"") -> Responder:
    """Send `data`, then nothing until the client disconnects."""

    def serve(connection: socket.socket) -> None:
        connection.sendall(data)
        while connection.recv(65536):
            pass

    return serve


def respond_endlessly(data: bytes, more: bytes, pause: float = 0) -> Responder:
    """Send `data`, then `more` every `pause` seconds until the client disconnects."""

    def serve(connection: socket.socket) -> None:
        connection.sendall(data)
        while True:
            time.sleep(pause)
            connection.sendall(more)

    return serve


def respond_and_reset(data: bytes = b"") -> Responder:
    """Send `data`, then reset the connection."""

    def serve(connection: socket.socket) -> None:
        connection.sendall(data)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    return serve


@contextmanager
def fake_server(*responses: Responder | bytes) -> Iterator[FakeServer]:
    """A server that gives each connection the next of the responses, and repeats the last one.

    The exit waits until all connections are closed: a client that keeps one open fails the test by timeout.
    """
    each = chain((respond(it) if isinstance(it, bytes) else it for it in responses), repeat(_last(responses)))

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
    """Relay to the service at `to`, below the path `prefix`; close each connection after `limits` bytes."""
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


def _last(responses: tuple[Responder | bytes, ...]) -> Responder:
    last = responses[-1]
    return respond(last) if isinstance(last, bytes) else last


def _read_request(connection: socket.socket) -> bytes:
    """A whole request with its body; empty if the client disconnects before."""
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
    """A server that calls `serve` for each connection, in a thread of its own; yields its URL.

    The exit waits until all connections are closed, unless `daemon`.
    """

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            # The client may disconnect at any time.
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
