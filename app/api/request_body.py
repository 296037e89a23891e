"""Request bodies that endpoints parse themselves: size limits, reading, OpenAPI."""

from __future__ import annotations

from typing import Any, Final

from fastapi import Request
from starlette.requests import ClientDisconnect

from blocklist.model.errors import BlocklistError

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


async def read_body(request: Request, limit: int) -> bytes:
    """The request body, of any content type. Raises TooLargeError above `limit` bytes, ClientDisconnect."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise TooLargeError(_too_large(limit))
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


def _too_large(limit: int) -> str:
    return f"The body is larger than {limit // 1024} KiB."
