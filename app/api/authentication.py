"""Who a request comes from: by its Authorization header, else by the page's cookie."""

from __future__ import annotations

import hmac
from dataclasses import replace
from typing import Final
from urllib.parse import parse_qs, urlsplit

from fastapi import Request

from app.api.responses import ONE_NODE
from app.auth.credential import Credential, Stream
from app.auth.principal import ANYBODY, Principal
from app.auth.sessions import COOKIE, Session
from app.components import Service, service_of
from blocklist.model.errors import ForbiddenError, InvalidError, UnauthorizedError
from blocklist.model.node import check_text

CSRF_HEADER: Final = "x-csrf-token"
CSRF_FIELD: Final = "csrf_token"
_WHO: Final = "blocklist.who"
_CREDENTIAL: Final = "blocklist.credential"
_SAFE: Final = ("GET", "HEAD")
_FORM: Final = "application/x-www-form-urlencoded"
_FIELDS: Final = 100
_LONGEST_NAME: Final = 253


async def identify(request: Request) -> Principal:
    """Who asks. Raises UnauthorizedError, ForbiddenError for a request that another site's page may have made."""
    who: Principal | None = request.scope.get(_WHO)
    if who is None:
        who = request.scope[_WHO] = _named(request, await _principal(request))
    return who


def hold(request: Request, stream: Stream) -> None:
    """Cut the stream, which answers the request, when the credential of the request ends."""
    credential: Credential | None = request.scope.get(_CREDENTIAL)
    if credential is not None:
        credential.streams.add(stream)


async def session_of(request: Request) -> Session | None:
    """The session of the page that the request comes from; None without one. Raises UnavailableError."""
    cookie = request.cookies.get(COOKIE)
    return None if cookie is None else await service_of(request).sessions.find(cookie)


def same_origin(request: Request) -> bool | None:
    """Whether a page of this service made the request; None if that is not said, as by clients that are no browser."""
    if (site := request.headers.get("sec-fetch-site")) is not None:
        return site == "same-origin"
    if (origin := request.headers.get("origin")) is not None:
        # The scheme is not compared: behind a proxy with TLS it is another.
        return urlsplit(origin).netloc.lower() == request.headers.get("host", "").lower() != ""
    return None


async def _principal(request: Request) -> Principal:
    service = service_of(request)
    if not service.auth.enabled:
        # A form on any site in the same browser can make a POST to this machine, and nothing else that changes a thing.
        if request.method == "POST" and same_origin(request) is False:
            raise ForbiddenError("The request comes from another site's page.")
        return ANYBODY
    credential = await _credential(request, service)
    request.scope[_CREDENTIAL] = credential
    return credential.principal


async def _credential(request: Request, service: Service) -> Credential:
    headers = request.headers.getlist("authorization")
    if len(headers) > 1:
        raise UnauthorizedError("There is more than one Authorization header.")
    if headers:
        return await service.auth.verify(headers[0].encode("latin-1"))
    session = await session_of(request)
    if session is None:
        raise UnauthorizedError("Credentials are needed: send `Authorization: Bearer` and a token.")
    if request.method not in _SAFE:
        await _check_own_page(request, session)
    return session.credential


async def _check_own_page(request: Request, session: Session) -> None:
    if same_origin(request) is not True:
        raise ForbiddenError("The request comes from another site's page, or from no page.")
    given = request.headers.get(CSRF_HEADER)
    if given is None:
        given = await _csrf_of_form(request)
    if not hmac.compare_digest(given.encode(), session.csrf.encode()):
        raise ForbiddenError("The form is not one of this session: load the page again.")


async def _csrf_of_form(request: Request) -> str:
    length = request.headers.get("content-length", "")
    is_form = request.headers.get("content-type", "").partition(";")[0].strip() == _FORM
    if request.method != "POST" or not is_form or not length.isdecimal() or int(length) > ONE_NODE:
        return ""
    # Starlette keeps the body, so the endpoint finds its form all the same.
    body = (await request.body()).decode("latin-1")
    try:
        return parse_qs(body, max_num_fields=_FIELDS).get(CSRF_FIELD, [""])[0]
    except ValueError:
        return ""  # more fields than any form of ours has


def _named(request: Request, who: Principal) -> Principal:
    """Who a trusted proxy says it is; the role stays the credential's. Raises InvalidError for a name that is none."""
    names = [name for name in request.headers.getlist("x-forwarded-user") if name]
    proxies = service_of(request).proxies
    if not names or not proxies or request.client is None or request.client.host not in proxies:
        return who
    try:
        # More than one: the proxy adds its own to what the client sent, and nobody can tell which is which.
        (raw,) = names
        name = check_text(raw.encode("latin-1").decode())
    except ValueError:
        raise InvalidError("X-Forwarded-User is not one name in UTF-8.") from None
    if len(name) > _LONGEST_NAME:
        raise InvalidError(f"X-Forwarded-User is longer than {_LONGEST_NAME} characters.")
    return replace(who, name=name)
