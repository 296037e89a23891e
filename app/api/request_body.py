"""Request bodies that endpoints parse themselves: size limits, reading, OpenAPI."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from app.auth.credential import PRINCIPAL_KEY
from blocklist.model.errors import BlocklistError, InvalidError
from blocklist.model.node import MAX_NODES, check_node_id
from blocklist.wire.body import ID_SCHEMA, parse_json

T = TypeVar("T")
MAX_NODE_BODY: Final = 64 * 1024
"""Maximum size of a request body for one node, in bytes; also of forms and other small bodies."""
MAX_NODES_BODY: Final = 1024 * 1024
"""Maximum size of a request body for several nodes, in bytes."""
MAX_REPORT_BODY: Final = 2 * 1024 * 1024
"""Maximum size of a heartbeat, in bytes."""


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
    """Read the body of a DELETE. Raises InvalidError unless it is empty or {}."""
    body = await read_body(request, MAX_NODE_BODY)
    if body and parse_json(body) != {}:
        raise InvalidError("The body of a DELETE must be empty or {}.")


def _too_large(limit: int) -> str:
    return f"The body is larger than {limit // 1024} KiB."
