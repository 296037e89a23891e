"""Log in with a token, once, and out again."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from app.api.authentication import same_origin
from app.api.authorization import OPEN
from app.api.problems import STATUS
from app.auth.principal import STRANGER
from app.auth.sessions import COOKIE
from app.components import service_of
from app.page.errors import HtmlRoute
from app.page.forms import read_form
from app.page.render import page
from app.page.visitor import Reading, Visitor
from blocklist.model.errors import ForbiddenError, UnauthorizedError

router = APIRouter(route_class=HtmlRoute, include_in_schema=False)

_LOCAL: Final = re.compile(r"/(?![/\\])[!-\[\]-~]*", re.ASCII)
"""A path on this service: no other host may hide in it, nor a line end."""


@router.get("/login", dependencies=[OPEN])
async def get_login(request: Request) -> Response:
    """The form; there is nothing to log in to while anybody may do anything."""
    wanted = _local(request.query_params.get("next", "/"))
    if not service_of(request).auth.enabled:
        return RedirectResponse(wanted, HTTPStatus.SEE_OTHER)
    return _form(request, wanted)


@router.post("/login", dependencies=[OPEN])
async def post_login(request: Request) -> Response:
    """Begin a session for who has a token."""
    if same_origin(request) is False:
        raise ForbiddenError("The form comes from another site's page.")
    form = await read_form(request)
    wanted = _local(form.get("next", "/"))
    if not service_of(request).auth.enabled:
        return RedirectResponse(wanted, HTTPStatus.SEE_OTHER)
    try:
        cookie, _ = await service_of(request).sessions.begin(form.get("token", ""))
    except (UnauthorizedError, ForbiddenError) as error:
        return _form(request, wanted, error.detail, STATUS[type(error)])
    answer = RedirectResponse(wanted, HTTPStatus.SEE_OTHER)
    answer.set_cookie(COOKIE, cookie, path="/", httponly=True, samesite="strict", secure=_is_https(request))
    return answer


@router.post("/logout")
async def post_logout(request: Request, _: Reading) -> Response:
    """End the session."""
    await service_of(request).sessions.end(request.cookies.get(COOKIE, ""))
    answer = RedirectResponse("/login", HTTPStatus.SEE_OTHER)
    answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return answer


def _form(request: Request, wanted: str, fault: str = "", status: HTTPStatus = HTTPStatus.OK) -> Response:
    return page(request, "login.html.j2", Visitor(principal=STRANGER), status, next=wanted, fault=fault)


def _is_https(request: Request) -> bool:
    """Whether the browser speaks https: behind a proxy with TLS it alone says so."""
    return request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")


def _local(path: str) -> str:
    return path if _LOCAL.fullmatch(path) else "/"
