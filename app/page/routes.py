"""All routes of the page: logging in and out, the API document at /docs, and those of the other modules."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from app.api.parameters import PUBLIC, note_failed_login, note_login, same_origin, session_address
from app.api.responses import STATUS
from app.auth.credential import ANONYMOUS
from app.auth.sessions import COOKIE
from app.page import change, history, list, listeners, map, node, selection, shared, tokens  # noqa: A004 - modules
from app.page.forms import HtmlRoute, read_form
from app.page.shared import ReaderVisitor, Visitor, render_page
from app.service import service_of
from blocklist.model.errors import ForbiddenError, UnauthorizedError
from blocklist.wire.audit import Way

router: Final = APIRouter(route_class=HtmlRoute, include_in_schema=False)
for part in (list, change, node, listeners, history, map, selection, tokens, shared):
    router.routes.extend(part.router.routes)

_LOCAL_PATH: Final = re.compile(r"/(?![/\\])[!-\[\]-~]*", re.ASCII)
"""A path on this service: it cannot contain another host or a line end."""


@router.get("/login", dependencies=[PUBLIC])
async def get_login(request: Request) -> Response:
    """The form; a redirect if authentication is disabled."""
    next_path = _local_path(request.query_params.get("next", "/"))
    if not service_of(request).authenticator.enabled:
        return RedirectResponse(next_path, HTTPStatus.SEE_OTHER)
    return _form(request, next_path, ended="ended" in request.query_params)


@router.post("/login", dependencies=[PUBLIC])
async def post_login(request: Request) -> Response:
    """Create a session for a valid token."""
    if same_origin(request) is False:
        raise ForbiddenError("The form comes from another site's page.")
    form = await read_form(request)
    next_path = _local_path(form.get("next", "/"))
    if not service_of(request).authenticator.enabled:
        return RedirectResponse(next_path, HTTPStatus.SEE_OTHER)
    try:
        text, address = form.get("token", ""), session_address(request)
        cookie, session = await service_of(request).sessions.create(text, address)
    except (UnauthorizedError, ForbiddenError) as error:
        note_failed_login(request, text.encode(errors="replace"), error, Way.PAGE)
        return _form(request, next_path, error.detail, STATUS[type(error)])
    note_login(request, session, Way.PAGE)
    response = RedirectResponse(next_path, HTTPStatus.SEE_OTHER)
    response.set_cookie(COOKIE, cookie, path="/", httponly=True, samesite="strict", secure=_is_https(request))
    return response


@router.post("/logout")
async def post_logout(request: Request, _: ReaderVisitor) -> Response:
    """End the session."""
    await service_of(request).sessions.end(request.cookies.get(COOKIE, ""))
    response = RedirectResponse("/login", HTTPStatus.SEE_OTHER)
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return response


def _form(
    request: Request, next_path: str, error: str = "", status: HTTPStatus = HTTPStatus.OK, *, ended: bool = False
) -> Response:
    visitor = Visitor(principal=ANONYMOUS)
    return render_page(request, "login.html.j2", visitor, status, next=next_path, error=error, ended=ended)


def _is_https(request: Request) -> bool:
    """Whether the browser uses HTTPS; behind a proxy with TLS only its Origin header shows that."""
    return request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")


def _local_path(path: str) -> str:
    return path if _LOCAL_PATH.fullmatch(path) else "/"


@router.get("/docs", dependencies=[PUBLIC])
async def get_docs(request: Request) -> Response:
    """The API document in Swagger UI, served from vendored files, because many networks are closed."""
    return render_page(request, "docs.html.j2", Visitor(principal=ANONYMOUS))
