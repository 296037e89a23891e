"""create_app: the service as an ASGI application."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from copy import copy
from inspect import iscoroutinefunction
from time import perf_counter
from typing import Any, Final

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, request_response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api import (
    alertmanager,
    audit,
    change_log,
    claims,
    health,
    inventory,
    listeners,
    listing,
    node_status,
    nodes,
    openapi,
    responses,
    spark,
    tokens,
)
from app.api.responses import problem_for
from app.http.connection import ConnectionLimits
from app.http.fast_path import FastPath
from app.logs import REQUEST_ID_HEADER, bind_request_id, client_request_id, isolated, new_request_id
from app.net.addresses import HostPolicy, MisdirectedError
from app.page import routes
from app.page.shared import SharedValues
from app.service import Service, running_service
from app.settings import Settings, SettingsError
from app.store.database import check_schema
from app.telemetry import telemetry_config
from app.watch import StreamingApp, run_stream
from blocklist import __version__

_PARTS: Final = (
    # In this order they are searched: those that are asked most come first.
    listing,
    nodes,
    claims,
    inventory,
    node_status,
    change_log,
    listeners,
    alertmanager,
    health,
    tokens,
    audit,
    spark,
    routes,
    openapi,
)


def unix_millis() -> int:
    return time.time_ns() // 1_000_000


def create_app(settings: Settings, *, clock: Callable[[], int] = unix_millis) -> FastAPI:
    """The service as an ASGI application. Its start raises SchemaError if the database has another schema.

    Raises SettingsError for a root path that is also a path of the service.
    """
    host_policy = HostPolicy(settings.allowed_hosts.split(",")) if settings.auth == "off" else None

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        check_schema(settings.database_url)
        async with running_service(settings, clock) as service:
            app.state.service = service
            app.state.shared = SharedValues(clock)
            root_path = settings.root_path.encode()
            connection_limits = ConnectionLimits(settings.max_connections, service.trusted_proxies, root_path)
            # A request that never reaches a route is not traced: changes are traced, polls need not be.
            fast_path = FastPath(app, host_policy, root_path, puts=settings.telemetry == "off")
            async with (
                service.task_health.running("connections", connection_limits.run),
                service.task_health.running("tables", fast_path.run),
            ):
                # uvicorn hands this to each connection, for app.http.connection.
                yield {
                    "connection_limits": connection_limits,
                    "fast_path": fast_path if settings.fast_path else None,
                }

    # FastAPI's own /docs loads scripts from the internet, which operators' networks often block: see app.page.routes.
    # The API document is served by app.api.openapi.
    app = RequestTrackingApp(
        title="blocklist",
        lifespan=lifespan,
        redirect_slashes=False,
        openapi_url=None,
        telemetry=telemetry_config(settings),
    )
    responses.install_handlers(app)
    if host_policy is not None:
        app.add_middleware(HostCheck, policy=host_policy)
    for part in _PARTS:
        # Not include_router: it nests, and a nested route costs each request a second search.
        own = part.router.routes
        app.router.routes.extend(map(called_directly, own) if settings.telemetry == "off" else own)
    app.served_below = settings.root_path
    _check_root_path(settings.root_path, app.routes)
    return app


# HostCheck: refuses requests whose Host header the service does not accept.


class HostCheck:
    """ASGI middleware around all routes."""

    def __init__(self, app: ASGIApp, *, policy: HostPolicy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            for name, value in scope["headers"]:
                if name == b"host" and not self._policy.accepts(value):
                    await problem_for(Request(scope), _misdirected(value))(scope, receive, send)
                    return
        await self._app(scope, receive, send)


def _misdirected(host: bytes) -> MisdirectedError:
    return MisdirectedError(
        f"Host {host[:253].decode('latin-1')!a} is not accepted: without authentication, only loopback names and"
        " addresses are. An operator can add a name to BLOCKLIST_ALLOWED_HOSTS."
    )


# RequestTrackingApp: gives each request that reaches a route an id, and measures its duration.

_METHODS: Final = frozenset(("GET", "HEAD", "PUT", "POST", "DELETE"))
_READ_METHODS: Final = ("GET", "HEAD")


class RequestTrackingApp(StreamingApp):
    """Adds the request id to the response, except to a successful read whose client sent none.

    Requests that app.http.fast_path answers never get here; they follow the same rule.
    """

    served_below = ""  # BLOCKLIST_ROOT_PATH

    def openapi(self) -> dict[str, Any]:
        """The document, built once."""
        if self.openapi_schema is None:
            self.openapi_schema = openapi.build_document(self)
        return self.openapi_schema

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.run_routes(scope, receive, send)
            return
        if self.served_below:
            scope = _without_root_path(scope, self.served_below)
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

    __slots__ = ("_is_read", "_root_path", "_send", "id_given", "request_id", "status")

    def __init__(self, scope: Scope, send: Send) -> None:
        client_id = client_request_id(scope["headers"])
        self.id_given = client_id is not None
        self.request_id = client_id or new_request_id()
        self.status = 200
        self._is_read = scope["method"] in _READ_METHODS
        self._root_path = scope.get("root_path", "").encode()
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message["headers"]]
            if self._is_read and all(name != b"cache-control" for name, _ in headers):
                # A proxy that caches would call a blocked node free.
                headers.append((b"cache-control", b"no-store"))
            if self.id_given or not self._is_read or self.status >= 400:
                headers.append((REQUEST_ID_HEADER, self.request_id))
            if self._root_path:
                headers = [(name, header_below(self._root_path, name, value)) for name, value in headers]
            message["headers"] = headers
        await self._send(message)


def _route_path(scope: Scope) -> str:
    """The path template of the route: requested paths would make an unbounded number of metric labels."""
    return getattr(scope.get("route"), "path", "none")


def _method(scope: Scope) -> str:
    return scope["method"] if scope["method"] in _METHODS else "other"


# The root path. A proxy strips it from the paths of requests or keeps it, and both are served. Routes know paths
# without it; the headers of responses get it here, and the pages in app.page.shared.

_COOKIE_PATH: Final = re.compile(rb"(?<=;)(\s*path=)(?:/(?=;|\Z)|(?=/))", re.IGNORECASE)


def _without_root_path(scope: Scope, root_path: str) -> Scope:
    path: str = scope["path"]
    raw_path: bytes = scope.get("raw_path") or path.encode()
    if path == root_path or path.startswith(f"{root_path}/"):
        path, raw_path = path.removeprefix(root_path) or "/", raw_path.removeprefix(root_path.encode()) or b"/"
    return {**scope, "path": path, "raw_path": raw_path, "root_path": root_path}


def header_below(root_path: bytes, name: bytes, value: bytes) -> bytes:
    """The value of a header of a response, with the root path in front of its own paths."""
    match name:
        case b"location" | b"hx-redirect" if value.startswith(b"/") and not value.startswith(root_path + b"/"):
            return root_path + value
        # A cookie with this prefix has the path /, or browsers refuse it.
        case b"set-cookie" if not value.startswith(b"__Host-"):
            return _COOKIE_PATH.sub(rb"\1" + root_path, value)
        case _:
            return value


def _check_root_path(root_path: str, routes: Iterable[BaseRoute]) -> None:
    """Raises SettingsError if a path below it could be meant with it as well as without it."""
    given = root_path.split("/")[1:]
    for route in routes:
        path: str = getattr(route, "path", "")
        own = path.split("/")[1:]
        agrees = all(one == other or one.startswith("{") for one, other in zip(own, given, strict=False))
        # `{name:path}` is several segments.
        if given and agrees and (len(own) >= len(given) or ":" in own[-1]):
            raise SettingsError(
                f"BLOCKLIST_ROOT_PATH: {root_path} is also the beginning of a path of the service, {path}, so it could"
                f" not know which one is meant: choose another one, such as /tools{root_path}."
            )


# The security headers of all responses.

SECURITY_HEADERS: Final = (
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
)
"""For every response, including errors."""

VERSION_HEADER: Final = ("blocklist-version", __version__)
"""For every response: the version of the service."""

HSTS: Final = ("strict-transport-security", "max-age=31536000")
"""For every response if the service itself terminates TLS."""


# Routes whose dependencies are called directly, by a plan that is made once, where nothing has to be validated.
#
# FastAPI finds out for each request again what each parameter is, and takes half of the time of a request for it. A
# request without a query gives only path parameters and lists of header fields, which are text: the others have their
# defaults. Every other request, and every route that a plan cannot describe, is resolved by FastAPI.


def called_directly(route: BaseRoute) -> BaseRoute:
    """A copy of the route that uses its plan for requests without a query; the route itself if it has no plan."""
    # A class of its own, such as that of the page, handles requests and errors in its own way.
    if type(route) is not APIRoute or route.body_field is not None:
        return route
    try:
        endpoint = _PlannedCall(route.dependant)
    except _NotPlannedError:
        return route

    async def respond(request: Request) -> Response:
        response: Response = await endpoint(request, {})
        return response

    resolved, direct = route.app, request_response(respond)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await (resolved if scope["query_string"] else direct)(scope, receive, send)

    planned = copy(route)
    planned.app = app
    return planned


class _NotPlannedError(Exception):
    """FastAPI must resolve the parameters."""


class _PlannedCall:
    """A call of an endpoint or of a dependency. Raises _NotPlannedError."""

    def __init__(self, dependant: Dependant) -> None:
        assert dependant.call is not None
        self.function: Callable[..., Any] = dependant.call
        if not _is_coroutine_function(self.function) or any(
            (
                dependant.cookie_params,
                dependant.body_params,
                dependant.response_param_name,
                dependant.background_tasks_param_name,
                dependant.http_connection_param_name,
                dependant.security_scopes_param_name,
                dependant.concurrency,
            )
        ):
            raise _NotPlannedError
        self.name = dependant.name
        self._request_name = dependant.request_param_name
        self._dependencies = [_PlannedCall(each) for each in dependant.dependencies]
        self._path = [(each.name, each.alias) for each in dependant.path_params if _is_plain_text(each)]
        self._headers = [(each.name, each.alias) for each in dependant.header_params if _is_list_of_fields(each)]
        others = [each for each in dependant.header_params if not _is_list_of_fields(each)]
        if len(self._path) < len(dependant.path_params) or others:
            raise _NotPlannedError
        self._defaults = dict(map(_default, dependant.query_params))

    async def __call__(self, request: Request, known: dict[Callable[..., Any], Any]) -> Any:
        """Its result; `known` has those of earlier calls for this request."""
        values = self._defaults.copy()
        for each in self._dependencies:
            if each.function in known:
                value = known[each.function]
            else:
                value = known[each.function] = await each(request, known)
            if each.name is not None:
                values[each.name] = value
        if self._request_name is not None:
            values[self._request_name] = request
        for name, alias in self._path:
            values[name] = request.path_params[alias]
        for name, alias in self._headers:
            values[name] = request.headers.getlist(alias) or None
        return await self.function(**values)


def _is_coroutine_function(function: Callable[..., Any]) -> bool:
    return iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _is_plain_text(parameter: Any) -> bool:
    return parameter.field_info.annotation is str and not parameter.field_info.metadata


def _is_list_of_fields(parameter: Any) -> bool:
    return parameter.field_info.annotation == list[str] | None and not parameter.field_info.is_required()


def _default(parameter: Any) -> tuple[str, Any]:
    """The name and the default of a parameter. Raises _NotPlannedError if it has none that may be shared."""
    default = None if parameter.field_info.is_required() else parameter.get_default()
    if parameter.field_info.is_required() or not isinstance(default, str | int | None):
        raise _NotPlannedError
    return parameter.name, default
