"""The environment variables and the context of the command, and the client that they configure."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from blocklist.cli import contexts
from blocklist.cli.output import print_stderr
from blocklist.client import DEFAULT_URL
from blocklist.client.token_file import read_token_file, token_reader
from blocklist.model.durations import parse_duration, parse_duration_or_forever
from blocklist.model.errors import BlocklistError, InvalidError

if TYPE_CHECKING:
    from blocklist.cli.contexts import Context
    from blocklist.client.client import BlocklistClient

SETTINGS: Final = ("URL", "TOKEN", "TOKEN_FILE", "TIMEOUT", "DEFAULT_DURATION", "CONTEXT")
"""The variables that the command reads, without the prefix."""
_PREFIX: Final = "BLOCKLIST_"
_SIMILARITY: Final = 0.8
"""Names at least this similar to a setting are misspelt. The settings of the service, which may be in the same
environment, are less similar (`TOKEN_FILE` and `ADMIN_TOKEN_FILE`: 0.77)."""
DEFAULT_TIMEOUT: Final = "5s"
COMPLETE: Final = "_BLOCKLIST_COMPLETE"
"""The variable with which the scripts of `blocklist completion` ask for completions."""
COMPLETION_TIMEOUT: Final = 0.5
"""Seconds for each step of a request that completes a word: the user is waiting after the tab key."""


def connect(seconds: float | None = None) -> BlocklistClient:
    """A client with the timeout in seconds, by default BLOCKLIST_TIMEOUT. It does not connect yet.

    Raises InvalidError for an invalid variable, or one whose name is misspelt, and for an invalid configuration file.
    """
    check_names(os.environ)
    url, read_token = service()
    timeout = request_timeout() if seconds is None else seconds
    # If click is installed, httpx imports its own command line, and with it rich and pygments.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    from blocklist.client.client import BlocklistClient  # noqa: PLC0415
    from blocklist.client.credentials import BearerAuth  # noqa: PLC0415

    return BlocklistClient(url, token=None if read_token is None else BearerAuth(read_token), timeout=timeout)


def service() -> tuple[str, Callable[[], str] | None]:
    """The URL of the service, and what reads the token for it, if there is one. Raises InvalidError."""
    context = current_context()
    if context is None:
        return os.environ.get("BLOCKLIST_URL") or DEFAULT_URL, token_reader()
    if (file := context.token_file) is None:
        return context.settings["url"], token_reader()
    return context.settings["url"], lambda: read_token_file(file)


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


def take_context(arguments: list[str]) -> list[str]:
    """Use the context of --context, which may be anywhere before `--`; the other arguments. Raises InvalidError."""
    head = arguments[: arguments.index("--")] if "--" in arguments else arguments
    for place, argument in enumerate(head):
        name, equals, value = argument.partition("=")
        if name == "--context" and (equals or place + 1 < len(head)):
            use_context(value if equals else head[place + 1])
            return arguments[:place] + arguments[place + (1 if equals else 2) :]
    return arguments


def completed_line() -> tuple[list[str], str]:
    """The words before the one that TAB completes, without the command's name, and the beginning of that word.

    They are as typer's scripts for bash, zsh and fish pass them, still with quotes.
    """
    if os.environ[COMPLETE] == "complete_bash":
        words, place = os.environ.get("COMP_WORDS", "").split(), int(os.environ.get("COMP_CWORD", "0"))
        # Bash makes `=` a word.
        before = " ".join(words[1:place]).replace(" = ", "=").split()
        return before, words[place] if place < len(words) else ""
    line = os.environ.get("_TYPER_COMPLETE_ARGS", "")
    words = line.split()[1:]
    return (words, "") if not words or line.endswith(" ") else (words[:-1], words[-1])


def use_context(name: str) -> None:
    """Use this context for the command, whatever service and token the environment names.

    Raises InvalidError for an empty name: an unset variable of a script must not choose another service.
    """
    if not name:
        raise InvalidError("--context is empty: give the name of a context, see blocklist config list.")
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
    import logging  # noqa: PLC0415 - slow to import

    logging.disable()
    try:
        with connect(COMPLETION_TIMEOUT) as client:
            return sorted(client.snapshot().nodes)
    except BlocklistError:
        return []


def now_ms() -> int:
    """The current time in Unix milliseconds."""
    return time.time_ns() // 1_000_000
