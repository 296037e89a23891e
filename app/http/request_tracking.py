"""TrackedApp: the application, with an id and a time for each request that comes to a route."""

from __future__ import annotations

from time import perf_counter
from typing import Final

from starlette.types import Message, Receive, Scope, Send

from app.components import Service
from app.logs.request_ids import HEADER, bind, given_id, new_id
from app.watch.streaming import StreamingApp, run_stream

_METHODS: Final = frozenset(("GET", "HEAD", "PUT", "POST", "DELETE"))
_READS: Final = ("GET", "HEAD")


class TrackedApp(StreamingApp):
    """An answer carries the id of its request, unless nobody gave one and it is a read that went well.

    What uvicorn's protocol answers itself (app.http.fast_get, app.http.fast_put) never comes here, and keeps to the
    same rule.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.routed(scope, receive, send)
            return
        exchange = _Exchange(scope, send)
        bind(exchange.id)
        began = perf_counter()
        try:
            await self.routed(scope, receive, exchange.send)
        finally:
            # A stream has only begun: how long it goes on says nothing of the service.
            service: Service = self.state.service
            service.metrics.measure(_template(scope), _method(scope), exchange.status, perf_counter() - began)
        await run_stream(scope, receive, exchange.send if exchange.given else send)


class _Exchange:
    """A request under way; `status` is 200 until its answer begins, as of a stream."""

    __slots__ = ("_read", "_send", "given", "id", "status")

    def __init__(self, scope: Scope, send: Send) -> None:
        given = given_id(scope["headers"])
        self.given = given is not None
        self.id = given or new_id()
        self.status = 200
        self._read = scope["method"] in _READS
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self.given or not self._read or self.status >= 400:
                message["headers"] = [*message["headers"], (HEADER, self.id)]
        await self._send(message)


def _template(scope: Scope) -> str:
    """The path of the route as it is declared: the paths that are asked for are without end."""
    return getattr(scope.get("route"), "path", "none")


def _method(scope: Scope) -> str:
    return scope["method"] if scope["method"] in _METHODS else "other"
