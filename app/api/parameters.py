"""What requests give: credentials and their role, shared parameters, and bodies that routes parse themselves."""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import parse_qs, urlsplit

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.dependencies.models import Dependant
from pydantic import AfterValidator, BeforeValidator, Field
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute
from structlog.contextvars import get_contextvars

from app.auth.authenticator import TOKEN_PATTERN, bearer_token
from app.auth.credential import (
    ANONYMOUS,
    AUTH_DISABLED,
    KEY_ID_PREFIX,
    PRINCIPAL_KEY,
    Credential,
    Principal,
    Stream,
)
from app.auth.sessions import COOKIE, Session
from app.engine.list_view import ListView
from app.net.addresses import client_address
from app.requests import MAX_NODE_BODY
from app.service import Service, service_of
from app.store.audit import Origin
from app.store.queries import PastList
from app.watch import ClientKey, ClientSlots
from blocklist.model.changes import Author, Source
from blocklist.model.claims import Role
from blocklist.model.errors import BlocklistError, ForbiddenError, InvalidError, UnauthorizedError, UnavailableError
from blocklist.model.node import MAX_NODES, PERMANENT, check_id, check_node_id, check_text
from blocklist.wire.audit import AuditKind, Way
from blocklist.wire.body import ID_SCHEMA, TEXT_PATTERN, parse_json

MAX_NAME: Final = 253
"""Of a principal."""
MIN_REVISION_TIMEOUT: Final = 2.0
"""Maximum time that `minRevision` waits for this replica, in seconds."""
_DIGITS = re.compile(r"[0-9]{1,19}", re.ASCII)


def _whole_number(value: object) -> object:
    if isinstance(value, str) and not _DIGITS.fullmatch(value):
        raise ValueError("must be a whole number in decimal digits")
    return value


Revision = Annotated[int, Field(ge=0, le=2**53), BeforeValidator(_whole_number)]
Timestamp = Annotated[int, Field(ge=0, le=PERMANENT), BeforeValidator(_whole_number)]
"""Unix milliseconds."""
From = Annotated[
    Timestamp | None, Query(alias="from", description="Only what happened at or after this time (Unix ms).")
]
Until = Annotated[Timestamp | None, Query(alias="until", description="Only what happened before this time (Unix ms).")]
AuthorName = Annotated[
    str,
    Field(min_length=1, max_length=MAX_NAME, json_schema_extra={"pattern": TEXT_PATTERN}),
    AfterValidator(check_text),
]
"""The name of whoever did something."""


async def _node_id(
    node_id: Annotated[
        str,
        Path(
            description="1 to 253 characters of `A-Z a-z 0-9 . _ : -`, but not `.` or `..`. It means the same"
            " machine in any case, as short or full name, and as address in any spelling: the answer has an address in"
            " its shortest form, without brackets, zone and port.",
            examples=["worker-17"],
            json_schema_extra=dict(ID_SCHEMA),
        ),
    ],
) -> str:
    return check_node_id(node_id)


NodeId = Annotated[str, Depends(_node_id)]
"""A node id from the path, validated. Raises InvalidError."""


async def _resource_id(
    id: Annotated[  # noqa: A002 - the name in the path
        str,
        Path(
            description="The id; same characters as a node id.",
            examples=["app-20261121101500-0001"],
            json_schema_extra=dict(ID_SCHEMA),
        ),
    ],
) -> str:
    return check_id(id)


ResourceId = Annotated[str, Depends(_resource_id)]
"""The id of a listener, TaskManager or token from the path, validated. Raises InvalidError."""


async def _wait_for_revision(
    request: Request,
    min_revision: Annotated[
        Revision | None,
        Query(
            alias="minRevision",
            description="Wait up to 2 s until this replica has this revision, otherwise 503.",
        ),
    ] = None,
) -> None:
    if min_revision is not None:
        await require_revision(service_of(request).view, min_revision)
        check_after_wait(request)


async def require_revision(view: ListView, revision: int) -> None:
    """Wait until this replica has a revision. Raises UnavailableError on timeout."""
    if not await view.wait_for_revision(revision, MIN_REVISION_TIMEOUT):
        raise UnavailableError(
            f"This replica is at revision {view.tracker.revision} and does not have {revision} yet.", retry_after=1
        )


