"""The environment variables and the context of the command, and the client that they configure."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from blocklist.cli import contexts
from blocklist.cli.output import print_stderr
from blocklist.model.durations import parse_duration, parse_duration_or_forever
from blocklist.model.errors import BlocklistError, InvalidError

if TYPE_CHECKING:
    from blocklist.cli.contexts import Context
    from blocklist.client.client import BlocklistClient
    from blocklist.client.credentials import BearerAuth

SETTINGS: Final = ("URL", "TOKEN", "TOKEN_FILE", "TIMEOUT", "DEFAULT_DURATION", "CONTEXT")
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

    Raises InvalidError for an invalid variable, or one whose name is misspelt, and for an invalid configuration file.
    """
    check_names(os.environ)
    context = current_context()
    # If click is installed, httpx imports its own command line, and with it rich and pygments.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    from blocklist.client.client import BlocklistClient  # noqa: PLC0415

    timeout = request_timeout() if seconds is None else seconds
    if context is None:
        return BlocklistClient(timeout=timeout)
    return BlocklistClient(context.settings.get("url"), token=_token_of(context), timeout=timeout)


def current_context() -> Context | None:
    """The context of --context, of BLOCKLIST_CONTEXT, or the current one; None with BLOCKLIST_URL, or without any.

    Raises InvalidError for an invalid file, and for an unknown context or one without a URL.
    """
    name, url = os.environ.get("BLOCKLIST_CONTEXT"), os.environ.get("BLOCKLIST_URL")
    if name and url:
        raise InvalidError("BLOCKLIST_CONTEXT and BLOCKLIST_URL both name a service: unset one of them.")
    if url:
        return None
    configuration = contexts.load()
    name = name or configuration.current
    if name is None:
        return None
    context = configuration.context(name)
    if "url" not in context.settings:
        raise InvalidError(f"The context {name} has no URL: blocklist config set {name} url http://host:port")
    return context


def use_context(name: str) -> None:
    """Use this context for the command, whatever service and token the environment names."""
    for variable in ("URL", "TOKEN", "TOKEN_FILE"):
        os.environ.pop(_PREFIX + variable, None)
    os.environ["BLOCKLIST_CONTEXT"] = name


def print_context(client: BlocklistClient) -> None:
    """Print on stderr which service is about to be changed, if there is a context that it could be mistaken for."""
    if (context := current_context()) is not None:
        print_stderr(f"Context {context.name}: {client.url}")
    elif contexts.load().contexts:
        source = "BLOCKLIST_URL" if os.environ.get("BLOCKLIST_URL") else "default URL"
        print_stderr(f"No context: {client.url} ({source})")


def _token_of(context: Context) -> BearerAuth | None:
    """The token that belongs to the context; None for the one in the environment, if there is any."""
    if context.token_file is None:
        return None
    from blocklist.client.credentials import token_file_auth  # noqa: PLC0415

    return token_file_auth(context.token_file)


def _setting(name: str) -> tuple[str, str | None]:
    """A setting of the environment, else of the context; with where it is from, for messages."""
    if text := os.environ.get(_PREFIX + name):
        return _PREFIX + name, text
    context = current_context()
    key = name.lower()
    return key, None if context is None else context.settings.get(key)


def check_names(environ: Mapping[str, str]) -> None:
    """Raises InvalidError with one line for each variable whose name is a misspelt setting of the command."""
    given = {name.removeprefix(_PREFIX) for name in environ if name.startswith(_PREFIX)}
    if unknown := sorted(given.difference(SETTINGS)):
        from difflib import get_close_matches  # noqa: PLC0415 - rarely needed

        near = {
            name: [it for it in SETTINGS if _differ_in_one_letter(name, it)]
            or get_close_matches(name, SETTINGS, n=1, cutoff=_SIMILARITY)
            for name in unknown
        }
        if lines := [
            f"{_PREFIX}{name} is not a setting: did you mean {_PREFIX}{found[0]}?"
            for name, found in near.items()
            if found
        ]:
            raise InvalidError("Some settings are misspelt.", lines)


def _differ_in_one_letter(name: str, setting: str) -> bool:
    """One letter is another one, or letters have changed places: in a short name, such as URL, that is much of it."""
    if len(name) != len(setting):
        return False
    return sorted(name) == sorted(setting) or sum(one != other for one, other in zip(name, setting, strict=True)) == 1


def request_timeout() -> float:
    """BLOCKLIST_TIMEOUT in seconds: `5s`, `500ms`, or a number. Raises InvalidError if it is invalid."""
    source, given = _setting("TIMEOUT")
    text = given or DEFAULT_TIMEOUT
    try:
        return parse_duration(f"{text}s" if text.replace(".", "", 1).isdecimal() else text) / 1000
    except ValueError as error:
        raise InvalidError(f"{source}: {error}") from None


def default_duration(client: BlocklistClient) -> int:
    """BLOCKLIST_DEFAULT_DURATION in milliseconds, PERMANENT for `forever`; without it, that of the service.

    Raises InvalidError if it is invalid.
    """
    source, text = _setting("DEFAULT_DURATION")
    if not text:
        return client.default_duration()
    try:
        return parse_duration_or_forever(text)
    except ValueError as error:
        raise InvalidError(f"{source}: {error}") from None


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
