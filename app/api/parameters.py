"""What requests give: path and query parameters that several routes share, and bodies that routes parse themselves."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Final, TypeVar

from fastapi import Depends, Path, Query, Request
from fastapi.dependencies.models import Dependant
from pydantic import BeforeValidator, Field
from starlette.requests import ClientDisconnect

from app.api.authentication import check_after_wait
from app.auth.credential import PRINCIPAL_KEY
from app.engine.list_view import ListView
from app.requests import MAX_NODE_BODY
from app.service import Service, service_of
from app.store.queries import PastList
from blocklist.model.errors import BlocklistError, InvalidError, UnavailableError
from blocklist.model.node import MAX_NODES, PERMANENT, check_id, check_node_id
from blocklist.wire.body import ID_SCHEMA, parse_json

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


# Pages: one form for every list that has them. The body has `next`, which is `after` of the next page.


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Which page of a list is asked for."""

    limit: int
    after: str | None = None

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
            " revision.",
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