MinRevision = Depends(_wait_for_revision)
"""Waits for `?minRevision=`. Raises UnavailableError on timeout, UnauthorizedError if the credential has ended."""


_ALLOWED: Final[dict[str, dict[str, bool]]] = {}
"""Of each route that has been asked with a query, by its id."""


async def known_parameters(request: Request) -> None:
    """Raises InvalidError for a query parameter that the route does not have, or for one that is given twice.

    A misspelt `?dryrun=true` would make a real change, and a misspelt `?selectr=` return the whole list.
    """
    if not request.scope["query_string"]:
        return
    route = request.scope["route"]
    # To find them takes as long as a third of a read.
    if (allowed := _ALLOWED.get(route.unique_id)) is None:
        allowed = _ALLOWED[route.unique_id] = _query_parameters(route.dependant)
    names = [name for name, _ in request.query_params.multi_items()]
    for name in names:
        if name in allowed and (allowed[name] or names.count(name) == 1):
            continue
        fault = "Repeated" if name in allowed else "Unknown"
        near = get_close_matches(name[:100], allowed, n=1) if name not in allowed else []
        hint = f"did you mean {near[0]}? " if near else ""
        listed = f"Allowed: {', '.join(sorted(allowed))}." if allowed else "This route has none."
        end = "" if request.method in {"GET", "HEAD"} else " Nothing was changed."
        raise InvalidError(f"{fault} query parameter {name[:100]!a}: {hint}{listed}{end}")


def _query_parameters(dependant: Dependant) -> dict[str, bool]:
    """The query parameters of a route by name, and whether each may be given several times."""
    found = {it.alias: "list" in str(it.field_info.annotation) for it in dependant.query_params}
    for dependency in dependant.dependencies:
        found |= _query_parameters(dependency)
    return found


KNOWN_PARAMETERS: Any = Depends(known_parameters)
"""For all routers of the API, but of health and downloads, to whose URLs others add their own parameters."""


class ApiRouter(APIRouter):
    """Whatever answers GET answers HEAD too, which the API document leaves out."""

    def get(self, *args: Any, **options: Any) -> Callable[[C], C]:
        answer_get = super().get(*args, **options)
        answer_head = self.head(*args, dependencies=options.get("dependencies"), include_in_schema=False)
        return lambda endpoint: answer_head(answer_get(endpoint))


# Pages: one form for every list that has them. The body has `next`, which is `after` of the next page.


