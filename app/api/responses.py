"""JSON responses with revision and Age headers, and errors: one table from BlocklistError to its status and problem."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from app.api.parameters import TooLargeError
from app.auth.authenticator import LastAdminError
from app.engine.handler import CommandFailedError
from app.listeners.reports import KnownNodes, ReportsTooLargeError, TooManyListenersError
from app.net.addresses import MisdirectedError
from app.service import service_of
from app.store.database import LockedError
from app.store.tables import UnreadableRowError
from blocklist.model.errors import (
    AmbiguousNodeError,
    BlocklistError,
    CompactedError,
    ConflictError,
    DismissedError,
    ForbiddenError,
    InvalidError,
    LimitError,
    NotFoundError,
    PreconditionFailedError,
    UnauthorizedError,
    UnavailableError,
    UnknownNodeError,
)
from blocklist.model.listener import FencedError
from blocklist.model.names import ambiguous_message
from blocklist.wire.body import (
    ALREADY_BLOCKED_PROBLEM,
    AMBIGUOUS_PROBLEM,
    DISMISSED_PROBLEM,
    FENCED_PROBLEM,
    LAST_ADMIN_PROBLEM,
    LIMIT_PROBLEM,
    NO_PATH_PROBLEM,
    UNKNOWN_NODE_PROBLEM,
    Body,
    Json,
    dump_json,
    with_example,
)
from blocklist.wire.nodes import NodeBody

PATHS_WITH_REVISION: Final = (
    "/audit",
    "/blocklist",
    "/claims",
    "/jobs",
    "/listeners",
    "/nodes",
    "/taskmanagers",
    "/tokens",
    "/issuers",
    "/whoami",
    "/drift",
    "/evidence",
    "/integrations",
)


def revision_headers(request: Request, revision: int | None = None) -> list[tuple[bytes, bytes]]:
    """The revision and history headers of API responses; of the current revision unless one is given."""
    if not request.scope["path"].startswith(PATHS_WITH_REVISION):
        return []
    tracker = service_of(request).view.tracker
    return [
        (b"blocklist-revision", b"%d" % (tracker.revision if revision is None else revision)),
        (b"blocklist-history", tracker.history.encode()),
    ]


class JsonResponse(Response):
    """A response of serialized JSON and a newline, so that a shell's prompt begins a line; only necessary headers."""

    def __init__(self, request: Request, body: bytes, status: int = 200, revision: int | None = None) -> None:
        self.status_code = status
        self.background = None
        self.body = body + b"\n"
        self.raw_headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(self.body)),
            *revision_headers(request, revision),
            *age_header(request),
        ]


async def _mark_from_memory(request: Request) -> None:
    request.state.from_memory = True


FROM_MEMORY: Final[Any] = Depends(_mark_from_memory)
"""For reads that are answered from memory: during an outage of the database their responses have an Age header."""


def age_header(request: Request) -> list[tuple[bytes, bytes]]:
    """The Age header (RFC 9111) of a read from memory while the database is unavailable; else empty."""
    if not getattr(request.state, "from_memory", False):
        return []
    seconds = service_of(request).view.age()
    return [] if seconds is None else [(b"age", b"%d" % seconds)]


# The bodies of errors in the API document: application/problem+json (RFC 9457).


@dataclass(kw_only=True)
class Problem(Body):
    """An error (RFC 9457). `errors` is what Flink's REST clients read."""

    __pydantic_config__ = with_example(
        type="urn:blocklist:problem:bad-request",
        title="Bad Request",
        status=400,
        detail="cause: this field is required.",
        instance="/blocklist/nodes/worker-17",
        errors=["cause: this field is required."],
    )

    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: list[str]


@dataclass(kw_only=True)
class ConflictProblem(Problem):
    """The node is already blocked: `blockedNode` is its existing block."""

    blocked_node: NodeBody


@dataclass(kw_only=True)
class ConflictsProblem(Problem):
    """Some nodes are already blocked: `blockedNodes` are their existing blocks."""

    blocked_nodes: dict[str, NodeBody]


@dataclass(kw_only=True)
class CompactedProblem(Problem):
    """The changes are no longer in the log, which starts at revision `oldest`."""

    oldest: int


# Maps errors to responses: one table, application/problem+json for all of them (RFC 9457).

