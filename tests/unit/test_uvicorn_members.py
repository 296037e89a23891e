"""Members of uvicorn that the connection overrides. uvicorn is pinned exactly: check a new version against these."""

from __future__ import annotations

from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.http.connection import HttpConnection

CALLED: Final = {
    "_start_asgi_task",
    "connection_lost",
    "connection_made",
    "data_received",
    "on_body",
    "on_headers_complete",
    "on_message_begin",
    "on_message_complete",
    "on_response_complete",
    "resume_writing",
}
"""Called by uvicorn or by its parser under these names."""


def overridden() -> set[str]:
    """The methods of uvicorn's protocol that a protocol of ours defines anew."""
    return {
        name for name in vars(HttpConnection) if callable(getattr(HttpToolsProtocol, name, None)) and name[:2] != "__"
    }


def test_uvicorn_has_every_member_that_is_overridden() -> None:
    assert overridden() == CALLED
