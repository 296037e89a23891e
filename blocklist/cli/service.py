"""The way to the service: the environment's settings, and the client, which is loaded only here."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Final

from blocklist.model.durations import parse_duration
from blocklist.model.errors import BlocklistError, InvalidError

if TYPE_CHECKING:
    from blocklist.client.client import BlocklistClient

DEFAULT_TIMEOUT: Final = "5s"
_COMPLETION_TIMEOUT: Final = 0.5
"""Seconds that somebody who pressed the tab key waits for each step."""


def connect(seconds: float | None = None) -> BlocklistClient:
    """A client as the environment says. Raises InvalidError for a setting that is none; connects to nothing yet."""
    # httpx has a command of its own, and loads rich and pygments for it where click happens to be there.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    from blocklist.client.client import BlocklistClient  # noqa: PLC0415

    return BlocklistClient(timeout=request_timeout() if seconds is None else seconds)


def request_timeout() -> float:
    """Seconds of BLOCKLIST_TIMEOUT: `5s`, `500ms`, or a bare number. Raises InvalidError."""
    text = os.environ.get("BLOCKLIST_TIMEOUT") or DEFAULT_TIMEOUT
    try:
        return parse_duration(f"{text}s" if text.replace(".", "", 1).isdecimal() else text) / 1000
    except ValueError as error:
        raise InvalidError(f"BLOCKLIST_TIMEOUT: {error}") from None


def blocked_node_ids() -> list[str]:
    """The blocked nodes' ids; none if the service does not answer soon."""
    logging.disable()
    try:
        with connect(_COMPLETION_TIMEOUT) as client:
            return sorted(client.snapshot().nodes)
    except BlocklistError:
        return []
