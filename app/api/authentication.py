"""Authenticates a request: by its Authorization header, otherwise by the page's session cookie."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, Final
from urllib.parse import parse_qs, urlsplit

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from starlette.routing import BaseRoute

from app.auth.credential import ANONYMOUS, AUTH_DISABLED, PRINCIPAL_KEY, Credential, Principal, Stream
from app.auth.sessions import COOKIE, Session
from app.net.addresses import client_address
from app.requests import MAX_NODE_BODY
from app.service import Service, service_of
from app.watch import ClientKey, ClientSlots
from blocklist.model.changes import Author, Source
from blocklist.model.errors import ForbiddenError, InvalidError, UnauthorizedError
from blocklist.model.node import check_text
from blocklist.model.roles import Role

CSRF_HEADER: Final = "x-csrf-token"
CSRF_FIELD: Final = "csrf_token"
_CREDENTIAL: Final = "blocklist.credential"
_SAFE_METHODS: Final = ("GET", "HEAD")
_FORM_TYPE: Final = "application/x-www-form-urlencoded"
_MAX_FIELDS: Final = 150
_MAX_NAME: Final = 253


async def authenticate(request: Request) -> Principal:
    """The principal of a request.

    Raises UnauthorizedError, and ForbiddenError for a request that another site's page may have made.
    """
    principal: Principal | None = request.scope.get(PRINCIPAL_KEY)
    if principal is None:
        principal = request.scope[PRINCIPAL_KEY] = _with_forwarded_user(request, await _authenticate(request))
    return principal


async def listener_principal(request: Request) -> str | None:
    """Identifies who registers or reports as a listener; None while authentication is disabled.

    Raises as `authenticate` does, and ForbiddenError for a session of the page: one person would be two principals.
    """
    principal = await authenticate(request)
    if not service_of(request).authenticator.enabled:
        return None
    if "authorization" not in request.headers:
        raise ForbiddenError("A listener needs a token of its own: a session of the page cannot register or report.")
    return principal.id


def end_with_credential(request: Request, stream: Stream) -> None:
    """Close the stream that answers the request when the credential of the request expires or is revoked."""
    credential: Credential | None = request.scope.get(_CREDENTIAL)
    if credential is not None:
        credential.streams.add(stream)


def check_after_wait(request: Request) -> None:
    """Raise UnauthorizedError if the credential of a request has ended while the request waited."""
    credential: Credential | None = request.scope.get(_CREDENTIAL)
    if credential is not None and not credential.is_valid(service_of(request).clock()):
        raise UnauthorizedError("The credential expired or was revoked while the request waited.")


async def session_of(request: Request) -> Session | None:
    """The page session of the request, or None. Raises UnavailableError."""
    cookie = request.cookies.get(COOKIE)
    return None if cookie is None else await service_of(request).sessions.find(cookie, client_address_of(request))


def same_origin(request: Request) -> bool | None:
    """Whether a page of this service made the request; None if unknown, as for clients other than browsers."""
    if (site := request.headers.get("sec-fetch-site")) is not None:
        return site == "same-origin"
    if (origin := request.headers.get("origin")) is not None:
        # The scheme is not compared: it differs behind a proxy that terminates TLS.
        return urlsplit(origin).netloc.lower() == request.headers.get("host", "").lower() != ""
    return None


async def _authenticate(request: Request) -> Principal:
    service = service_of(request)
    # Whatever the credentials are: a browser adds them to requests of other sites' pages, and so does a proxy.
    if request.method not in _SAFE_METHODS and same_origin(request) is False:
        raise ForbiddenError("The request comes from another site's page.")
    if not service.authenticator.enabled:
        return AUTH_DISABLED
    credential = await _credential(request, service)
    request.scope[_CREDENTIAL] = credential
    return credential.principal


async def _credential(request: Request, service: Service) -> Credential:
    headers = request.headers.getlist("authorization")
    if len(headers) > 1:
        raise UnauthorizedError("The request has more than one Authorization header; send one.")
    if headers:
        return await service.authenticator.authenticate(headers[0].encode("latin-1"))
    session = await session_of(request)
    if session is None:
        raise UnauthorizedError(
            "A token is required: send it as `Authorization: Bearer TOKEN`. The command, managers and agents read it"
            " from the file that BLOCKLIST_TOKEN_FILE names."
        )
    if request.method not in _SAFE_METHODS:
        await _check_csrf(request, session)
    return session


async def _check_csrf(request: Request, session: Session) -> None:
    if same_origin(request) is not True:
        raise ForbiddenError("The request does not come from a page of this service.")
    token = request.headers.get(CSRF_HEADER)
    if token is None:
        token = await _csrf_token_of_form(request)
    if not hmac.compare_digest(token.encode(), session.csrf.encode()):
        raise ForbiddenError("The form does not belong to this session: reload the page.")


async def _csrf_token_of_form(request: Request) -> str:
    length = request.headers.get("content-length", "")
    is_form = request.headers.get("content-type", "").partition(";")[0].strip() == _FORM_TYPE
    if request.method != "POST" or not is_form or not length.isdecimal() or int(length) > MAX_NODE_BODY:
        return ""
    # Starlette caches the body, so the endpoint can read the form again.
    body = (await request.body()).decode("latin-1")
    try:
        return parse_qs(body, max_num_fields=_MAX_FIELDS).get(CSRF_FIELD, [""])[0]
    except ValueError:
        return ""  # more fields than any form of the page


def _with_forwarded_user(request: Request, principal: Principal) -> Principal:
    """The principal with the name that a trusted proxy sends; its role is unchanged. Raises InvalidError.

    A blank header is none: a proxy sends it if nobody has logged in there.
    """
    names = request.headers.getlist("x-forwarded-user")
    proxies = service_of(request).trusted_proxies
    if not any(names) or not proxies or request.client is None or request.client.host not in proxies:
        return principal
    try:
        # With several headers, blank ones too, that of the client cannot be told from the one that the proxy added.
        (raw,) = names
        name = check_text(raw.encode("latin-1").decode())
    except ValueError:
        raise InvalidError("X-Forwarded-User: send one name, in UTF-8.") from None
    if not name.strip() or len(name) > _MAX_NAME:
        raise InvalidError(f"X-Forwarded-User: the name is blank, or longer than {_MAX_NAME} characters.")
    return replace(principal, name=name, subject=None)


# The role that a route requires. A test fails if a route declares none.


class RequireRole:
    """A dependency that returns the principal if it has the role; None: the route is public.

    A token that is restricted to owners may change nothing where more than the role reader is needed, unless the route
    is `for_owners`: then it checks the owner of each claim that it changes.

    Raises UnauthorizedError, ForbiddenError.
    """

    def __init__(self, role: Role | None, *, for_owners: bool = False) -> None:
        self.role = role
        self._for_owners = for_owners

    async def __call__(self, request: Request) -> Principal:
        if self.role is None:
            return ANONYMOUS
        principal = await authenticate(request)
        if not principal.role.allows(self.role):
            raise ForbiddenError(f"This requires the role {self.role.value}; yours is {principal.role.value}.")
        if self.role is not Role.READER and not self._for_owners and request.method not in _SAFE_METHODS:
            principal.check_unrestricted()
        return principal


PUBLIC: Any = Depends(RequireRole(None))
"""For routes that need no credentials."""
REQUIRE_READER: Any = Depends(RequireRole(Role.READER))
"""For routers of reads; a route that does more declares a second requirement."""
Reader = Annotated[Principal, Depends(RequireRole(Role.READER))]
REQUIRE_LISTENER: Any = Depends(RequireRole(Role.LISTENER))
"""For routes of listeners. Which of them the principal may register, Principal.check_may_register says."""
ListenerRole = Annotated[Principal, Depends(RequireRole(Role.LISTENER))]
ClaimsOperator = Annotated[Principal, Depends(RequireRole(Role.OPERATOR, for_owners=True))]
"""For routes that check which owners' claims they change."""
Admin = Annotated[Principal, Depends(RequireRole(Role.ADMIN))]


