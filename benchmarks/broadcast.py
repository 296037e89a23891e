"""A server with connected watchers, and one change at a time."""

import asyncio
import gc
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from benchmarks import etcd
from benchmarks.connections import EtcdConnection, HttpConnection
from benchmarks.fanout import HOST, Fanout, Watcher, connect, get
from benchmarks.harness import Server

CONNECT_PAUSE = 0.02  # seconds for a server to accept a new connection
TIMEOUT = 60.0  # seconds for a change to reach all watchers
WARM_UP_TIMEOUT = 5.0  # seconds for the first changes, which may be too early
ATTEMPTS = 12

_numbers = count(1)


class Latency(NamedTuple):
    """Milliseconds from a change's response and from its request until the last watcher, and 99 % of them, had it."""

    from_response: float
    from_request: float
    p99_from_response: float
    p99_from_request: float


@dataclass(kw_only=True)
class Broadcast:
    """A server with its watchers; `request` makes the bytes of a change from its token and number."""

    server: Server
    watchers: int
    request: Callable[[str, int], bytes]
    fanout: Fanout
    connections: list[Watcher]
    writing: type[HttpConnection] = HttpConnection

    async def ready(self) -> "Broadcast":
        """Repeat changes until one reaches all watchers: only then has a busy server subscribed all of them."""
        for _ in range(ATTEMPTS):
            with suppress(TimeoutError):
                await self.change(WARM_UP_TIMEOUT)
                return self
        raise TimeoutError(f"no change reached all of {self.watchers} watchers")

    async def change(self, timeout: float = TIMEOUT) -> Latency:
        """Make one change and wait until all watchers have it. Raises TimeoutError otherwise."""
        number = next(_numbers)
        token = f"bench-{number:06d}"
        request = self.request(token, number)
        writer = await self._writer()
        last = self.fanout.expect(token.encode(), self.watchers)
        gc.collect()
        gc.disable()
        try:
            sent = time.perf_counter()
            answered = await asyncio.wait_for(writer.send(request), timeout)
            await asyncio.wait_for(last, timeout)
        finally:
            gc.enable()
            writer.close()
        moments = self.fanout.received_at
        p99 = moments[int(len(moments) * 0.99)]
        return Latency(*(1000 * (received - since) for received in (moments[-1], p99) for since in (answered, sent)))

    def close(self) -> None:
        """Abort all connections."""
        for watcher in self.connections:
            if watcher.transport:
                watcher.transport.abort()

    async def _writer(self) -> HttpConnection:
        """A new connection for each change: servers close connections that are idle between rounds."""
        _, writer = await asyncio.get_running_loop().create_connection(self.writing, HOST, self.server.port)
        await asyncio.sleep(CONNECT_PAUSE)
        return writer


async def broadcast(
    server: Server,
    *,
    path: str,
    watchers: int,
    request: Callable[[str, int], bytes],
    sources: Sequence[str] = (HOST,),
) -> Broadcast:
    """Connect `watchers` streams of `GET path`."""
    fanout = Fanout()
    connected = await connect(server, fanout, [get(path)] * watchers, sources=sources)
    return await Broadcast(
        server=server, watchers=watchers, request=request, fanout=fanout, connections=connected
    ).ready()


async def etcd_broadcast(
    server: Server, *, watchers: int, connections: int, value: bytes, sources: Sequence[str] = (HOST,)
) -> Broadcast:
    """Connect `watchers` gRPC watches over `connections`; each put is a new stream."""
    message = etcd.watch_request(b"bench", b"bencz")
    share = watchers // connections
    watches = [etcd.call(etcd.WATCH, 2 * number + 1, message, last=False) for number in range(share)]
    fanout = Fanout()
    opening = etcd.hello() + b"".join(watches)
    connected = await connect(server, fanout, [opening] * connections, sources=sources)

    def request(token: str, number: int) -> bytes:
        return etcd.call(etcd.PUT, 2 * number - 1, etcd.put_request(token.encode(), value), last=True)

    return await Broadcast(
        watchers=share * connections,
        writing=EtcdConnection,
        server=server,
        request=request,
        fanout=fanout,
        connections=connected,
    ).ready()
