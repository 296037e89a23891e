"""JSON responses with revision headers, and the Age header of what may be out of date."""

from __future__ import annotations

from typing import Any, Final

from fastapi import Depends, Request, Response

from app.service import service_of

_PATHS_WITH_REVISION: Final = (
    "/blocklist",
    "/claims",
    "/listeners",
    "/nodes",
    "/taskmanagers",
    "/tokens",
    "/whoami",
    "/drift",
    "/evidence",
    "/integrations",
)


def revision_headers(request: Request, revision: int | None = None) -> list[tuple[bytes, bytes]]:
    """The revision and history headers of API responses; of the current revision unless one is given."""
    if not request.scope["path"].startswith(_PATHS_WITH_REVISION):
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
