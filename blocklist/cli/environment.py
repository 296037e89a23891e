"""The environment variables and the context of the command, and the client that they configure."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from blocklist.cli import contexts
from blocklist.cli.output import print_stderr
from blocklist.client import DEFAULT_URL
from blocklist.client.token_file import read_token_file, token_reader
from blocklist.model.errors import BlocklistError, InvalidError
from blocklist.model.node import is_node_id
from blocklist.model.time import format_duration, parse_duration, parse_duration_or_forever

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
_WRONG_CLOCK: Final = 60_000
"""Milliseconds by which the clocks of this machine and of the service may differ without a message."""
COMPLETION_TIMEOUT: Final = 0.5
"""Seconds for each step of a request that completes a word: the user is waiting after the tab key."""


_context_option: Final[list[str]] = []
"""The context of --context, if it was given."""


def connect(seconds: float | None = None) -> BlocklistClient:
    """A client with the timeout in seconds, by default BLOCKLIST_TIMEOUT. It does not connect yet.

    Raises InvalidError for an invalid variable, or one whose name is misspelt, and for an invalid configuration file.
    """
    check_names(os.environ)
    url, read_token = service()
    timeout = request_timeout() if seconds is None else seconds
    from blocklist.cli.limited_client import LimitedClient  # noqa: PLC0415
    from blocklist.client.credentials import BearerAuth  # noqa: PLC0415

    try:
        return LimitedClient(url, token=None if read_token is None else BearerAuth(read_token), timeout=timeout)
    except InvalidError as error:
        raise InvalidError(" ".join([error.detail, *url_source()])) from None


def service() -> tuple[str, Callable[[], str] | None]:
    """The URL of the service, and what reads the token for it, if there is one. Raises InvalidError."""
    context = current_context()
    if context is None:
        return os.environ.get("BLOCKLIST_URL") or DEFAULT_URL, token_reader()
    if (file := context.token_file) is None:
        return context.settings["url"], token_reader()
    return context.settings["url"], partial(read_token_file, file, f"context {context.name}")


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
    found: str | None = None
    rest: list[str] = []
    words = iter(head)
    for argument in words:
        name, equals, value = argument.partition("=")
        if name != "--context":
            rest.append(argument)
            continue
        if found is not None:
            raise InvalidError("--context is given twice: choose one context.")
        found = value if equals else next(words, "")
        if found.startswith("-"):
            raise InvalidError(f"--context needs the name of a context before {found[:64]}: see blocklist config list.")
        use_context(found)
    return rest + arguments[len(head) :]


def use_context(name: str) -> None:
    """Use this context for the command, whatever service and token the environment names.

    Raises InvalidError for an empty name: an unset variable of a script must not choose another service.
    """
    if not name:
        raise InvalidError("--context needs the name of a context: see blocklist config list.")
    for variable in ("URL", "TOKEN", "TOKEN_FILE"):
        os.environ.pop(_PREFIX + variable, None)
    os.environ["BLOCKLIST_CONTEXT"] = name
    _context_option.append(name)


def hand_over_context() -> None:
    """Put the service and the token of the context into the environment, for another program of this package.

    A token in the environment is for another service if the context has its own. Raises InvalidError as
    current_context does, and for a misspelt setting.
    """
    check_names(os.environ)
    if (context := current_context()) is None:
        return
    os.environ["BLOCKLIST_URL"] = context.settings["url"]
    if context.token_file is not None:
        os.environ.pop("BLOCKLIST_TOKEN", None)
        os.environ["BLOCKLIST_TOKEN_FILE"] = str(context.token_file)


def print_context(client: BlocklistClient) -> None:
    """Print on stderr which service is about to be changed, if there is a context that it could be mistaken for."""
    if (context := current_context()) is not None:
        print_stderr(f"Context {context.name}: {client.url}")
        return
    source = "BLOCKLIST_URL" if os.environ.get("BLOCKLIST_URL") else "default URL"
    try:
        others = contexts.load().contexts
    except InvalidError as error:
        # BLOCKLIST_URL says which service is meant, so a broken file must not keep anybody from blocking a node.
        print_stderr(f"No context: {client.url} ({source}). {error.detail}")
    else:
        if others:
            print_stderr(f"No context: {client.url} ({source})")


def url_source() -> list[str]:
    """A line that says where the URL of the service is from; none if the configuration cannot be read."""
    try:
        context = current_context()
    except InvalidError:
        return []
    if context is not None:
        return [f"The URL is that of the context {context.name} ({_chosen_by()})."]
    if os.environ.get("BLOCKLIST_URL"):
        return ["The URL is that of BLOCKLIST_URL."]
    return ["The URL is the default one: set BLOCKLIST_URL, or a context (blocklist config set NAME url URL)."]


def _chosen_by() -> str:
    if _context_option:
        return "chosen by --context"
    if os.environ.get("BLOCKLIST_CONTEXT"):
        return "chosen by BLOCKLIST_CONTEXT"
    return "the current one; see blocklist config list"


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


def known_node_ids(incomplete: str) -> list[str]:
    """The ids of the inventory that begin so, for completion, free nodes first; none as in blocked_node_ids."""
    import logging  # noqa: PLC0415 - slow to import

    logging.disable()
    try:
        with connect(COMPLETION_TIMEOUT) as client:
            nodes = client.known_nodes_after(before_completed(incomplete))
    except BlocklistError:
        return []
    return free_first(incomplete, {node.id: node.blocked for node in nodes})


def before_completed(incomplete: str) -> str | None:
    """An id before all that begin so: the inventory is read from there, as it may be long; None: from its beginning."""
    return incomplete[:-1] if is_node_id(incomplete[:-1]) else None


def free_first(incomplete: str, blocked: Mapping[str, bool]) -> list[str]:
    """The ids that begin so, of which the mapping says whether they are blocked: first those that are not."""
    return sorted((it for it in blocked if it.startswith(incomplete)), key=lambda it: (blocked[it], it))


def now_ms() -> int:
    """The current time in Unix milliseconds, by the clock of this machine."""
    return time.time_ns() // 1_000_000


def service_now(client: BlocklistClient) -> int:
    """The current time in Unix milliseconds, by the clock of the service: its blocks end by that one.

    Asks the service if there was no response of it yet.
    """
    if client.clock_offset is None:
        try:
            client.default_duration()
        except BlocklistError:
            if client.clock_offset is None:
                raise
            # The service has answered: that is enough for its time, and the change will tell what is the matter.
    return now_ms() + (client.clock_offset or 0)


def service_now_for_change(client: BlocklistClient, *, asks: bool = True) -> int:
    """As service_now; says on stderr if the clock of this machine is wrong.

    Without `asks`, no request is sent for it: the time of the change does not depend on the clock.
    """
    now = service_now(client) if asks else now_ms() + (client.clock_offset or 0)
    if abs(offset := client.clock_offset or 0) >= _WRONG_CLOCK:
        print_stderr(
            f"The clock of this machine is {format_duration(abs(offset))} {'behind' if offset > 0 else 'ahead of'} the"
            " service's. A duration counts from the service's clock."
        )
    return now
