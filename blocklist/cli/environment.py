"""The environment variables and the context of the command, and the client that they configure."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from blocklist.cli.output import print_stderr
from blocklist.client import DEFAULT_URL
from blocklist.client.credentials import read_token_file, token_reader
from blocklist.model.errors import BlocklistError, InvalidError, UnavailableError
from blocklist.model.node import check_text, format_duration, is_node_id, parse_duration, parse_duration_or_forever
from blocklist.model.text import read_text

if TYPE_CHECKING:
    from blocklist.client.client import BlocklistClient

# The configuration file of the command: named contexts, each a service with its settings.
#
# `$XDG_CONFIG_HOME/blocklist/config.toml`, by default under ~/.config:
#
#     current = "prod"
#
#     [contexts.prod]
#     url = "https://blocklist.example.com"
#     token_file = "~/.config/blocklist/prod.token"

CONTEXT_KEYS: Final = ("url", "token_file", "timeout", "default_duration")
"""What a context may set: as the environment variables, in lower case. No token: it would be in the file."""
_SIMILAR_CONTEXT: Final = 0.7
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """A service and the settings for it."""

    name: str
    settings: Mapping[str, str]

    @property
    def token_file(self) -> Path | None:
        path = self.settings.get("token_file")
        return None if path is None else Path(path).expanduser()


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """The content of the file: the settings of each context, and the name of the current one."""

    current: str | None = None
    contexts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def context(self, name: str) -> Context:
        """Raises InvalidError if there is none of this name."""
        if name not in self.contexts:
            raise InvalidError(f"There is no context {name!a} in {contexts_path()}: {_known(self.contexts)}")
        return Context(name=name, settings=self.contexts[name])

    def with_current(self, name: str) -> Configuration:
        """Raises InvalidError if there is no context of this name."""
        self.context(name)
        return replace(self, current=name)

    def with_setting(self, name: str, key: str, value: str) -> Configuration:
        """A new context is created; the first one becomes the current one. Raises InvalidError."""
        if not _NAME.fullmatch(name):
            raise InvalidError(f"{name[:64]!a} is not the name of a context: use letters, digits, _ and -.")
        if name not in self.contexts and key in CONTEXT_KEYS and key != "url":
            raise InvalidError(
                f"There is no context {name!a}.{similar_context(name, self.contexts)}"
                f" A new one begins with its URL: blocklist config set {name} url http://host:port"
            )
        settings = {**self.contexts.get(name, {}), check_key(key): check_text(value)}
        return replace(self, current=self.current or name, contexts={**self.contexts, name: settings})

    def without(self, name: str) -> Configuration:
        """Raises InvalidError if there is no context of this name."""
        self.context(name)
        contexts = {other: settings for other, settings in self.contexts.items() if other != name}
        return replace(self, current=None if self.current == name else self.current, contexts=contexts)


def similar_context(name: str, names: Iterable[str]) -> str:
    """` Did you mean prod?`, with the context whose name is similar; empty if there is none."""
    from difflib import get_close_matches  # noqa: PLC0415 - rarely needed

    found = get_close_matches(name, list(names), n=1, cutoff=_SIMILAR_CONTEXT)
    return f" Did you mean {found[0]}?" if found else ""


def contexts_path() -> Path:
    """The file, whether or not it exists. Raises InvalidError for a user without a home directory."""
    home = os.environ.get("XDG_CONFIG_HOME")
    # As the specification says, a relative path is ignored.
    try:
        folder = Path(home) if home and Path(home).is_absolute() else Path.home() / ".config"
    except RuntimeError:
        raise InvalidError("This user has no home directory: set HOME or XDG_CONFIG_HOME.") from None
    return folder / "blocklist" / "config.toml"


def load_contexts() -> Configuration:
    """The configuration; an empty one without a file. Raises InvalidError for an invalid file."""
    try:
        file = contexts_path()
    except InvalidError:
        # As in a container: there is no file.
        return Configuration()
    try:
        text = read_text(file)
    except FileNotFoundError:
        return Configuration()
    except OSError as error:
        raise InvalidError(f"{file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InvalidError(f"{file} cannot be read: it is not UTF-8 text.") from None
    import tomllib  # noqa: PLC0415 - only with a file

    try:
        return _checked(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, InvalidError) as error:
        raise InvalidError(f"{file} is invalid: {error}") from None


def save_contexts(configuration: Configuration) -> None:
    """Replace the file. Raises InvalidError if it cannot be written."""
    replace_private_file(contexts_path(), _dump(configuration))


def replace_private_file(file: Path, text: str) -> None:
    """Replace a file of this command, which only its owner may read. Raises InvalidError if it cannot be written."""
    import tempfile  # noqa: PLC0415 - rarely needed

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.stem}-")
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(text)
        Path(temporary).replace(file)
    except OSError as error:
        raise InvalidError(f"{file} cannot be written: {error.strerror}.") from None


def check_key(key: str) -> str:
    """Raises InvalidError unless a context has this setting."""
    if key not in CONTEXT_KEYS:
        raise InvalidError(f"{key[:64]!a} is not a setting of a context: there are {', '.join(CONTEXT_KEYS)}.")
    return key


def _checked(document: Mapping[str, Any]) -> Configuration:
    if unknown := sorted(set(document) - {"current", "contexts"}):
        raise InvalidError(f"{unknown[0]!a} is unknown: there are current and contexts.")
    current, tables = document.get("current"), document.get("contexts", {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise InvalidError("contexts must be tables, such as [contexts.prod].")
    if current is not None and current not in tables:
        raise InvalidError(f"current is {current!a}, but there is no such context: {_known(tables)}")
    for name, table in tables.items():
        for key, value in table.items():
            if not isinstance(value, str):
                raise InvalidError(f"{check_key(key)} of context {name} is not a string.")
            check_key(key)
    return Configuration(current=current, contexts=tables)


def _known(names: Mapping[str, object]) -> str:
    return f"there are {', '.join(sorted(names))}." if names else "it has none; blocklist config set NAME url URL."


def _dump(configuration: Configuration) -> str:
    lines = [] if configuration.current is None else [f"current = {_string(configuration.current)}"]
    for name, settings in configuration.contexts.items():
        lines += ["", f"[contexts.{_string(name)}]", *(f"{key} = {_string(value)}" for key, value in settings.items())]
    return "\n".join(lines) + "\n"


def _string(text: str) -> str:
    """A basic string of TOML, which has the escapes of JSON. There are no control characters in it."""
    return json.dumps(text, ensure_ascii=False)


SETTINGS: Final = ("URL", "TOKEN", "TOKEN_FILE", "TIMEOUT", "DEFAULT_DURATION", "CONTEXT")
"""The variables that the command reads, without the prefix."""
LOGINS: Final = "logins.json"
"""The file with the tokens of `blocklist login`, beside that of the contexts."""
_PREFIX: Final = "BLOCKLIST_"
_SIMILARITY: Final = 0.8
"""Names at least this similar to a setting are misspelt. The settings of the service, which may be in the same
environment, are less similar (`TOKEN_FILE` and `ADMIN_TOKEN_FILE`: 0.77)."""
DEFAULT_TIMEOUT: Final = "5s"
_MAX_TIMEOUT: Final = 86_400
"""In seconds: the system has no timers for years."""
_WRONG_CLOCK: Final = 60_000
"""Milliseconds by which the clocks of this machine and of the service may differ without a message."""
COMPLETION_TIMEOUT: Final = 0.5
"""Seconds for each step of a request that completes a word: the user is waiting after the tab key."""


_context_option: Final[list[str]] = []
"""The context of --context, if it was given."""


def connect(seconds: float | None = None) -> BlocklistClient:
    """A client with the timeout in seconds, by default BLOCKLIST_TIMEOUT. It does not connect yet.

    Raises InvalidError for an invalid variable, or one whose name is misspelt, and for an invalid configuration file;
    UnavailableError for a proxy or certificates that cannot be used.
    """
    check_names(os.environ)
    url, read_token = service()
    timeout = request_timeout() if seconds is None else seconds
    from blocklist.cli.limited_client import LimitedClient  # noqa: PLC0415
    from blocklist.client.transport import BearerAuth, service_url  # noqa: PLC0415

    try:
        checked = service_url(url)
    except InvalidError as error:
        raise InvalidError(" ".join([error.detail, *url_source()])) from None
    try:
        return LimitedClient(checked, token=None if read_token is None else BearerAuth(read_token), timeout=timeout)
    except InvalidError as error:
        # The proxy or the certificates that the environment names: no setting of this command.
        raise UnavailableError(error.detail) from None


def service() -> tuple[str, Callable[[], str] | None]:
    """The URL of the service, and what reads the token for it, if there is one. Raises InvalidError."""
    context = current_context()
    if context is not None and (file := context.token_file) is not None:
        return context.settings["url"], partial(read_token_file, file, f"context {context.name}")
    url = (os.environ.get("BLOCKLIST_URL") or DEFAULT_URL) if context is None else context.settings["url"]
    return url, token_reader() or login_reader(url)


def login_reader(url: str) -> Callable[[], str] | None:
    """What reads the token of `blocklist login` for this service; None if nobody has logged in."""
    try:
        path = contexts_path().with_name(LOGINS)
    except InvalidError:
        # As in a container: there is no file.
        return None
    if not path.exists():
        return None
    from blocklist.cli.login import saved_token  # noqa: PLC0415 - only after a log-in

    return saved_token(path, url)


def current_context() -> Context | None:
    """The context of --context, of BLOCKLIST_CONTEXT, or the current one; None with BLOCKLIST_URL, or without any.

    Raises InvalidError for an invalid file, and for an unknown context or one without a URL.
    """
    name, url = os.environ.get("BLOCKLIST_CONTEXT"), os.environ.get("BLOCKLIST_URL")
    if name and url:
        raise InvalidError("BLOCKLIST_CONTEXT and BLOCKLIST_URL both name a service: unset one of them.")
    if url:
        return None
    configuration = load_contexts()
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
        others = load_contexts().contexts
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
        seconds = parse_duration(f"{text}s" if text.replace(".", "", 1).isdecimal() else text) / 1000
    except ValueError as error:
        raise InvalidError(f"{source}: {error}") from None
    if seconds > _MAX_TIMEOUT:
        raise InvalidError(f"{source}: {text[:64]} is too long: give at most 1d.")
    return seconds


def default_duration(client: BlocklistClient) -> int:
    """BLOCKLIST_DEFAULT_DURATION in milliseconds, PERMANENT for `forever`; without it, that of the service.

    Raises InvalidError if it is invalid.
    """
    source, text = _setting("DEFAULT_DURATION")
    if not text:
        return parse_duration_or_forever(client.identity().default_duration)
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
            # The inventory may be long: read it from an id on that is before all that begin so.
            before = incomplete[:-1] if is_node_id(incomplete[:-1]) else None
            found = [node for node in client.known_nodes_after(before) if node.id.startswith(incomplete)]
    except BlocklistError:
        return []
    return [node.id for node in sorted(found, key=lambda node: (node.blocked, node.id))]


def service_now(client: BlocklistClient) -> int:
    """The current time in Unix milliseconds, by the clock of the service: its blocks end by that one.

    Asks the service if there was no response of it yet.
    """
    if not client.clock.has_response:
        try:
            client.identity()
        except BlocklistError:
            if not client.clock.has_response:
                raise
            # The service has answered: that is enough for its time, and the change will tell what is the matter.
    return client.clock.now()


def service_now_for_change(client: BlocklistClient, *, asks: bool = True) -> int:
    """As service_now; says on stderr if the clock of this machine is wrong.

    Without `asks`, no request is sent for it: the time of the change does not depend on the clock.
    """
    now = service_now(client) if asks else client.clock.now()
    if abs(offset := client.clock.ahead()) >= _WRONG_CLOCK:
        print_stderr(
            f"The clock of this machine is {format_duration(abs(offset))} {'behind' if offset > 0 else 'ahead of'} the"
            " service's. A duration counts from the service's clock."
        )
    return now
