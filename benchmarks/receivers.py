"""Listeners that receive pushes: raw sockets on one event loop, a port each."""

import asyncio
import re
from functools import partial
from typing import cast

from benchmarks.fanout import HOST, Fanout

_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *([0-9]+)")
_TAKEN = b"HTTP/1.1 204 No Content\r\n\r\n"


class Receiver(asyncio.Protocol):
    """Responds to each POST at once, and searches it for the token."""

    def __init__(self, fanout: Fanout) -> None:
        """One for each connection."""
        self.fanout, self.pending = fanout, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport for the response."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """A request may arrive in pieces; there is one at a time."""
        self.pending += data
        head, found, body = self.pending.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if found and length and len(body) >= int(length[1]):
            self.pending = b""
            self.transport.write(_TAKEN)
            if self.fanout.token in body:
                self.fanout.count_received(1)


async def start_receivers(fanout: Fanout, count: int) -> tuple[list[asyncio.Server], list[int]]:
    """Start `count` receivers; return them and their ports."""
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(partial(Receiver, fanout), HOST, 0) for _ in range(count)]
    return servers, [server.sockets[0].getsockname()[1] for server in servers]
