"""The commands of the service: `blocklist serve`, `migrate`, `new-history`, `check-settings`, `settings`, `openapi`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from app import settings_docs
from app.auth_setup import check_access, make_jwt_verifier
from app.command_line import parser
from app.listeners.reports import read_nodes_file
from app.logs import configure_logging
from app.settings import Settings, SettingsError, read_settings
from app.store.database import SchemaError, check_schema, is_postgresql, migrate, renew_history
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
        if options.data is not None:
            _use_data(options.data)
        return _run(options.command or "serve", read_settings())
    except (SettingsError, SchemaError) as error:
        print(f"blocklist: {error}", file=sys.stderr)
        return 2


def _use_data(folder: Path) -> None:
    """Keep the database in this folder, which is created. Raises SettingsError."""
    if os.environ.get(_DATABASE):
        raise SettingsError(f"--data and {_DATABASE} both say where the data is: give one of them.")
    try:
        folder.mkdir(mode=0o750, parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"--data: the folder {folder} cannot be created: {error.strerror}.") from None
    os.environ[_DATABASE] = f"sqlite:///{folder.absolute() / 'blocklist.db'}"


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
    from app.server import serve  # noqa: PLC0415 - slow, and not needed by other commands

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
    from app.main import unix_millis  # noqa: PLC0415 - slow, and not needed by other commands
    from app.server import tls_context  # noqa: PLC0415 - as above
    from app.telemetry import telemetry_config  # noqa: PLC0415 - as above

    tls_context(settings)
    check_access(settings, unix_millis())
    make_jwt_verifier(settings, unix_millis)
    telemetry_config(settings)
    if settings.nodes_file:
        try:
            read_nodes_file(Path(settings.nodes_file))
        except (OSError, InvalidError) as error:
            reason = error.lines[0] if isinstance(error, InvalidError) else error.strerror
            raise SettingsError(f"BLOCKLIST_NODES_FILE: {settings.nodes_file}: {reason}.") from None


def _print_settings(page: Path | None) -> int:
    """Print the table of settings, or write both tables into a page."""
    if page is None:
        print(settings_docs.service_table(), end="")
    else:
        page.write_text(settings_docs.fill_page(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0
