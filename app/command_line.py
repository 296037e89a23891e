"""The commands of the service and their options, apart from what they need: --help is printed at once."""

from __future__ import annotations

import argparse
from pathlib import Path


def parser() -> argparse.ArgumentParser:
    """The parser of all commands: --help needs nothing of the service."""
    command = argparse.ArgumentParser(prog="blocklist", description="The blocklist service.")
    command.set_defaults(data=None)
    commands = command.add_subparsers(dest="command")
    for name, text in (
        ("serve", "run the service; creates or upgrades its SQLite database first"),
        ("migrate", "create the database, or upgrade it to this version"),
        ("new-history", "after a restore from a backup: make every watch begin with a snapshot"),
        ("check-settings", "check the settings without starting the service"),
    ):
        one = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        one.add_argument(
            "--data",
            metavar="DIR",
            type=_folder,
            help="keep the SQLite database in this folder, which is created; by default in the current one",
        )
    table = commands.add_parser("settings", help="print all settings as a Markdown table")
    table.add_argument("--into", metavar="PAGE", type=Path, help="write the tables between the markers of this page")
    commands.add_parser("openapi", help="print the API document")
    return command


def _folder(text: str) -> Path:
    """A folder; not the current one because a variable is not set."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty: name a folder")
    return Path(text)