STATUS: Final[dict[type[BlocklistError], HTTPStatus]] = {
    InvalidError: HTTPStatus.BAD_REQUEST,
    UnauthorizedError: HTTPStatus.UNAUTHORIZED,
    ForbiddenError: HTTPStatus.FORBIDDEN,
    NotFoundError: HTTPStatus.NOT_FOUND,
    ConflictError: HTTPStatus.CONFLICT,
    AmbiguousNodeError: HTTPStatus.CONFLICT,
    LimitError: HTTPStatus.CONFLICT,
    UnknownNodeError: HTTPStatus.CONFLICT,
    DismissedError: HTTPStatus.CONFLICT,
    FencedError: HTTPStatus.CONFLICT,
    LastAdminError: HTTPStatus.CONFLICT,
    CompactedError: HTTPStatus.GONE,
    PreconditionFailedError: HTTPStatus.PRECONDITION_FAILED,
    TooLargeError: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    MisdirectedError: HTTPStatus.MISDIRECTED_REQUEST,
    ReportsTooLargeError: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    TooManyListenersError: HTTPStatus.TOO_MANY_REQUESTS,
    UnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
    LockedError: HTTPStatus.SERVICE_UNAVAILABLE,
    UnreadableRowError: HTTPStatus.SERVICE_UNAVAILABLE,
    CommandFailedError: HTTPStatus.INTERNAL_SERVER_ERROR,
}
"""The status of each BlocklistError that the service raises; a test fails if one is missing."""

TYPES: Final[dict[type[BlocklistError], str]] = {
    ConflictError: ALREADY_BLOCKED_PROBLEM,
    AmbiguousNodeError: AMBIGUOUS_PROBLEM,
    LimitError: LIMIT_PROBLEM,
    UnknownNodeError: UNKNOWN_NODE_PROBLEM,
    DismissedError: DISMISSED_PROBLEM,
    FencedError: FENCED_PROBLEM,
    LastAdminError: LAST_ADMIN_PROBLEM,
}
"""Problem types other than that of the status: one for each meaning of 409."""

_DESCRIPTIONS: Final = {
    400: "The request is invalid; nothing was changed.",
    401: "Credentials are missing, invalid or expired.",
    403: "The role does not allow this; the detail names the required role.",
    404: "The node is not blocked.",
    409: "The node is already blocked; nothing was changed.",
    410: "The changes have been compacted.",
    412: "The node or claim is not as `If-Match` or `If-None-Match` requires; nothing was changed.",
    413: "The body is too large; nothing was changed.",
    414: "The URL is longer than 8 KiB, and the head of the request than 16 KiB; nothing was changed.",
    429: "There are as many as the token may have; nothing was changed.",
    503: "The database is unavailable, or this replica is behind; retry after `Retry-After` seconds.",
}


def problem_responses(
    *statuses: int, model: type[Problem] = Problem, or_else: type[Problem] | None = None, **descriptions: str
) -> dict[int | str, dict[str, Any]]:
    """OpenAPI problem+json responses for these statuses; `descriptions` (`_404=…`) replace the usual descriptions.

    The schema of the body is `model`, or one of `model` and `or_else`.
    """
    schemas = [{"$ref": f"#/components/schemas/{kind.__name__}"} for kind in (model, or_else) if kind is not None]
    schema = schemas[0] if or_else is None else {"anyOf": schemas}
    return {
        status: {
            "description": descriptions.get(f"_{status}", _DESCRIPTIONS[status]),
            "content": {"application/problem+json": {"schema": schema}},
        }
        for status in statuses
    }


def install_handlers(app: FastAPI) -> None:
    """Return every error as a problem, including FastAPI's own."""
    app.add_exception_handler(BlocklistError, _as_coroutine(problem_for))
    app.add_exception_handler(RequestValidationError, _as_coroutine(_validation_problem))
    app.add_exception_handler(HTTPException, _as_coroutine(_http_problem))
    app.add_exception_handler(ClientDisconnect, _as_coroutine(_client_disconnected))
    app.add_exception_handler(Exception, _as_coroutine(internal_error))


_Handler = Callable[[Request, Exception], Response]


