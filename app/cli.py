"""The commands of the service: `blocklist serve`, `migrate`, `new-history`, `check-settings`, `settings`, `openapi`."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Final

from app.auth_setup import check_access, make_jwt_verifier
from app.command_line import parser
from app.listeners.reports import read_nodes_file
from app.logs import configure_logging
from app.settings import PREFIX, Settings, SettingsError, read_settings
from app.store.database import SchemaError, check_schema, database_exists, is_postgresql, migrate, renew_history
from blocklist.model.errors import InvalidError
from blocklist.model.text import json_text, prepare_streams

_DATABASE: Final = "BLOCKLIST_DATABASE_URL"


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code: 2, with a message on stderr, for an error of the operator."""
    prepare_streams()
    options = parser().parse_args(arguments)
    try:
        if options.command == "settings":
            return _print_settings(options.into)
        _check_current_folder()
        if options.data is not None:
            _use_data(options.data)
        settings = read_settings()
        if options.data is not None and options.command != "check-settings":
            _make_folder(options.data)
        return _run(options.command or "serve", settings)
    except (SettingsError, SchemaError) as error:
        print(f"blocklist: {error}", file=sys.stderr)
        return 2


def _check_current_folder() -> None:
    """Raises SettingsError if it was deleted: every relative path would fail, one after the other."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise SettingsError("The current folder was deleted: change to another one, such as cd /tmp.") from None


def _use_data(folder: Path) -> None:
    """Keep the database in this folder. Raises SettingsError."""
    for name in (_DATABASE, f"{_DATABASE}_FILE"):
        if os.environ.get(name):
            raise SettingsError(f"--data and {name} both say where the data is: give one of them.")
    os.environ[_DATABASE] = f"sqlite:///{folder.absolute() / 'blocklist.db'}"


def _make_folder(folder: Path) -> None:
    """Create the folder, and say on stderr if anybody may replace the files in it. Raises SettingsError."""
    try:
        folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        mode = folder.stat().st_mode
    except OSError as error:
        raise SettingsError(f"--data: the folder {folder} cannot be created: {error.strerror}.") from None
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        print(f"blocklist: anybody may replace the files in {folder}: chmod o-w {folder}", file=sys.stderr)


def _run(command: str, settings: Settings) -> int:
    match command:
        case "migrate":
            migrate(settings.database_url)
        case "new-history":
            _new_history(settings)
        case "check-settings":
            _check(settings)
            print("The settings of the service are valid.")
        case "openapi":
            from app.main import create_app  # noqa: PLC0415 - slow, and not needed by other commands

            print(json_text(create_app(settings).openapi(), indent=2))
        case _:
            return _serve(settings)
    return 0


def _serve(settings: Settings) -> int:
    from app.main import create_app, unix_millis  # noqa: PLC0415 - slow, and not needed by other commands
    from app.server import serve, tls_context  # noqa: PLC0415 - as above

    if not database_exists(settings.database_url):
        # Settings that are refused leave no file behind.
        check_access(settings, unix_millis())
        tls_context(settings)
        create_app(settings)
    if not is_postgresql(settings.database_url):
        # Nobody else uses it. Replicas on PostgreSQL are upgraded by `migrate`, before any of them is restarted.
        migrate(settings.database_url)
    configure_logging(settings.log_format)
    return serve(settings)


def _new_history(settings: Settings) -> None:
    """Begin a new history after a restore, so that no client continues from a revision that was lost."""
    check_schema(settings.database_url)
    history = renew_history(settings.database_url)
    print(f"The database begins history {history}: all watchers will start from a snapshot.")


def _check(settings: Settings) -> None:
    """Everything that the start checks but the schema, and the file of nodes. Raises SettingsError, SchemaError."""
    from app.main import create_app, unix_millis  # noqa: PLC0415 - slow, and not needed by other commands
    from app.server import check_address, tls_context  # noqa: PLC0415 - as above

    lines: list[str] = []
    for check in (
        lambda: tls_context(settings),
        lambda: check_access(settings, unix_millis()),
        lambda: make_jwt_verifier(settings, unix_millis),
        lambda: create_app(settings),
        lambda: _check_nodes_file(settings.nodes_file),
        lambda: check_address(settings.host, settings.port),
    ):
        try:
            check()
        except (SettingsError, SchemaError) as error:
            lines += [line for line in str(error).splitlines() if line not in lines]
    if lines:
        raise SettingsError("\n".join(lines))


def _check_nodes_file(path: str) -> None:
    try:
        if path:
            read_nodes_file(Path(path))
    except (OSError, InvalidError) as error:
        reason = error.lines[0] if isinstance(error, InvalidError) else error.strerror
        raise SettingsError(f"BLOCKLIST_NODES_FILE: {path}: {str(reason).removesuffix('.')}.") from None


def _print_settings(page: Path | None) -> int:
    """Print the table of settings, or write both tables into a page."""
    if page is None:
        print(service_table(), end="")
    else:
        page.write_text(fill_page(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


# The settings as Markdown tables for docs/settings.md, generated from the code.

CLIENT_SETTINGS: Final = {
    "URL": ("http://127.0.0.1:8224", "URL of the service."),
    "TOKEN": ("", "Token to send."),
    "TOKEN_FILE": ("", "File with the token, if `BLOCKLIST_TOKEN` is not set; read again after a 401."),
    "CONTEXT": ("", "[Context](command.md#contexts) of the command, instead of the one in use."),
    "TIMEOUT": ("5s", "Time that the command waits for each response."),
    "DEFAULT_DURATION": (
        "",
        "Duration of the command's blocks without an end; if it is not set, that of the service.",
    ),
}
"""Name to default and description, of the settings of clients."""
_UNITS: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


def service_table() -> str:
    fields = Settings.model_fields.items()
    return _table((name.upper(), _default_text(field.default), field.description or "") for name, field in fields)


def client_table() -> str:
    return _table((name, default, description) for name, (default, description) in CLIENT_SETTINGS.items())


def fill_page(page: str) -> str:
    """The page with both tables between their markers. Raises ValueError if a marker is missing."""
    for name, table in {"service": service_table(), "client": client_table()}.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        head, opened, rest = page.partition(begin)
        _, closed, tail = rest.partition(end)
        if not (opened and closed):
            raise ValueError(f"The page needs the lines {begin.strip()} and {end}, for the table between them.")
        page = f"{head}{begin}{table}{end}{tail}"
    return page


def _table(rows: Iterable[tuple[str, str, str]]) -> str:
    lines = [
        f"| `{PREFIX}{name}` | {default and f'`{default}`'} | {' '.join(text.split())} |"
        for name, default, text in rows
    ]
    return "\n".join(["| name | default | |", "|---|---|---|", *lines, ""])


def _default_text(value: object) -> str:
    """A default as it would be written in the environment."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case timedelta():
            return _duration(round(value.total_seconds()))
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def _duration(seconds: int) -> str:
    """In the largest unit that divides it."""
    unit = next((unit for unit, size in _UNITS.items() if seconds and seconds % size == 0), "s")
    return f"{seconds // _UNITS[unit]}{unit}"
