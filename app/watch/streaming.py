"""Streams run outside the routes that start them.

FastAPI and Starlette keep a dozen frames and three exit stacks for each request until it ends: 10 MB for a thousand
watches that last for hours. So the response of a route only stores the stream in the scope, and the application runs
it after the route has returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, Protocol

from fastapi import FastAPI
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_STREAM: Final = "blocklist.stream"
_KEPT_KEYS: Final = frozenset(("type", "method", "path"))
"""Keys of a scope that the server still reads; the others are dropped to free memory."""


class DeferredStream(Protocol):
    """Sends the whole response to a request."""

    async def run(self, receive: Receive, send: Send) -> None: ...


class StreamResponse(Response):
    """The response of a route that starts a stream."""

    def __init__(self, stream: DeferredStream) -> None:
        super().__init__()
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        scope[_STREAM] = self._stream


class StreamingApp(FastAPI):
    """A FastAPI application that runs the streams that its routes start."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.run_routes(scope, receive, send)
        await run_stream(scope, receive, send)

    async def run_routes(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request in FastAPI; a stream is only stored in the scope."""
        await super().__call__(scope, receive, send)


async def run_stream(scope: Scope, receive: Receive, send: Send) -> None:
    """Run the stream that a route has stored in the scope, if any."""
    stream: DeferredStream | None = scope.get(_STREAM)
    if stream is not None:
        for key in scope.keys() - _KEPT_KEYS:
            del scope[key]
        await stream.run(receive, send)


# Stops work for a client that has disconnected.


async def run_until_disconnect(receive: Receive, work: Coroutine[Any, Any, object]) -> None:
    """Await `work`; cancel it when the client disconnects. ASGI servers report that only through `receive`."""
    task = asyncio.current_task()
    assert task is not None
    watcher = asyncio.create_task(_cancel_on_disconnect(receive, task))
    try:
        await work
    except asyncio.CancelledError:
        if not watcher.done():
            raise
        task.uncancel()
    finally:
        watcher.cancel()


async def _cancel_on_disconnect(receive: Receive, task: asyncio.Task[Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    task.cancel()
