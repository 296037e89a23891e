"""Responses: parsed with care, as the server may be something else than a blocklist service."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Self, TypeVar

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
    PreconditionFailedError,
    UnauthorizedError,
    UnavailableError,
    UnknownNodeError,
)
from blocklist.model.node import ALL_LISTENERS, AppliedBy
from blocklist.wire.body import (
    AMBIGUOUS_PROBLEM,
    DISMISSED_PROBLEM,
    FENCED_PROBLEM,
    LIMIT_PROBLEM,
    NO_PATH_PROBLEM,
    UNKNOWN_NODE_PROBLEM,
    Body,
    Json,
)
from blocklist.wire.nodes import NodeBody

if TYPE_CHECKING:
    from blocklist.model.node import BlockedNode
    from blocklist.wire.listeners import KnownNodeBody, NodeStatusBody

# What methods of BlocklistClient return, apart from values of the model and bodies.


@dataclass(frozen=True, slots=True)
class AppliedCount:
    """How many live listeners had applied a change, and their total number.

    `missing` are the ids of some that had not applied it yet, `refused` of some that do not carry it out. `not_here`
    are some that have none of its nodes, `observing` some that do not apply blocks: they do not count. `superseded` are
    nodes that were unblocked or weakened meanwhile, or were blocked again if the change unblocked them: then `applied`
    is 0.
    """

    applied: int
    total: int
    missing: tuple[str, ...]
    refused: tuple[str, ...] = ()
    superseded: tuple[str, ...] = ()
    not_here: tuple[str, ...] = ()
    observing: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether there is a live listener, and all of them have applied the change."""
        return 0 < self.total == self.applied

    @classmethod
    def of_status(cls, status: NodeStatusBody, by: AppliedBy = ALL_LISTENERS) -> Self:
        """The numbers for the last change of a node at those listeners whom `by` counts."""
        counted = [one for one in status.listeners if one.role == "RESOURCE_MANAGER" or not by.managers]
        there = [one for one in counted if one.counts]
        missing = tuple(one.id for one in there if not one.applied and one.refused is None)
        refused = tuple(one.id for one in there if not one.applied and one.refused is not None)
        not_here = tuple(one.id for one in counted if one.not_here)
        observing = tuple(one.id for one in counted if one.mode != "apply")
        return cls(
            sum(one.applied for one in there), len(there), missing, refused, not_here=not_here, observing=observing
        )

    def and_also(self, other: Self) -> Self:
        """The result for this change and another one: a listener counts if it has applied what is for it of both."""
        refused = tuple(dict.fromkeys((*self.refused, *other.refused)))
        missing = tuple(name for name in dict.fromkeys((*self.missing, *other.missing)) if name not in refused)
        not_here = tuple(name for name in self.not_here if name in other.not_here)
        total = max(each.total + len(each.not_here) for each in (self, other)) - len(not_here)
        # The headers name only some of many.
        others = max(len(missing) + len(refused), self.total - self.applied, other.total - other.applied)
        return type(self)(
            applied=max(0, total - others),
            total=total,
            missing=missing,
            refused=refused,
            superseded=(*self.superseded, *other.superseded),
            not_here=not_here,
            observing=tuple(dict.fromkeys((*self.observing, *other.observing))),
        )

    def with_refused(self, listeners: Iterable[str]) -> Self:
        """The result if these listeners have refused a part of the change as well."""
        more = [name for name in listeners if name not in self.refused + self.missing]
        return replace(self, applied=max(0, self.applied - len(more)), refused=(*self.refused, *more))


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockNodesResult:
    """The blocked nodes, which of them were merged, and how many listeners have applied it (None without `wait`).

    `unknown` are those that are not known, with a similar known node, or None; `ambiguous` are those that
    several nodes claim, with the ids of these; `several` are short names, with the nodes that they mean and block.
    `warnings` are sentences for people, such as that no node has a label of
    the selector.
    """

    nodes: Mapping[str, BlockedNode]
    merged: frozenset[str]
    applied: AppliedCount | None
    unknown: Mapping[str, str | None] = field(default_factory=dict)
    ambiguous: Mapping[str, Sequence[str]] = field(default_factory=dict)
    several: Mapping[str, Sequence[str]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class UnblockResult:
    """The name under which the node was blocked, and how many listeners have applied it (None without `wait`).

    `blocked` is whether other owners keep it blocked, after the caller's claim was removed.
    """

    id: str
    applied: AppliedCount | None
    blocked: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class UnblockSelectedResult:
    """The selected nodes: those that were unblocked, with the names under which they were blocked, and the others.

    `applied` is how many listeners have applied it (None without `wait`); `warnings` are as in BlockNodesResult.
    """

    unblocked: Mapping[str, str]
    not_blocked: frozenset[str]
    applied: AppliedCount | None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownNodeListing:
    """Nodes that anybody reports; `warnings` are as in NodeListing."""

    nodes: tuple[KnownNodeBody, ...]
    warnings: tuple[str, ...]


_REVISION: Final = re.compile(r"[0-9]{1,16}", re.ASCII)
_APPLIED: Final = re.compile(r"([0-9]{1,9})/([0-9]{1,9})", re.ASCII)
_WARNING: Final = re.compile(r'299 \S+ "([^"]*)"')
_CONFLICTS: Final = {
    LIMIT_PROBLEM: LimitError,
    UNKNOWN_NODE_PROBLEM: UnknownNodeError,
    DISMISSED_PROBLEM: DismissedError,
}
B = TypeVar("B", bound=Body)
Params = Mapping[str, str | Sequence[str]]


class ApiResponse:
    """A response of the service. Every accessor raises UnavailableError if its part of the response is invalid."""

    def __init__(self, response: httpx.Response, body: bytes) -> None:
        self.response = response
        self._body = body

    @property
    def revision(self) -> int:
        text = self.response.headers.get("Blocklist-Revision", "")
        if not _REVISION.fullmatch(text):
            raise UnavailableError(f"The service sent an invalid Blocklist-Revision header: {text[:64]!a}.")
        return int(text)

    @property
    def history(self) -> str:
        return str(self.response.headers.get("Blocklist-History", ""))

    @property
    def etag(self) -> str:
        """Without the sign of a weak one: a proxy may have added that."""
        return str(self.response.headers.get("ETag", "")).removeprefix("W/")

    @property
    def applied(self) -> AppliedCount | None:
        """How many listeners have applied the change; None if the request did not wait."""
        headers = self.response.headers
        match = _APPLIED.fullmatch(headers.get("Blocklist-Applied", ""))
        names = ("Not-Applied", "Refused", "Superseded", "Not-Here", "Observing")
        return match and AppliedCount(
            int(match[1]), int(match[2]), *(_ids(headers.get(f"Blocklist-{name}", "")) for name in names)
        )

    @property
    def node_id(self) -> str | None:
        """The name under which the node was blocked; None without the header."""
        name: str | None = self.response.headers.get("Blocklist-Node")
        return name

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for people, such as that no node has a label of the selector."""
        return tuple(_WARNING.findall(self.response.headers.get("Warning", "")))

    def object(self) -> Json:
        try:
            return parse_object(json.loads(self._body))
        except (ValueError, RecursionError) as error:
            raise UnavailableError(f"The response of {self.response.url} is not JSON.", passed_on=True) from error

    @property
    def problem(self) -> Json:
        """The body of an error; empty if it is not one of the service."""
        if self.response.headers.get("Content-Type", "").partition(";")[0] != "application/problem+json":
            return {}
        try:
            return self.object()
        except UnavailableError:
            return {}

    @property
    def is_not_found_elsewhere(self) -> bool:
        """Whether it is a 404 that is not about a node, for example: of another server, or for an unknown path."""
        return self.response.status_code == HTTPStatus.NOT_FOUND and (
            self.problem.get("type") in (None, NO_PATH_PROBLEM)
        )


def _ids(header: str) -> tuple[str, ...]:
    """The ids in a header; those beyond the first 20 are only counted there: `a, b, and 37 more`."""
    return tuple(part for part in header.split(", ") if part and " " not in part)


def parse_object(value: object) -> Json:
    """The value, if it is a JSON object. Raises UnavailableError otherwise."""
    if not isinstance(value, dict):
        raise UnavailableError("The service sent JSON that is not an object.", passed_on=True)
    return value


def parse_body(body_type: type[B], value: object) -> B:
    """Parse a body of this type. Raises UnavailableError if it is invalid."""
    try:
        return body_type.parse(value)
    except InvalidError as error:
        raise UnavailableError(f"The service sent an invalid response: {error}", passed_on=True) from error


def parse_node(value: object) -> BlockedNode:
    """Parse a node. Raises UnavailableError if it is invalid."""
    try:
        return NodeBody.parse(value).value()
    except InvalidError as error:
        raise UnavailableError(f"The service sent an invalid node: {error}", passed_on=True) from error


def error_from(answer: ApiResponse) -> BlocklistError:
    """The error of a response other than 2xx."""
    problem = answer.problem
    error = _error_of_status(answer.response, problem)
    error.title = _text(problem, "title")
    return error


def _text(problem: Json, name: str) -> str | None:
    value = problem.get(name)
    return value if isinstance(value, str) and value else None


def _error_of_status(response: httpx.Response, problem: Json) -> BlocklistError:
    detail, errors = _text(problem, "detail") or response.reason_phrase, problem.get("errors")
    lines = [line for line in errors if isinstance(line, str)] if isinstance(errors, list) else []
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
        case 412:
            return PreconditionFailedError(detail, lines)
        case 410:
            oldest = problem.get("oldest")
            return CompactedError(detail, oldest if isinstance(oldest, int) else 0)
        case _:
            return UnavailableError(f"HTTP {response.status_code}: {detail}", retry_after(response))


def _conflict_of_type(problem: Json, detail: str, lines: Sequence[str]) -> BlocklistError:
    kind = _text(problem, "type")
    if kind == AMBIGUOUS_PROBLEM:
        return AmbiguousNodeError(detail, list(_conflicting_nodes(problem).values()))
    if kind == FENCED_PROBLEM:
        from blocklist.model.listener import FencedError

        return FencedError(detail, lines)
    if kind in _CONFLICTS:
        return _CONFLICTS[kind](detail, lines)
    return ConflictError(detail, _conflicting_nodes(problem), lines)


def _conflicting_nodes(problem: Json) -> dict[str, BlockedNode]:
    nodes = {name: parse_node(body) for name, body in parse_object(problem.get("blockedNodes") or {}).items()}
    if one := problem.get("blockedNode"):
        node = parse_node(one)
        nodes[node.id] = node
    return nodes
