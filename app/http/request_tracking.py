"""RequestTrackingApp: gives each request that reaches a route an id, and measures its duration."""

from __future__ import annotations

from time import perf_counter
from typing import Final

from starlette.types import Message, Receive, Scope, Send

from app.logs.isolation import isolated
from app.logs.request_ids import REQUEST_ID_HEADER, bind_request_id, client_request_id, new_request_id
from app.service import Service
from app.watch.streaming import StreamingApp, run_stream

_METHODS: Final = frozenset(("GET", "HEAD", "PUT", "POST", "DELETE"))
_READ_METHODS: Final = ("GET", "HEAD")


class RequestTrackingApp(StreamingApp):
    """Adds the request id to the response, except to a successful read whose client sent none.

    Requests that app.http.fast_get and app.http.fast_put answer never get here; they follow the same rule.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.run_routes(scope, receive, send)
            return
        context = _RequestContext(scope, send)
        bind_request_id(context.request_id)
        started = perf_counter()
        try:
            await self.run_routes(scope, receive, context.send)
        finally:
            # The duration of a stream is not counted: it says nothing about the service.
            service: Service = self.state.service
            duration = perf_counter() - started
            with isolated("metrics of requests"):
                service.metrics.observe_request(_route_path(scope), _method(scope), context.status, duration)
        await run_stream(scope, receive, context.send if context.id_given else send)


class _RequestContext:
    """One request. `status` is 200 until the response begins, so also for a stream that has not begun."""

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


def _route_path(scope: Scope) -> str:
    """The path template of the route: requested paths would make an unbounded number of metric labels."""
    return getattr(scope.get("route"), "path", "none")


def _method(scope: Scope) -> str:
    return scope["method"] if scope["method"] in _METHODS else "other"
