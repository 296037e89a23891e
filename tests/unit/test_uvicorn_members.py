"""Members of uvicorn that the protocols override. uvicorn is pinned exactly: check a new version against these."""

from __future__ import annotations

from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.http.fast_put import FastPutProtocol

PRIVATE: Final = {"_start_asgi_task", "_unsupported_upgrade_warning"}
CALLED: Final = {
    "connection_lost",
    "connection_made",
    "data_received",
    "on_body",
    "on_headers_complete",
    "on_message_begin",
    "on_message_complete",
    "send_400_response",
    "timeout_keep_alive_handler",
}
"""Called by uvicorn or by its parser under these names."""


def overridden() -> set[str]:
    """The methods of uvicorn's protocol that a protocol of ours defines anew."""
    ours = {name for kind in FastPutProtocol.__mro__ if kind.__module__.startswith("app.") for name in vars(kind)}
    return {name for name in ours if callable(getattr(HttpToolsProtocol, name, None)) and not name.startswith("__")}


def test_uvicorn_has_every_member_that_is_overridden() -> None:
    assert overridden() == PRIVATE | CALLED
