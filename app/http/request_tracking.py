"""RequestTrackingApp: the application, with an id and a time for each request that comes to a route."""

from __future__ import annotations

from time import perf_counter
from typing import Final

from starlette.types import Message, Receive, Scope, Send

from app.components import Components
from app.logs.request_ids import REQUEST_ID_HEADER, bind_request_id, client_request_id, new_request_id
from app.watch.streaming import StreamingApp, run_stream

_METHODS: Final = frozenset(("GET", "HEAD", "PUT", "POST", "DELETE"))
_READ_METHODS: Final = ("GET", "HEAD")


class RequestTrackingApp(StreamingApp):
    """An answer carries the id of its request, unless nobody gave one and it is a read that went well.

    What uvicorn's protocol answers itself (app.http.fast_get, app.http.fast_put) never comes here, and keeps to the
    same rule.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.run_routes(scope, receive, send)
            return
        exchange = _RequestContext(scope, send)
        bind_request_id(exchange.request_id)
        began = perf_counter()
        try:
            await self.run_routes(scope, receive, exchange.send)
        finally:
            # A stream has only begun: how long it goes on says nothing of the service.
            service: Components = self.state.service
            service.metrics.observe_request(_template(scope), _method(scope), exchange.status, perf_counter() - began)
        await run_stream(scope, receive, exchange.send if exchange.id_given else send)


class _RequestContext:
    """A request under way; `status` is 200 until its answer begins, as of a stream."""

    __slots__ = ("_is_read", "_send", "id_given", "request_id", "status")

    def __init__(self, scope: Scope, send: Send) -> None:
        client_id = client_request_id(scope["headers"])
        self.id_given = client_id is not None
        self.request_id = client_id or new_request_id()
        self.status = 200
        self._is_read = scope["method"] in _READ_METHODS
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self.id_given or not self._is_read or self.status >= 400:
                message["headers"] = [*message["headers"], (REQUEST_ID_HEADER, self.request_id)]
        await self._send(message)


def _template(scope: Scope) -> str:
    """The path of the route as it is declared: the paths that are asked for are without end."""
    return getattr(scope.get("route"), "path", "none")


def _method(scope: Scope) -> str:
    return scope["method"] if scope["method"] in _METHODS else "other"
