"""Responses: parsed with care, as the server may be something else than a blocklist service."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeVar

import httpx

from blocklist.client.transport import retry_after
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
    UnauthorizedError,
    UnavailableError,
    UnknownNodeError,
)
from blocklist.wire import problems
from blocklist.wire.body import Body
from blocklist.wire.json import Json
from blocklist.wire.nodes import NodeBody

if TYPE_CHECKING:
    from blocklist.client.results import AppliedCount
    from blocklist.model.node import BlockedNode

_REVISION: Final = re.compile(r"[0-9]{1,16}", re.ASCII)
_APPLIED: Final = re.compile(r"([0-9]{1,9})/([0-9]{1,9})", re.ASCII)
_WARNING: Final = re.compile(r'299 \S+ "([^"]*)"')
B = TypeVar("B", bound=Body)
Params = Mapping[str, str | Sequence[str]]


class ApiResponse:
    """A response of the service. Every accessor raises UnavailableError if its part of the response is invalid."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response

    @property
    def revision(self) -> int:
        text = self._response.headers.get("Blocklist-Revision", "")
        if not _REVISION.fullmatch(text):
            raise UnavailableError(f"The service sent an invalid Blocklist-Revision header: {text[:64]!a}.")
        return int(text)

    @property
    def history(self) -> str:
        return str(self._response.headers.get("Blocklist-History", ""))

    @property
    def applied(self) -> AppliedCount | None:
        """How many listeners have applied the change; None if the request did not wait."""
        from blocklist.client.results import AppliedCount

        headers = self._response.headers
        match = _APPLIED.fullmatch(headers.get("Blocklist-Applied", ""))
        names = ("Blocklist-Not-Applied", "Blocklist-Refused", "Blocklist-Superseded")
        return match and AppliedCount(int(match[1]), int(match[2]), *(_ids(headers.get(name, "")) for name in names))

    @property
    def node_id(self) -> str | None:
        """The name under which the node was blocked; None without the header."""
        name: str | None = self._response.headers.get("Blocklist-Node")
        return name

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for people, such as that no node has a label of the selector."""
        return tuple(_WARNING.findall(self._response.headers.get("Warning", "")))

    def object(self) -> Json:
        try:
            return parse_object(self._response.json())
        except (ValueError, RecursionError) as error:
            raise UnavailableError(f"The response of {self._response.url} is not JSON.") from error


class Requester(ABC):
    """What the parts of BlocklistClient need."""

    @abstractmethod
    def _request(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        json: Json | None = None,
        wait: int | None = None,
    ) -> ApiResponse:
        """The response if it is 2xx; raises otherwise. `wait` is in seconds, sent as `Prefer: wait`."""


def _ids(header: str) -> tuple[str, ...]:
    return tuple(header.split(", ")) if header else ()


def parse_object(value: object) -> Json:
    """The value, if it is a JSON object. Raises UnavailableError otherwise."""
    if not isinstance(value, dict):
        raise UnavailableError("The service sent JSON that is not an object.")
    return value


def parse_body(body_type: type[B], value: object) -> B:
    """Parse a body of this type. Raises UnavailableError if it is invalid."""
    try:
        return body_type.parse(value)
    except InvalidError as error:
        raise UnavailableError(f"The service sent an invalid response: {error}") from error


def parse_node(value: object) -> BlockedNode:
    """Parse a node. Raises UnavailableError if it is invalid."""
    try:
        return NodeBody.parse(value).value()
    except InvalidError as error:
        raise UnavailableError(f"The service sent an invalid node: {error}") from error


def error_from(response: httpx.Response) -> BlocklistError:
    """The error of a response other than 2xx."""
    problem = _problem(response)
    error = _error_of_status(response, problem)
    error.title = str(problem.get("title") or "") or None
    return error


def is_about_path(response: httpx.Response) -> bool:
    """Whether the response is the service's error for a path that it does not have."""
    return response.status_code == HTTPStatus.NOT_FOUND and _problem(response).get("type") == problems.NO_PATH_PROBLEM


def _error_of_status(response: httpx.Response, problem: Json) -> BlocklistError:
    detail, errors = str(problem.get("detail") or response.reason_phrase), problem.get("errors")
    lines = [str(line) for line in errors] if isinstance(errors, list) else []
    match response.status_code:
        case 400 | 413 | 421:
            return InvalidError(detail, lines)
        case 401:
            return UnauthorizedError(detail, lines, given="error=" in response.headers.get("WWW-Authenticate", ""))
        case 403:
            return ForbiddenError(detail, lines)
        case 404:
            return NotFoundError(detail, lines)
        case 409:
            return _conflict_of_type(problem, detail, lines)
        case 410:
            oldest = problem.get("oldest")
            return CompactedError(detail, oldest if isinstance(oldest, int) else 0)
        case _:
            return unavailable_error(response, detail)


def _conflict_of_type(problem: Json, detail: str, lines: Sequence[str]) -> BlocklistError:
    match problem.get("type"):
        case problems.LIMIT_PROBLEM:
            return LimitError(detail, lines)
        case problems.UNKNOWN_NODE_PROBLEM:
            return UnknownNodeError(detail, lines)
        case problems.DISMISSED_PROBLEM:
            return DismissedError(detail, lines)
        case problems.AMBIGUOUS_PROBLEM:
            return AmbiguousNodeError(detail, list(_conflicting_nodes(problem).values()))
        case _:
            return ConflictError(detail, _conflicting_nodes(problem), lines)


def unavailable_error(response: httpx.Response, detail: str) -> UnavailableError:
    """The error of a response that is not about the list."""
    return UnavailableError(f"HTTP {response.status_code}: {detail}", retry_after(response))


def _conflicting_nodes(problem: Json) -> dict[str, BlockedNode]:
    nodes = {name: parse_node(body) for name, body in parse_object(problem.get("blockedNodes") or {}).items()}
    if one := problem.get("blockedNode"):
        node = parse_node(one)
        nodes[node.id] = node
    return nodes


def _problem(response: httpx.Response) -> Json:
    if response.headers.get("Content-Type", "").partition(";")[0] != "application/problem+json":
        return {}
    try:
        return parse_object(response.json())
    except (ValueError, RecursionError, UnavailableError):
        return {}
