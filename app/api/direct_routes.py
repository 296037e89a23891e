"""Routes whose dependencies are called directly, by a plan that is made once, where nothing has to be validated.

FastAPI finds out for each request again what each parameter is, and takes half of the time of a request for it. A
request without a query gives only path parameters and lists of header fields, which are text: the others have their
defaults. Every other request, and every route that a plan cannot describe, is resolved by FastAPI.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from inspect import iscoroutinefunction
from typing import Any

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, request_response
from starlette.types import Receive, Scope, Send


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