def author(
    principal: Principal, source: Source = Source.REQUEST, *, forced: str | None = None, request_id: str | None = None
) -> Author:
    """The author of the changes that a request makes."""
    return Author(principal.name, source, forced, request_id)


def required_role(route: BaseRoute) -> Role | None:
    """The role that a route requires; None if it is public. Raises LookupError if it declares none."""
    dependant = getattr(route, "dependant", None)
    requirements = list(_requirements(dependant)) if isinstance(dependant, Dependant) else []
    if not requirements:
        raise LookupError(f"The route {getattr(route, 'path', route)} declares no role.")
    roles = [requirement.role for requirement in requirements if requirement.role]
    return max(roles, key=lambda role: role.rank, default=None)


def _requirements(dependant: Dependant) -> Iterator[RequireRole]:
    if isinstance(dependant.call, RequireRole):
        yield dependant.call
    for dependency in dependant.dependencies:
        yield from _requirements(dependency)


# Limits the number of requests that one client holds open (waits and watches).


async def slots_of(request: Request) -> ClientSlots:
    """The slots of the client that sent the request. Raises UnavailableError if all of them are in use."""
    principal = await authenticate(request)
    return service_of(request).stream_quota.slots_of(ClientKey(principal.name, client_address_of(request)))


def session_address(request: Request) -> str:
    """The address to which a login binds its session; empty behind a proxy that is not trusted to name it.

    Such a proxy may have several addresses, one for each connection.
    """
    peer = request.client.host if request.client is not None else ""
    unknown = "x-forwarded-for" in request.headers and peer not in service_of(request).trusted_proxies
    return "" if unknown else client_address_of(request)


def client_address_of(request: Request) -> str:
    """The address of the client, behind trusted proxies the one that they name."""
    peer = request.client.host if request.client is not None else ""
    proxies = service_of(request).trusted_proxies
    return client_address(peer, request.headers.getlist("x-forwarded-for"), proxies)
