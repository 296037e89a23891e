"""Streams run outside the routes that begin them.

FastAPI and Starlette keep a dozen frames and three exit stacks for each request until it ends; a thousand watchers
would hold 10 MB of them for hours. So a stream's response only leaves the stream behind, and the application runs it
when all of that is gone.
"""

from __future__ import annotations

from typing import Final, Protocol

from fastapi import FastAPI
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_STREAM: Final = "blocklist.stream"
_KEPT_KEYS: Final = frozenset(("type", "method", "path"))
"""What a server may still look at in the scope of a request."""


class DeferredStream(Protocol):
    """Answers a request, until its client leaves or there is no more."""

    async def run(self, receive: Receive, send: Send) -> None: ...


class StreamResponse(Response):
    """The response of a route that begins a stream."""

    def __init__(self, stream: DeferredStream) -> None:
        super().__init__()
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        scope[_STREAM] = self._stream


class StreamingApp(FastAPI):
    """A FastAPI application that runs the streams its routes begin."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.run_routes(scope, receive, send)
        await run_stream(scope, receive, send)

    async def run_routes(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The request's way through FastAPI, at whose end a stream has only been left behind."""
        await super().__call__(scope, receive, send)


async def run_stream(scope: Scope, receive: Receive, send: Send) -> None:
    """Run the stream that a route has left behind, if one has."""
    stream: DeferredStream | None = scope.get(_STREAM)
    if stream is not None:
        for key in scope.keys() - _KEPT_KEYS:
            del scope[key]
        await stream.run(receive, send)