def _as_coroutine(respond: _Handler) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Wrap a handler in a coroutine: plain functions run in a thread, where the list could change meanwhile."""

    async def handler(request: Request, error: Exception) -> Response:
        return respond(request, error)

    return handler


def problem(
    request: Request,
    status: HTTPStatus,
    detail: str,
    *,
    lines: tuple[str, ...] = (),
    extra: Json | None = None,
    headers: dict[str, str] | None = None,
    revision: int | None = None,
) -> Response:
    """A problem+json response; `instance` is the requested path. Without `revision` its header has the current one."""
    root_path, raw_path = request.scope.get("root_path", ""), request.scope.get("raw_path", b"")
    body = {
        "type": f"urn:blocklist:problem:{status.name.lower().replace('_', '-')}",
        "title": status.phrase,
        "status": status.value,
        "detail": detail,
        "instance": root_path + raw_path.decode("ascii", "replace"),
        "errors": list(lines) or [detail],
    }
    content = dump_json(body | (extra or {})) + b"\n"
    response = Response(content, status, headers, media_type="application/problem+json")
    response.raw_headers.extend(revision_headers(request, revision))
    if status in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}:
        response.raw_headers.extend(age_header(request))
    return response


def problem_for(request: Request, error: Exception) -> Response:
    assert isinstance(error, BlocklistError)
    status = STATUS[type(error)]
    headers = None
    extra: Json = {"type": TYPES[type(error)]} if type(error) in TYPES else {}
    match error:
        case ConflictError(blocked=blocked):
            view = service_of(request).view
            nodes = {node_id: view.node_body(node) for node_id, node in blocked.items()}
            many = request.scope["path"] == "/blocklist/nodes"
            extra |= {"blockedNodes": nodes} if many else {"blockedNode": nodes.popitem()[1]}
        case AmbiguousNodeError(blocked=blocked):
            view = service_of(request).view
            nodes = {node_id: view.node_body(node) for node_id, node in blocked.items()}
            extra["blockedNodes"] = nodes
        case CompactedError(oldest=oldest):
            extra = {"oldest": oldest}
        case ForbiddenError():
            service_of(request).metrics.count_denied("forbidden")
        case UnauthorizedError(given=given):
            service_of(request).metrics.count_denied("invalid" if given else "missing")
            headers = {"WWW-Authenticate": 'Bearer error="invalid_token"' if given else "Bearer"}
        case UnavailableError(retry_after=seconds):
            headers = {"Retry-After": str(int(seconds or 1))}
    lines = (*error.lines, *_ambiguous_names(request)) if isinstance(error, NotFoundError) else error.lines
    detail = error.detail if len(lines) == len(error.lines) else " ".join([error.detail, *lines[len(error.lines) :]])
    return problem(request, status, detail, lines=lines, extra=extra, headers=headers, revision=error.revision)


def _ambiguous_names(request: Request) -> list[str]:
    """Why a node was not found: the name in the path is one that several nodes claim."""
    node_id = request.path_params.get("node_id")
    ambiguous = {} if node_id is None else KnownNodes(service_of(request).inventory).ambiguous([node_id])
    return [ambiguous_message(*item) for item in ambiguous.items()]


def _validation_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    lines = tuple(f"{fault['loc'][-1]}: {fault['msg'].removeprefix('Value error, ')}." for fault in error.errors())
    return problem(request, HTTPStatus.BAD_REQUEST, " ".join(lines), lines=lines)


def _http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = ", ".join(sorted(_methods(request)))
        detail = f"{request.method} is not allowed here; allowed: {allowed}."
        return problem(request, status, detail, headers={"Allow": allowed})
    if status == HTTPStatus.NOT_FOUND:
        return problem(request, status, "There is nothing at this path.", extra={"type": NO_PATH_PROBLEM})
    detail = str(error.detail)
    return problem(request, status, detail, headers=dict(error.headers or {}))


def _client_disconnected(_: Request, __: Exception) -> Response:
    # No client reads this: it disconnected before it had sent its body. Nothing was changed.
    return Response(status_code=HTTPStatus.BAD_REQUEST)


def internal_error(request: Request, _: Exception) -> Response:
    """The response to an unexpected error. It reveals no details; these are in the log."""
    return problem(request, HTTPStatus.INTERNAL_SERVER_ERROR, "Internal error; see the log of the service.")


def _methods(request: Request) -> set[str]:
    """All methods of the path; Starlette's Allow header names only those of the first matching route."""
    scope = dict(request.scope)
    return {
        method
        for route in request.app.router.routes
        if route.matches(scope)[0] != Match.NONE
        for method in getattr(route, "methods", None) or ()
    }
