"""The environment variables of the command, and the client that they configure."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from blocklist.model.durations import parse_duration, parse_duration_or_forever
from blocklist.model.errors import BlocklistError, InvalidError

if TYPE_CHECKING:
    from blocklist.client.client import BlocklistClient

SETTINGS: Final = ("URL", "TOKEN", "TOKEN_FILE", "TIMEOUT", "DEFAULT_DURATION")
"""The variables that the command reads, without the prefix."""
_PREFIX: Final = "BLOCKLIST_"
_SIMILARITY: Final = 0.8
"""Names at least this similar to a setting are misspelt. The settings of the service, which may be in the same
environment, are less similar (`TOKEN_FILE` and `ADMIN_TOKEN_FILE`: 0.77)."""
DEFAULT_TIMEOUT: Final = "5s"
_COMPLETION_TIMEOUT: Final = 0.5
"""Seconds for each step of a request that completes a word: the user is waiting after the tab key."""


def connect(seconds: float | None = None) -> BlocklistClient:
    """A client with the timeout in seconds, by default BLOCKLIST_TIMEOUT. It does not connect yet.

    Raises InvalidError for an invalid variable, or one whose name is misspelt.
    """
    check_names(os.environ)
    # If click is installed, httpx imports its own command line, and with it rich and pygments.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    from blocklist.client.client import BlocklistClient  # noqa: PLC0415

    return BlocklistClient(timeout=request_timeout() if seconds is None else seconds)


def check_names(environ: Mapping[str, str]) -> None:
    """Raises InvalidError with one line for each variable whose name is a misspelt setting of the command."""
    given = {name.removeprefix(_PREFIX) for name in environ if name.startswith(_PREFIX)}
    if unknown := sorted(given.difference(SETTINGS)):
        from difflib import get_close_matches  # noqa: PLC0415 - rarely needed

        near = {name: get_close_matches(name, SETTINGS, n=1, cutoff=_SIMILARITY) for name in unknown}
        if lines := [
            f"{_PREFIX}{name} is not a setting: did you mean {_PREFIX}{found[0]}?"
            for name, found in near.items()
            if found
        ]:
            raise InvalidError("Some settings are misspelt.", lines)


def request_timeout() -> float:
    """BLOCKLIST_TIMEOUT in seconds: `5s`, `500ms`, or a number. Raises InvalidError if it is invalid."""
    text = os.environ.get("BLOCKLIST_TIMEOUT") or DEFAULT_TIMEOUT
    try:
        return parse_duration(f"{text}s" if text.replace(".", "", 1).isdecimal() else text) / 1000
    except ValueError as error:
        raise InvalidError(f"BLOCKLIST_TIMEOUT: {error}") from None


def default_duration(client: BlocklistClient) -> int:
    """BLOCKLIST_DEFAULT_DURATION in milliseconds, PERMANENT for `forever`; without it, that of the service.

    Raises InvalidError if it is invalid.
    """
    text = os.environ.get("BLOCKLIST_DEFAULT_DURATION")
    if not text:
        return client.default_duration()
    try:
        return parse_duration_or_forever(text)
    except ValueError as error:
        raise InvalidError(f"BLOCKLIST_DEFAULT_DURATION: {error}") from None


def blocked_node_ids() -> list[str]:
    """The ids of the blocked nodes, for completion; none if the service is unreachable or slow."""
    logging.disable()
    try:
        with connect(_COMPLETION_TIMEOUT) as client:
            return sorted(client.snapshot().nodes)
    except BlocklistError:
        return []


def now_ms() -> int:
    """The current time in Unix milliseconds."""
    return time.time_ns() // 1_000_000
