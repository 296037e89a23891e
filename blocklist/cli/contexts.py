"""The configuration file of the command: named contexts, each a service with its settings.

`$XDG_CONFIG_HOME/blocklist/config.toml`, by default under ~/.config:

    current = "prod"

    [contexts.prod]
    url = "https://blocklist.example.com"
    token_file = "~/.config/blocklist/prod.token"
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from blocklist.model.errors import InvalidError
from blocklist.model.node import check_text

KEYS: Final = ("url", "token_file", "timeout", "default_duration")
"""What a context may set: as the environment variables, in lower case. No token: it would be in the file."""
_SIMILARITY: Final = 0.7
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
            raise InvalidError(f"There is no context {name!a} in {path()}: {_known(self.contexts)}")
        return Context(name=name, settings=self.contexts[name])

    def with_current(self, name: str) -> Configuration:
        """Raises InvalidError if there is no context of this name."""
        self.context(name)
        return replace(self, current=name)

    def with_setting(self, name: str, key: str, value: str) -> Configuration:
        """A new context is created; the first one becomes the current one. Raises InvalidError."""
        if not _NAME.fullmatch(name):
            raise InvalidError(f"{name[:64]!a} is not the name of a context: use letters, digits, _ and -.")
        if name not in self.contexts and key in KEYS and key != "url":
            raise InvalidError(
                f"There is no context {name!a}.{meant(name, self.contexts)}"
                f" A new one begins with its URL: blocklist config set {name} url http://host:port"
            )
        settings = {**self.contexts.get(name, {}), check_key(key): check_text(value)}
        return replace(self, current=self.current or name, contexts={**self.contexts, name: settings})

    def without(self, name: str) -> Configuration:
        """Raises InvalidError if there is no context of this name."""
        self.context(name)
        contexts = {other: settings for other, settings in self.contexts.items() if other != name}
        return replace(self, current=None if self.current == name else self.current, contexts=contexts)


def meant(name: str, names: Iterable[str]) -> str:
    """` Did you mean prod?`, with the context whose name is similar; empty if there is none."""
    from difflib import get_close_matches  # noqa: PLC0415 - rarely needed

    found = get_close_matches(name, list(names), n=1, cutoff=_SIMILARITY)
    return f" Did you mean {found[0]}?" if found else ""


def path() -> Path:
    """The file, whether or not it exists."""
    home = os.environ.get("XDG_CONFIG_HOME")
    # As the specification says, a relative path is ignored.
    folder = Path(home) if home and Path(home).is_absolute() else Path.home() / ".config"
    return folder / "blocklist" / "config.toml"


def load() -> Configuration:
    """The configuration; an empty one without a file. Raises InvalidError for an invalid file."""
    file = path()
    try:
        text = file.read_text(encoding="utf-8")
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


def save(configuration: Configuration) -> None:
    """Replace the file, which only its owner may read. Raises InvalidError if it cannot be written."""
    import tempfile  # noqa: PLC0415 - rarely needed

    file = path()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=".config-")
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(_dump(configuration))
        Path(temporary).replace(file)
    except OSError as error:
        raise InvalidError(f"{file} cannot be written: {error.strerror}.") from None


def check_key(key: str) -> str:
    """Raises InvalidError unless a context has this setting."""
    if key not in KEYS:
        raise InvalidError(f"{key[:64]!a} is not a setting of a context: there are {', '.join(KEYS)}.")
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