T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Which page of a list is asked for."""

    limit: int
    after: str | None = None

    def number(self, what: str) -> int | None:
        """`after` as a number; None if there is none. Raises InvalidError."""
        if self.after is None:
            return None
        if not self.after.isdecimal() or int(self.after) > 2**53:
            raise InvalidError(f"after: it must be `next` of the page before, or {what}.")
        return int(self.after)

    def cut(self, found: Sequence[T], cursor: Callable[[T], object]) -> tuple[Sequence[T], str | None]:
        """The entries of the page, and its `next`. One more than `limit` are `found` unless it is the last page."""
        shown = found[: self.limit]
        return shown, str(cursor(shown[-1])) if len(found) > self.limit else None


async def _page(
    limit: Annotated[
        int,
        Query(ge=1, le=1000, description="Maximum number of entries in a page; of claims, the number of nodes."),
        BeforeValidator(_whole_number),
    ] = 100,
    after: Annotated[
        str | None,
        Query(
            description="Only what follows this: `next` of a page. Of nodes and claims any node id, of changes any"
            " revision, of the audit log any id.",
            json_schema_extra=dict(ID_SCHEMA),
        ),
    ] = None,
) -> PageRequest:
    return PageRequest(limit, None if after is None else check_node_id(after))


Page = Annotated[PageRequest, Depends(_page)]
"""`limit` and `after` of the query, validated. Raises InvalidError."""


# `?at=`: the list at a time in the past.


async def list_at(service: Service, timestamp: int) -> PastList:
    """The list at `?at=` (Unix ms). Raises InvalidError, CompactedError, UnavailableError."""
    if timestamp > (now := service.clock()):
        raise InvalidError(f"at: {timestamp} is in the future; the current time is {now}.")
    return await service.store.list_at(timestamp)


# Request bodies that endpoints parse themselves: size limits, reading, OpenAPI.


class TooLargeError(BlocklistError):
    """The request body is too large; nothing was changed."""


def body_schema(schema: str | dict[str, Any], *, required: bool = True) -> dict[str, Any]:
    """The `openapi_extra` of a route that parses its body itself; `schema` is a schema or the name of a model."""
    if isinstance(schema, str):
        schema = {"$ref": f"#/components/schemas/{schema}"}
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


def nodes_body_schema(model: str) -> dict[str, Any]:
    """The schema of a body that has such a model for each of several nodes."""
    return {
        "type": "object",
        "propertyNames": dict(ID_SCHEMA),
        "additionalProperties": {"$ref": f"#/components/schemas/{model}"},
        "minProperties": 1,
        "maxProperties": MAX_NODES,
    }


def parse_by_node(body: object, parse: Callable[[str, object], T]) -> dict[str, T]:
    """What `parse` makes of each node id and value of an object. Raises InvalidError with all faults."""
    if not isinstance(body, dict) or not 1 <= len(body) <= MAX_NODES:
        raise InvalidError(f"The body must be an object of 1 to {MAX_NODES} nodes: for each id an action and a cause.")
    parsed: dict[str, T] = {}
    errors: list[str] = []
    for node_id, value in body.items():
        try:
            checked = check_node_id(node_id)
            if checked in parsed:
                errors.append(f"{node_id[:253]!a}: {checked} is given twice.")
            parsed[checked] = parse(checked, value)
        except InvalidError as error:
            errors += [f"{node_id[:253]!a}: {line}" for line in error.lines]
    if errors:
        raise InvalidError("Nothing was changed: " + errors[0], errors)
    return parsed


EMPTY_BODY: Final = body_schema({"type": "object", "maxProperties": 0}, required=False)
"""The `openapi_extra` of a route that calls `require_empty_body`."""


async def read_body(request: Request, limit: int) -> bytes:
    """The body of an authenticated request, of any content type.

    Raises TooLargeError above `limit` bytes, UnavailableError if the client sends too much at once, ClientDisconnect.
    """
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise TooLargeError(_too_large(limit))
    assert PRINCIPAL_KEY in request.scope  # Nobody sends a body without credentials.
    body = b""
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > limit:
            raise TooLargeError(_too_large(limit))
    return body


async def parse_in_turns(body: bytes, *steps: Callable[[Any], Any]) -> Any:
    """What the steps make of a body, one after the other. Of a long body each has a turn of the event loop."""
    value: Any = body
    for step in steps:
        value = step(value)
        if len(body) > MAX_NODE_BODY:
            await asyncio.sleep(0)
    return value


async def require_empty_body(request: Request) -> None:
    """Read the body of a DELETE. Raises InvalidError unless it is empty, {} or null."""
    body = await read_body(request, MAX_NODE_BODY)
    if body and parse_json(body) not in ({}, None):
        raise InvalidError("The body of a DELETE must be empty or {}.")


def _too_large(limit: int) -> str:
    return f"The body is larger than {limit // 1024} KiB."


# Authenticates a request: by its Authorization header, otherwise by the page's session cookie.

CSRF_HEADER: Final = "x-csrf-token"
CSRF_FIELD: Final = "csrf_token"
_CREDENTIAL: Final = "blocklist.credential"
_SAFE_METHODS: Final = ("GET", "HEAD")
_FORM_TYPE: Final = "application/x-www-form-urlencoded"
_MAX_FIELDS: Final = 150
_MAX_REASON: Final = 300


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
    cookie = session_cookie_of(request)
    return None if cookie is None else await service_of(request).sessions.find(cookie, client_address_of(request))


def root_path_of(request: Request) -> str:
    """BLOCKLIST_ROOT_PATH."""
    root_path: str = request.scope.get("root_path", "")
    return root_path


def session_cookie_name(request: Request, *, https: bool) -> str:
    """With HTTPS, one that no other host of the domain can set.

    Not below a path: browsers would send it to all tools of the host.
    """
    return f"__Host-{COOKIE}" if https and not root_path_of(request) else COOKIE


def session_cookie_of(request: Request) -> str | None:
    """The value of the page's session cookie."""
    name = session_cookie_name(request, https=True)
    # Behind a proxy that is not trusted it is not known whether the browser uses HTTPS.
    if name not in request.cookies and not public_url_of(request).startswith("https://"):
        name = COOKIE
    return request.cookies.get(name)


