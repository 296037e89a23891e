"""The receiving end of a broadcast: raw sockets on one event loop, the same for every contender."""

import asyncio
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

from benchmarks import etcd
from benchmarks.harness import Server

HOST = "127.0.0.1"
AT_ONCE = 100  # connections opened together, within any server's backlog
SETTLED = 0.02  # seconds in which a server takes a new connection
TOKEN = 12  # length of the word that marks a change


class Fanout:
    """Counts in how many streams the word of the present change has come by."""

    def __init__(self) -> None:
        """Nothing is expected yet."""
        self.token = b"-" * TOKEN
        self.missing = 0
        self.all_have_it: asyncio.Future[float] | None = None

    def expect(self, token: bytes, count: int) -> asyncio.Future[float]:
        """The moment (`perf_counter`) at which `token` has been seen `count` times."""
        assert len(token) == TOKEN
        self.token, self.missing = token, count
        self.all_have_it = asyncio.get_running_loop().create_future()
        return self.all_have_it

    def seen(self, count: int) -> None:
        """`count` more streams have it."""
        self.missing -= count
        if self.missing <= 0 and self.all_have_it and not self.all_have_it.done():
            self.all_have_it.set_result(time.perf_counter())


class Watcher(asyncio.Protocol):
    """Sends its opening bytes, then looks for the word, also where two reads cut it in half."""

    def __init__(self, fanout: Fanout, opening: bytes) -> None:
        """One for each connection."""
        self.fanout, self.opening, self.tail, self.received = fanout, opening, b"", 0
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Subscribe."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(self.opening)

    def data_received(self, data: bytes) -> None:
        """The tail is shorter than the word, so nothing is counted twice."""
        self.received += len(data)
        text = self.tail + data
        if count := text.count(self.fanout.token):
            self.fanout.seen(count)
        self.tail = text[1 - TOKEN :]


class HttpWriter(asyncio.Protocol):
    """Sends a request; the first byte of what comes back is the answer."""

    def __init__(self) -> None:
        """Nothing asked yet."""
        self.answered: asyncio.Future[float] | None = None
        self.answer = b""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport to ask on."""
        self.transport = cast("asyncio.Transport", transport)

    def ask(self, request: bytes) -> asyncio.Future[float]:
        """The moment of the answer."""
        assert self.transport is not None
        self.answered = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self.answered

    def data_received(self, data: bytes) -> None:
        """Later pieces of the same answer change nothing."""
        self.answer = data
        self.done()

    def close(self) -> None:
        """Hang up."""
        if self.transport:
            self.transport.close()

    def done(self) -> None:
        """The answer is here."""
        if self.answered and not self.answered.done():
            self.answered.set_result(time.perf_counter())


class EtcdWriter(HttpWriter):
    """The same over HTTP/2: window updates and pings come before the answer, and do not count."""

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
        """Answer pings; the first frame of data is the answer."""
        self.buffer += data
        for kind, flags, _stream, payload in etcd.frames(self.buffer):
            if kind == etcd.DATA:
                self.done()
            elif kind == etcd.PING and not flags & etcd.ACK and self.transport:
                self.transport.write(etcd.frame(etcd.PING, etcd.ACK, 0, payload))


@dataclass(kw_only=True)
class Broadcast:
    """A contender with its watchers connected; `request` makes the bytes of a change from its token and number."""

    server: Server
    watchers: int
    request: Callable[[str, int], bytes]
    fanout: Fanout
    connections: list[Watcher]
    writing: type[HttpWriter] = HttpWriter
    changes: int = 0

    async def change(self) -> tuple[float, float]:
        """One change: milliseconds from its answer, and from its sending, to the last watcher that received it."""
        self.changes += 1
        token = f"bench-{self.changes:06d}"
        request = self.request(token, self.changes)
        writer = await self._writer()
        last = self.fanout.expect(token.encode(), self.watchers)
        gc.collect()
        gc.disable()
        sent = time.perf_counter()
        answered = await asyncio.wait_for(writer.ask(request), 30)
        received = await asyncio.wait_for(last, 30)
        gc.enable()
        writer.close()
        return (received - answered) * 1000, (received - sent) * 1000

    def close(self) -> None:
        """Drop all connections."""
        for watcher in self.connections:
            if watcher.transport:
                watcher.transport.abort()

    async def _writer(self) -> HttpWriter:
        """A connection of its own for each change: servers close the ones that rest between the rounds."""
        _, writer = await asyncio.get_running_loop().create_connection(self.writing, HOST, self.server.port)
        await asyncio.sleep(SETTLED)
        return writer


async def connect(server: Server, fanout: Fanout, openings: list[bytes]) -> list[Watcher]:
    """A connection for each opening."""
    loop = asyncio.get_running_loop()
    connected: list[Watcher] = []
    for first in range(0, len(openings), AT_ONCE):
        waiting = [
            loop.create_connection(partial(Watcher, fanout, opening), HOST, server.port)
            for opening in openings[first : first + AT_ONCE]
        ]
        connected += [protocol for _, protocol in await asyncio.gather(*waiting)]
    return connected


def get(path: str) -> bytes:
    """A request for a stream."""
    return f"GET {path} HTTP/1.1\r\nHost: bench\r\nAccept: text/event-stream\r\n\r\n".encode()


def put(path: str, body: bytes) -> Callable[[str, int], bytes]:
    """A maker of PUTs: `@` in the path and in the body becomes the token."""

    def request(token: str, _number: int) -> bytes:
        filled = body.replace(b"@", token.encode())
        head = f"PUT {path.replace('@', token)} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(filled)}\r\n\r\n".encode() + filled

    return request


async def broadcast(server: Server, *, path: str, count: int, request: Callable[[str, int], bytes]) -> Broadcast:
    """`count` streams of `GET path`, and a writer."""
    fanout = Fanout()
    connections = await connect(server, fanout, [get(path)] * count)
    return Broadcast(server=server, watchers=count, request=request, fanout=fanout, connections=connections)


async def etcd_broadcast(server: Server, *, count: int, connections: int, value: bytes) -> Broadcast:
    """`count` gRPC watches, spread over so many connections; each put is a stream of its own."""
    message = etcd.watch_request(b"bench", b"bencz")
    share = count // connections
    watches = [etcd.call(etcd.WATCH, 2 * number + 1, message, last=False) for number in range(share)]
    fanout = Fanout()
    connected = await connect(server, fanout, [etcd.hello() + b"".join(watches)] * connections)

    def request(token: str, number: int) -> bytes:
        return etcd.call(etcd.PUT, 2 * number - 1, etcd.put_request(token.encode(), value), last=True)

    return Broadcast(
        watchers=share * connections,
        writing=EtcdWriter,
        server=server,
        request=request,
        fanout=fanout,
        connections=connected,
    )
