"""All routes of the page: logging in and out, the API document at /docs, and those of the other modules."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Request, Response
from fastapi import Path as PathParameter
from fastapi.responses import RedirectResponse

from app.api.parameters import (
    PUBLIC,
    note_failed_login,
    note_login,
    public_url_of,
    root_path_of,
    same_origin,
    session_address,
    session_cookie_name,
    session_cookie_of,
)
from app.api.responses import STATUS
from app.auth.credential import ANONYMOUS
from app.auth.sessions import COOKIE, LOGIN_SECONDS, Attempt, Session
from app.page import change, history, list, listeners, map, node, selection, shared, tokens  # noqa: A004 - modules
from app.page.forms import HtmlRoute, read_form
from app.page.shared import ReaderVisitor, Visitor, render_page
from app.service import service_of
from blocklist.model.errors import ForbiddenError, UnauthorizedError, UnavailableError
from blocklist.wire.audit import Way

if TYPE_CHECKING:
    from app.auth.signin import SignIn

router: Final = APIRouter(route_class=HtmlRoute, include_in_schema=False)
for part in (list, change, node, listeners, history, map, selection, tokens, shared):
    router.routes.extend(part.router.routes)

_ATTEMPT: Final = "blocklist_login"
"""The cookie of a log-in that has begun; with HTTPS, `__Host-` before it: no other host of the domain can set that."""
_NO_CODE: Final = "The browser came back from the issuer without a code."
_LOCAL_PATH: Final = re.compile(r"/(?![/\\])[!-\[\]-~]*", re.ASCII)
"""A path on this service: it cannot contain another host or a line end."""


@router.get("/login", dependencies=[PUBLIC])
async def get_login(request: Request) -> Response:
    """The form; a redirect if authentication is disabled."""
    next_path = _local_path(request, request.query_params.get("next", "/"))
    if not service_of(request).authenticator.enabled:
        return RedirectResponse(next_path, HTTPStatus.SEE_OTHER)
    return _form(request, next_path, ended="ended" in request.query_params)


@router.post("/login", dependencies=[PUBLIC])
async def post_login(request: Request) -> Response:
    """Create a session for a valid token."""
    if same_origin(request) is False:
        raise ForbiddenError("The form comes from another site's page.")
    form = await read_form(request)
    next_path = _local_path(request, form.get("next", "/"))
    if not service_of(request).authenticator.enabled:
        return RedirectResponse(next_path, HTTPStatus.SEE_OTHER)
    try:
        text, address = form.get("token", ""), session_address(request)
        cookie, session = await service_of(request).sessions.create(text, address)
    except (UnauthorizedError, ForbiddenError) as error:
        note_failed_login(request, text.encode(errors="replace"), error, Way.PAGE)
        return _form(request, next_path, error.detail, STATUS[type(error)])
    return _logged_in(request, RedirectResponse(next_path, HTTPStatus.SEE_OTHER), cookie, session)


@router.get("/login/callback", dependencies=[PUBLIC])
async def get_login_callback(request: Request) -> Response:
    """The browser comes back from the issuer."""
    sessions, next_path = service_of(request).sessions, "/"
    try:
        attempt = Attempt.parse(request.cookies.get(_attempt_cookie(request), ""))
        next_path = _local_path(request, attempt.next_path)
        provider = _sign_in(request).provider(attempt.issuer)
        person = await provider.redeem(attempt, request.query_params, _redirect_uri(request))
        cookie, session = await sessions.create_signed_in(person, session_address(request))
    except (UnauthorizedError, ForbiddenError, UnavailableError) as error:
        if not isinstance(error, UnavailableError):
            # Anybody can write an answer without a code: its words are shown to whoever sends it, and not recorded.
            refused = error if "code" in request.query_params else UnauthorizedError(_NO_CODE)
            note_failed_login(request, b"", refused, Way.PAGE)
        response = _form(request, next_path, error.detail, STATUS[type(error)])
    else:
        response = _logged_in(request, _leave(request, next_path), cookie, session)
    response.delete_cookie(_attempt_cookie(request), path="/", httponly=True, samesite="lax", secure=_is_https(request))
    return response


@router.get("/login/{number}", dependencies=[PUBLIC])
async def get_login_at_issuer(request: Request, number: Annotated[int, PathParameter(ge=0)]) -> Response:
    """Send the browser to an issuer, the first one with 0."""
    next_path = _local_path(request, request.query_params.get("next", "/"))
    try:
        attempt = Attempt.begin(number, next_path)
        provider = _sign_in(request).provider(number)
        response = RedirectResponse(
            await provider.authorization_url(attempt, _redirect_uri(request)), HTTPStatus.SEE_OTHER
        )
    except (UnauthorizedError, UnavailableError) as error:
        return _form(request, next_path, error.detail, STATUS[type(error)])
    # Lax, as the browser comes back from another site.
    response.set_cookie(
        _attempt_cookie(request),
        attempt.cookie,
        LOGIN_SECONDS,
        path="/",
        httponly=True,
        samesite="lax",
        secure=_is_https(request),
    )
    return response


@router.post("/logout")
async def post_logout(request: Request, _: ReaderVisitor) -> Response:
    """End the session, and that at the issuer where it began."""
    sessions = service_of(request).sessions
    url = await sessions.end_signed_in(session_cookie_of(request) or "", f"{public_url_of(request)}/login")
    response = RedirectResponse("/login", HTTPStatus.SEE_OTHER) if url is None else _leave(request, url)
    for name in {COOKIE, session_cookie_name(request, https=True)}:
        response.delete_cookie(name, path="/", httponly=True, samesite="strict", secure=name != COOKIE)
    return response


def _logged_in(request: Request, response: Response, cookie: str, session: Session) -> Response:
    """The response with the cookie of a new session, which is recorded."""
    note_login(request, session, Way.PAGE)
    https = _is_https(request)
    name = session_cookie_name(request, https=https)
    response.set_cookie(name, cookie, path="/", httponly=True, samesite="strict", secure=https)
    return response


def _sign_in(request: Request) -> SignIn:
    """Raises UnauthorizedError if people log in with tokens only."""
    sign_in = service_of(request).sessions.sign_in
    if sign_in is None:
        raise UnauthorizedError("This service has no issuer at which people log in: use a token.")
    return sign_in


def _leave(request: Request, url: str) -> Response:
    """A page that leads on at once.

    After a redirect from another site the browser would not send the cookie of the session, which is `strict`; and a
    redirect that answers a form may not lead to another site (`form-action` of the Content-Security-Policy).
    """
    target = root_path_of(request) + url if url.startswith("/") else url
    return render_page(request, "leave.html.j2", Visitor(principal=ANONYMOUS), HTTPStatus.OK, url=url, target=target)


def _redirect_uri(request: Request) -> str:
    return f"{public_url_of(request)}/login/callback"


def _form(
    request: Request, next_path: str, error: str = "", status: HTTPStatus = HTTPStatus.OK, *, ended: bool = False
) -> Response:
    visitor = Visitor(principal=ANONYMOUS)
    sign_in = service_of(request).sessions.sign_in
    issuers = [] if sign_in is None else [provider.config.host for provider in sign_in.providers]
    return render_page(
        request, "login.html.j2", visitor, status, next=next_path, error=error, ended=ended, issuers=issuers
    )


def _attempt_cookie(request: Request) -> str:
    return f"__Host-{_ATTEMPT}" if _is_https(request) else _ATTEMPT


def _is_https(request: Request) -> bool:
    """Whether the browser uses HTTPS; behind a proxy with TLS its Origin header, or `public_url_of`, says so."""
    return public_url_of(request).startswith("https://") or request.headers.get("origin", "").startswith("https://")


def _local_path(request: Request, path: str) -> str:
    """The path without the root path, which a script may have kept; that of the list if it leads elsewhere."""
    root_path = root_path_of(request)
    if root_path and f"{path}/".startswith(f"{root_path}/"):
        path = path.removeprefix(root_path) or "/"
    return path if _LOCAL_PATH.fullmatch(path) else "/"


@router.get("/docs", dependencies=[PUBLIC])
async def get_docs(request: Request) -> Response:
    """The API document in Swagger UI, served from vendored files, because many networks are closed."""
    return render_page(request, "docs.html.j2", Visitor(principal=ANONYMOUS))
