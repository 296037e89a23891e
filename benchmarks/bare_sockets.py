"""A minimal asyncio broadcaster without an HTTP server: `python -m benchmarks.bare_sockets PORT`."""

import asyncio
import sys
from typing import cast

import uvloop


class Broadcast(asyncio.Protocol):
    """A GET subscribes; the body of a PUT is sent to all subscribers, after the response."""

    subscribers: set[asyncio.Transport] = set()  # noqa: RUF012 - one for all connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport for the response."""
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _exc: Exception | None) -> None:
        """Remove the subscriber."""
        self.subscribers.discard(self.transport)

    def data_received(self, data: bytes) -> None:
        """Expects each request in one piece, as the clients here send it."""
        if data.startswith(b"PUT"):
            self.transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")
            event = data[data.index(b"\r\n\r\n") + 4 :]
            for subscriber in self.subscribers:
                subscriber.write(event)
        else:
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
            if data.startswith(b"GET /watch"):
                self.subscribers.add(self.transport)
            else:
                self.transport.close()


async def serve(port: int) -> None:
    """Serve until the process is ended."""
    server = await asyncio.get_running_loop().create_server(Broadcast, "127.0.0.1", port, backlog=2048)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
