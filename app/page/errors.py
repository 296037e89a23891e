"""Errors as HTML pages, with the same statuses as in the API."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, urlencode

from fastapi import Request, Response
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute

from app.api.problems import STATUS
from app.auth.principal import ANONYMOUS
from app.page.forms import FIELDS, read_form
from app.page.render import render_page
from app.page.visitor import Visitor
from blocklist.model.errors import BlocklistError, UnauthorizedError

_Handler = Callable[[Request], Coroutine[Any, Any, Response]]
_MAX_QUERY: Final = 8_000
"""Maximum length of a query; servers and proxies accept at least this."""


class HtmlRoute(APIRoute):
    """A route whose errors are HTML pages, and which redirects to /login without a session."""

    def get_route_handler(self) -> _Handler:
        handler: _Handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except UnauthorizedError:
                return await _redirect_to_login(request)
            except BlocklistError as error:
                return error_page(request, error)

        return handle


def error_page(request: Request, error: BlocklistError) -> Response:
    """The page for an error, one line for each of its messages."""
    status = STATUS[type(error)]
    return render_page(
        request, "error.html.j2", Visitor(principal=ANONYMOUS), status, title=status.phrase, lines=error.lines
    )


async def _redirect_to_login(request: Request) -> Response:
    if "hx-request" in request.headers:
        # htmx would follow a redirect and insert the login page as a fragment of this page.
        return Response(status_code=HTTPStatus.UNAUTHORIZED, headers={"HX-Redirect": "/login"})
    query = {}
    if request.method == "GET" and (here := _with_query(request.url.path, request.url.query)) != "/":
        query = {"next": here}
    elif request.method == "POST" and request.url.path.startswith("/page/"):
        # The form has the same path, and is filled in again: the session has ended, but what was typed is not lost.
        query = {"next": _with_query(request.url.path, await _typed(request)), "ended": "yes"}
    return RedirectResponse(_with_query("/login", urlencode(query, safe="/", quote_via=quote)), HTTPStatus.SEE_OTHER)


async def _typed(request: Request) -> str:
    """What was typed into the submitted form, as a query; empty if it is too long for an address, or unreadable."""
    try:
        form = await read_form(request)
    except BlocklistError:
        return ""
    query = urlencode({name: form[name] for name in FIELDS if name in form})
    return query if len(query) <= _MAX_QUERY else ""


def _with_query(path: str, query: str) -> str:
    return f"{path}?{query}" if query else path
