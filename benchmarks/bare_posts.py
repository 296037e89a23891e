"""A minimal fan-out by POST: `python -m benchmarks.bare_posts PORT FILE`, FILE with a port per line.

The body of a PUT is sent to all of them, after its response, by aiohttp and `gather`.
"""

import asyncio
import sys
from pathlib import Path
from typing import cast

import aiohttp
import uvloop


class Posts(asyncio.Protocol):
    """Expects each request in one piece, as the clients here send it."""

    urls: tuple[str, ...] = ()
    session: aiohttp.ClientSession

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport for the response."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Respond, then post to all."""
        self.transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        body = data[data.index(b"\r\n\r\n") + 4 :]
        self.posts = asyncio.gather(*(self.post(url, body) for url in self.urls))

    async def post(self, url: str, body: bytes) -> None:
        """Post to one of them."""
        async with self.session.post(url, data=body, headers={"Content-Type": "application/json"}) as response:
            response.raise_for_status()


async def serve(port: int, ports: list[str]) -> None:
    """Serve until the process is ended."""
    Posts.urls = tuple(f"http://127.0.0.1:{port}/" for port in ports)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as Posts.session:
        server = await asyncio.get_running_loop().create_server(Posts, "127.0.0.1", port)
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), Path(sys.argv[2]).read_text().split()))
