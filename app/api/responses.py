"""What endpoints share: reading a body within its limit, JSON answers with the revision they speak of."""

from __future__ import annotations

from typing import Final

from fastapi import Request, Response
from starlette.requests import ClientDisconnect

from app.components import components_of
from blocklist.model.errors import BlocklistError

MAX_NODE_BODY: Final = 64 * 1024
"""Bytes that the body of a request on one node may have."""
MAX_NODES_BODY: Final = 1024 * 1024
"""Bytes that the body of a request on several nodes may have."""

MAX_REPORT_BODY: Final = 2 * 1024 * 1024
"""Bytes that a heartbeat may have."""
_PATHS_WITH_REVISION: Final = (
    "/blocklist",
    "/listeners",
    "/taskmanagers",
    "/tokens",
    "/whoami",
    "/evidence",
    "/integrations",
)


class TooLargeError(BlocklistError):
    """The body is larger than the route takes; nothing was changed."""


def revision_headers(request: Request, revision: int | None = None) -> list[tuple[bytes, bytes]]:
    """The headers of every answer of the API; the present revision unless another is given."""
    if not request.scope["path"].startswith(_PATHS_WITH_REVISION):
        return []
    tracker = components_of(request).view.tracker
    return [
        (b"blocklist-revision", b"%d" % (tracker.revision if revision is None else revision)),
        (b"blocklist-history", tracker.history.encode()),
    ]


class JsonResponse(Response):
    """A JSON answer of ready bytes, with no more headers than it has."""

    def __init__(self, request: Request, body: bytes, status: int = 200, revision: int | None = None) -> None:
        self.status_code = status
        self.background = None
        self.body = body
        self.raw_headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(self.body)),
            *revision_headers(request, revision),
        ]


def age_header(request: Request) -> list[tuple[bytes, bytes]]:
    """The header that marks an answer from memory as stale while the database is away (RFC 9111, Age)."""
    seconds = components_of(request).view.age()
    return [] if seconds is None else [(b"age", b"%d" % seconds)]


async def read_body(request: Request, limit: int) -> bytes:
    """The request's body, of any content type. Raises TooLargeError beyond `limit` bytes."""
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
