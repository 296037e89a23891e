"""The command `python -m app [serve | migrate | new-history | …]`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from app import settings_docs
from app.logs import configure_logging
from app.settings import Settings, SettingsError, read_settings
from app.store.database import renew_history
from app.store.migration import migrate
from app.store.schema_check import SchemaError, check_schema


def new_history(settings: Settings) -> int:
    """Begin a new history after a restore, so that no client continues from a revision that was lost."""
    check_schema(settings.database_url)
    history = renew_history(settings.database_url)
    print(f"The database begins history {history}: all watchers will start from a snapshot.")
    return 0


def print_settings(page: Path | None) -> int:
    """Print the table of settings, or write both tables into a page."""
    if page is None:
        print(settings_docs.service_table(), end="")
    else:
        page.write_text(settings_docs.fill_page(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code: 2, with a message on stderr, for an error of the operator."""
    parser = argparse.ArgumentParser(prog="python -m app", description="The blocklist service.")
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("serve", help="run the service (the default)")
    commands.add_parser("migrate", help="create the database, or upgrade it to this version")
    commands.add_parser("new-history", help="after a restore from a backup: make every watch begin with a snapshot")
    commands.add_parser("check-settings", help="check the settings without starting the service")
    table = commands.add_parser("settings", help="print all settings as a Markdown table")
    table.add_argument("--into", metavar="PAGE", type=Path, help="write the tables between the markers of this page")
    commands.add_parser("openapi", help="print the API document")
    options = parser.parse_args(arguments)
    try:
        if options.command == "settings":
            return print_settings(options.into)
        return _run(options.command or "serve", read_settings())
    except (SettingsError, SchemaError) as error:
        print(f"blocklist: {error}", file=sys.stderr)
        return 2


def _run(command: str, settings: Settings) -> int:
    match command:
        case "migrate":
            migrate(settings.database_url)
            return 0
        case "new-history":
            return new_history(settings)
        case "check-settings":
            from app.server import tls_context  # noqa: PLC0415 - as below

            tls_context(settings)
            print("The settings of the service are valid.")
            return 0
        case "openapi":
            from app.main import create_app  # noqa: PLC0415 - slow, and not needed by other commands

            print(json.dumps(create_app(settings).openapi(), indent=2, ensure_ascii=False))
            return 0
        case _:
            from app.server import serve  # noqa: PLC0415 - as above

            configure_logging(settings.log_format)
            return serve(settings)
