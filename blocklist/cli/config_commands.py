"""config use, config list, config get and config set: the contexts of the command."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Annotated, Final

import typer

from blocklist.cli import contexts
from blocklist.cli.completion import complete_context
from blocklist.cli.environment import current_context
from blocklist.cli.options import NoHeaders
from blocklist.cli.output import Table, print_lines, print_message, print_stderr, use_colour
from blocklist.client.url_credentials import without_credentials
from blocklist.model.errors import InvalidError
from blocklist.model.time import parse_duration, parse_duration_or_forever


def _service_url(text: str) -> object:
    from blocklist.client.transport import service_url  # noqa: PLC0415 - slow to import

    return service_url(text)


Name = Annotated[str, typer.Argument(metavar="CONTEXT", help="Name of the context.", autocompletion=complete_context)]
Key = Annotated[str, typer.Argument(metavar="KEY", help=f"One of {', '.join(contexts.KEYS)}.")]
OptionalKey = Annotated[str | None, typer.Argument(metavar="[KEY]", help="Only this setting.")]
Value = Annotated[str, typer.Argument(metavar="VALUE", help="Its value.")]
_CHECKS: Final[Mapping[str, Callable[[str], object]]] = {
    "url": _service_url,
    "timeout": parse_duration,
    "default_duration": parse_duration_or_forever,
}


def use(name: Name) -> None:
    """Make a context the current one: commands then talk to its service."""
    configuration = contexts.load().with_current(name)
    contexts.save(configuration)
    url = configuration.context(name).settings.get("url", "which has no URL yet")
    print_message(f"Current context: {name}, {without_credentials(url)}")
    _warn_of_variables(name)


def _warn_of_variables(name: str) -> None:
    """Say on stderr that the environment decides, if it does."""
    if url := os.environ.get("BLOCKLIST_URL"):
        print_stderr(f"BLOCKLIST_URL is set, so commands still use {without_credentials(url)}: unset it.")
    if (other := os.environ.get("BLOCKLIST_CONTEXT")) and other != name:
        print_stderr(f"BLOCKLIST_CONTEXT is set, so commands still use the context {other}: unset it.")


def list_(no_headers: NoHeaders = False) -> None:
    """Show the contexts; * marks the one that commands use now."""
    configuration = contexts.load()
    current = current_context()
    rows = [
        ("*" if current is not None and name == current.name else "", name, *_cells(settings))
        for name, settings in sorted(configuration.contexts.items())
    ]
    if not rows:
        print_stderr(f"There are no contexts in {contexts.path()}. Add one: blocklist config set prod url URL")
        return
    table = Table(
        ("CURRENT", "CONTEXT", *(key.upper() for key in contexts.KEYS)), show_header=not no_headers, colour=use_colour()
    )
    print_lines(*table.lines(rows))


def get(name: Name, key: OptionalKey = None) -> None:
    """Show the settings of a context, or one of them. Exit code 1 if it is not set."""
    settings = contexts.load().context(name).settings
    if key is None:
        rows = sorted((name, without_credentials(value)) for name, value in settings.items())
        print_lines(*Table(("", ""), show_header=False, colour=False).lines(rows))
    elif contexts.check_key(key) in settings:
        print_message(without_credentials(settings[key]))
    else:
        print_stderr(f"{key} is not set in the context {name}.")
        raise typer.Exit(1)


def set_(name: Name, key: Key, value: Value) -> None:
    """Set one setting of a context. A new one begins with its url; the first one becomes the current one."""
    contexts.check_key(key)
    try:
        if key in _CHECKS:
            _CHECKS[key](value)
    except InvalidError:
        raise
    except ValueError as error:
        raise InvalidError(f"{key}: {error}") from None
    before = contexts.load()
    configuration = before.with_setting(name, key, value)
    contexts.save(configuration)
    print_message(f"{name}: {key} = {value}")
    if name not in before.contexts:
        current = ", the current one" if configuration.current == name else ""
        print_stderr(f"New context {name}{current}.{contexts.meant(name, before.contexts)}")


def delete(name: Name) -> None:
    """Delete a context. If it is the current one, there is none afterwards, until config use."""
    before = contexts.load()
    configuration = before.without(name)
    contexts.save(configuration)
    print_message(f"Deleted context {name}")
    if before.current == name and configuration.contexts:
        print_stderr(f"There is no current context now: blocklist config use {next(iter(configuration.contexts))}")


def _cells(settings: Mapping[str, str]) -> list[str]:
    return [without_credentials(settings.get(key, "")) for key in contexts.KEYS]
