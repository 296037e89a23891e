"""Errors as HTML pages, with the same statuses as in the API."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute

from app.api.problems import STATUS
from app.auth.principal import ANONYMOUS
from app.page.render import render_page
from app.page.visitor import Visitor
from blocklist.model.errors import BlocklistError, UnauthorizedError

_Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class HtmlRoute(APIRoute):
    """A route whose errors are HTML pages, and which redirects to /login without a session."""

    def get_route_handler(self) -> _Handler:
        handler: _Handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except UnauthorizedError:
                return _redirect_to_login(request)
            except BlocklistError as error:
                return error_page(request, error)

        return handle


def error_page(request: Request, error: BlocklistError) -> Response:
    """The page for an error, one line for each of its messages."""
    status = STATUS[type(error)]
    return render_page(
        request, "error.html.j2", Visitor(principal=ANONYMOUS), status, title=status.phrase, lines=error.lines
    )


def _redirect_to_login(request: Request) -> Response:
    if "hx-request" in request.headers:
        # htmx would follow a redirect and insert the login page as a fragment of this page.
        return Response(status_code=HTTPStatus.UNAUTHORIZED, headers={"HX-Redirect": "/login"})
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    query = f"?next={quote(here)}" if request.method == "GET" and here != "/" else ""
    return RedirectResponse(f"/login{query}", HTTPStatus.SEE_OTHER)