def public_url_of(request: Request) -> str:
    """BLOCKLIST_PUBLIC_URL, else the URL of the request without its path; a trusted proxy names its scheme."""
    service = service_of(request)
    if service.settings.public_url:
        return service.settings.public_url
    scheme, peer = request.url.scheme, request.client.host if request.client is not None else ""
    if request.headers.get("x-forwarded-proto") == "https" and peer in service.trusted_proxies:
        scheme = "https"
    return f"{scheme}://{request.headers.get('host', '')}{root_path_of(request)}"


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
        return await _authenticate_header(request, service, headers[0].encode("latin-1"))
    session = await session_of(request)
    if session is None:
        raise UnauthorizedError(
            "A token is required: send it as `Authorization: Bearer TOKEN`. The command, managers and agents read it"
            " from the file that BLOCKLIST_TOKEN_FILE names."
        )
    if request.method not in _SAFE_METHODS:
        await _check_csrf(request, session)
    return session


async def _authenticate_header(request: Request, service: Service, header: bytes) -> Credential:
    """The credential of this header. Records what fails, and the first use of a JWT that may change blocks."""
    if (known := service.authenticator.authenticate_cached(header)) is not None:
        return known
    try:
        credential = await service.authenticator.authenticate(header)
    except (UnauthorizedError, ForbiddenError) as error:
        note_failed_login(request, bearer_token(header) or b"", error)
        raise
    if credential.id.startswith(KEY_ID_PREFIX) and credential.principal.role.allows(Role.OPERATOR):
        note_login(request, credential)
    return credential


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
    """The principal with the name that a trusted proxy sends; its role is unchanged.

    Raises InvalidError, and ForbiddenError for the name of an automatic owner.

    A blank header is none: a proxy sends it if nobody has logged in there. The name in a JWT is its issuer's word.
    """
    if principal.subject is not None:
        return principal
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
    if not name.strip() or len(name) > MAX_NAME:
        raise InvalidError(f"X-Forwarded-User: the name is blank, or longer than {MAX_NAME} characters.")
    named = replace(principal, name=name)
    named.check_name()
    return named


# What the audit log records of a request.

COMMAND_AGENT: Final = "blocklist-command/"
"""The beginning of the command's User-Agent."""


def origin_of(request: Request, principal: Principal | None = None, way: Way | None = None) -> Origin:
    """Who sends the request, if that is known, and from where; `way` unless it came through the API."""
    if way is None:
        is_command = request.headers.get("user-agent", "").startswith(COMMAND_AGENT)
        way = Way.COMMAND if is_command else Way.API
    return Origin(
        way=way,
        principal=None if principal is None else principal.name,
        address=client_address_of(request) or None,
        request_id=get_contextvars().get("request_id"),
    )


def note_login(request: Request, credential: Credential, way: Way | None = None) -> None:
    """Record that somebody has logged in with this credential."""
    principal = credential.principal
    details: dict[str, object] = {"role": principal.role.value, "credential": credential.id}
    details |= {} if principal.owners is None else {"owners": list(principal.owners)}
    details |= {} if principal.subject is None else {"subject": principal.subject}
    service_of(request).audit.note_repeatable(AuditKind.LOGIN, origin_of(request, principal, way), details)


def note_failed_login(request: Request, text: bytes, error: BlocklistError, way: Way | None = None) -> None:
    """Record that this token or JWT was refused. Nothing but the id in it, which is public, is kept of it."""
    match = TOKEN_PATTERN.fullmatch(text.strip())
    details = {"reason": error.detail[:_MAX_REASON]} | ({} if match is None else {"token": match[1].decode()})
    service_of(request).audit.note_repeatable(AuditKind.LOGIN_FAILED, origin_of(request, None, way), details)


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
REQUIRE_ADMIN: Any = Depends(RequireRole(Role.ADMIN))
"""For routes of admins that need nothing else of the principal."""
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
