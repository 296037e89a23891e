"""The receiving end of a broadcast: raw sockets on one event loop, the same for every contender."""

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from itertools import cycle
from typing import cast

from benchmarks.harness import Server

HOST = "127.0.0.1"
SOURCES = tuple(f"127.0.0.{number}" for number in range(2, 12))
"""Addresses of thousands of clients, within the ports per address and the watches per client."""
CONNECT_BATCH = 100  # connections opened together, below each server's backlog
TOKEN = 12  # length of the token that marks a change


class Fanout:
    """Counts the streams that have received the current token, with the times (`perf_counter`)."""

    def __init__(self) -> None:
        """Nothing is expected yet."""
        self.token = b"-" * TOKEN
        self.missing = 0
        self.received_at: list[float] = []
        self.all_received: asyncio.Future[None] | None = None

    def expect(self, token: bytes, count: int) -> asyncio.Future[None]:
        """Return a future that is done once `token` was received `count` times."""
        assert len(token) == TOKEN
        self.token, self.missing, self.received_at = token, count, []
        self.all_received = asyncio.get_running_loop().create_future()
        return self.all_received

    def count_received(self, count: int) -> None:
        """`count` more streams have received the token."""
        self.missing -= count
        self.received_at.extend([time.perf_counter()] * count)
        if self.missing <= 0 and self.all_received and not self.all_received.done():
            self.all_received.set_result(None)


class Watcher(asyncio.Protocol):
    """Sends its opening bytes, then searches for the token, even if it is split between two reads."""

    def __init__(self, fanout: Fanout, opening: bytes) -> None:
        """One per connection."""
        self.fanout, self.opening, self.tail = fanout, opening, b""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Subscribe."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(self.opening)

    def data_received(self, data: bytes) -> None:
        """The kept tail is shorter than the token, so no token counts twice."""
        text = self.tail + data
        if count := text.count(self.fanout.token):
            self.fanout.count_received(count)
        self.tail = text[1 - TOKEN :]


async def connect(
    server: Server, fanout: Fanout, openings: Sequence[bytes], *, sources: Sequence[str] = (HOST,)
) -> list[Watcher]:
    """Open a connection for each opening, from these addresses in turn."""
    loop = asyncio.get_running_loop()
    connected: list[Watcher] = []
    addresses = cycle(sources)
    for first in range(0, len(openings), CONNECT_BATCH):
        waiting = [
            loop.create_connection(
                partial(Watcher, fanout, opening), HOST, server.port, local_addr=(next(addresses), 0)
            )
            for opening in openings[first : first + CONNECT_BATCH]
        ]
        connected += [protocol for _, protocol in await asyncio.gather(*waiting)]
    return connected


def get(path: str) -> bytes:
    """Return a request for a stream."""
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode()
