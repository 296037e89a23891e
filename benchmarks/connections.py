"""Clients that send one request at a time, on a raw socket of an event loop."""

import asyncio
import time
from collections.abc import Callable
from typing import cast

from benchmarks import etcd


class HttpConnection(asyncio.Protocol):
    """Sends a request; the first byte received is the response."""

    def __init__(self) -> None:
        """No request yet."""
        self.pending: asyncio.Future[float] | None = None
        self.response = b""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport for requests."""
        self.transport = cast("asyncio.Transport", transport)

    def send(self, request: bytes) -> asyncio.Future[float]:
        """Return a future of the time (`perf_counter`) of the response."""
        assert self.transport is not None
        self.pending = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self.pending

    def data_received(self, data: bytes) -> None:
        """Later pieces of the same response do not count."""
        self.response = data
        self.complete()

    def connection_lost(self, _exc: Exception | None) -> None:
        """Fail a pending request."""
        if self.pending and not self.pending.done():
            self.pending.set_exception(ConnectionError("the server closed the connection"))

    def close(self) -> None:
        """Close the connection."""
        if self.transport:
            self.transport.close()

    def complete(self) -> None:
        """The response has arrived."""
        if self.pending and not self.pending.done():
            self.pending.set_result(time.perf_counter())


class EtcdConnection(HttpConnection):
    """The same over HTTP/2: window updates and pings before the response do not count."""

    def __init__(self) -> None:
        """No frames yet."""
        super().__init__()
        self.buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open the connection."""
        super().connection_made(transport)
        assert self.transport is not None
        self.transport.write(etcd.hello())

    def data_received(self, data: bytes) -> None:
        """Acknowledge pings; the first DATA frame is the response."""
        self.buffer += data
        for kind, flags, _stream, payload in etcd.frames(self.buffer):
            if kind == etcd.DATA:
                self.complete()
            elif kind == etcd.PING and not flags & etcd.ACK and self.transport:
                self.transport.write(etcd.frame(etcd.PING, etcd.ACK, 0, payload))


def put(path: str, body: bytes) -> Callable[[str, int], bytes]:
    """Return a function that makes PUTs: `@` in path and body is replaced by the token."""

    def request(token: str, _number: int) -> bytes:
        filled = body.replace(b"@", token.encode())
        head = f"PUT {path.replace('@', token)} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(filled)}\r\n\r\n".encode() + filled

    return request
