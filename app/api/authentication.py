"""Who a request comes from: by its Authorization header, else by the page's cookie."""

from __future__ import annotations

import hmac
from dataclasses import replace
from typing import Final
from urllib.parse import parse_qs, urlsplit

from fastapi import Request

from app.api.responses import MAX_NODE_BODY
from app.auth.credential import Credential, Stream
from app.auth.principal import AUTH_DISABLED, Principal
from app.auth.sessions import COOKIE, Session
from app.components import Components, components_of
from blocklist.model.errors import ForbiddenError, InvalidError, UnauthorizedError
from blocklist.model.node import check_text

CSRF_HEADER: Final = "x-csrf-token"
CSRF_FIELD: Final = "csrf_token"
_PRINCIPAL: Final = "blocklist.who"
_CREDENTIAL: Final = "blocklist.credential"
_SAFE_METHODS: Final = ("GET", "HEAD")
_FORM_TYPE: Final = "application/x-www-form-urlencoded"
_MAX_FIELDS: Final = 100
_MAX_NAME: Final = 253


async def authenticate(request: Request) -> Principal:
    """Who asks. Raises UnauthorizedError, ForbiddenError for a request that another site's page may have made."""
    principal: Principal | None = request.scope.get(_PRINCIPAL)
    if principal is None:
        principal = request.scope[_PRINCIPAL] = _with_forwarded_user(request, await _authenticate(request))
    return principal


def end_with_credential(request: Request, stream: Stream) -> None:
    """Cut the stream, which answers the request, when the credential of the request ends."""
    credential: Credential | None = request.scope.get(_CREDENTIAL)
    if credential is not None:
        credential.streams.add(stream)


async def session_of(request: Request) -> Session | None:
    """The session of the page that the request comes from; None without one. Raises UnavailableError."""
    cookie = request.cookies.get(COOKIE)
    return None if cookie is None else await components_of(request).sessions.find(cookie)


def same_origin(request: Request) -> bool | None:
    """Whether a page of this service made the request; None if that is not said, as by clients that are no browser."""
    if (site := request.headers.get("sec-fetch-site")) is not None:
        return site == "same-origin"
    if (origin := request.headers.get("origin")) is not None:
        # The scheme is not compared: behind a proxy with TLS it is another.
        return urlsplit(origin).netloc.lower() == request.headers.get("host", "").lower() != ""
    return None


async def _authenticate(request: Request) -> Principal:
    service = components_of(request)
    if not service.authenticator.enabled:
        # A form on any site in the same browser can make a POST to this machine, and nothing else that changes a thing.
        if request.method == "POST" and same_origin(request) is False:
            raise ForbiddenError("The request comes from another site's page.")
        return AUTH_DISABLED
    credential = await _credential(request, service)
    request.scope[_CREDENTIAL] = credential
    return credential.principal


async def _credential(request: Request, service: Components) -> Credential:
    headers = request.headers.getlist("authorization")
    if len(headers) > 1:
        raise UnauthorizedError("There is more than one Authorization header.")
    if headers:
        return await service.authenticator.authenticate(headers[0].encode("latin-1"))
    session = await session_of(request)
    if session is None:
        raise UnauthorizedError("Credentials are needed: send `Authorization: Bearer` and a token.")
    if request.method not in _SAFE_METHODS:
        await _check_csrf(request, session)
    return session.credential


async def _check_csrf(request: Request, session: Session) -> None:
    if same_origin(request) is not True:
        raise ForbiddenError("The request comes from another site's page, or from no page.")
    token = request.headers.get(CSRF_HEADER)
    if token is None:
        token = await _csrf_token_of_form(request)
    if not hmac.compare_digest(token.encode(), session.csrf.encode()):
        raise ForbiddenError("The form is not one of this session: load the page again.")


async def _csrf_token_of_form(request: Request) -> str:
    length = request.headers.get("content-length", "")
    is_form = request.headers.get("content-type", "").partition(";")[0].strip() == _FORM_TYPE
    if request.method != "POST" or not is_form or not length.isdecimal() or int(length) > MAX_NODE_BODY:
        return ""
    # Starlette keeps the body, so the endpoint finds its form all the same.
    body = (await request.body()).decode("latin-1")
    try:
        return parse_qs(body, max_num_fields=_MAX_FIELDS).get(CSRF_FIELD, [""])[0]
    except ValueError:
        return ""  # more fields than any form of ours has


def _with_forwarded_user(request: Request, principal: Principal) -> Principal:
    """Who a trusted proxy says it is; the role stays the credential's. Raises InvalidError for a name that is none."""
    names = [name for name in request.headers.getlist("x-forwarded-user") if name]
    proxies = components_of(request).trusted_proxies
    if not names or not proxies or request.client is None or request.client.host not in proxies:
        return principal
    try:
        # More than one: the proxy adds its own to what the client sent, and nobody can tell which is which.
        (raw,) = names
        name = check_text(raw.encode("latin-1").decode())
    except ValueError:
        raise InvalidError("X-Forwarded-User is not one name in UTF-8.") from None
    if len(name) > _MAX_NAME:
        raise InvalidError(f"X-Forwarded-User is longer than {_MAX_NAME} characters.")
    return replace(principal, name=name)
