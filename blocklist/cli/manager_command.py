"""manager: hands over to `python -m blocklist.managers`, with the service and the token of the context."""

from __future__ import annotations

from typing import Final

import typer

from blocklist.cli.environment import hand_over_context

NAME: Final = "manager"


def split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The arguments of the command itself, and those of the manager: its --context is one of Kubernetes."""
    place = 0
    while place < len(arguments) and arguments[place].partition("=")[0] == "--context":
        place += 1 if "=" in arguments[place] else 2
    if arguments[place : place + 1] != [NAME]:
        return arguments, []
    return arguments[: place + 1], arguments[place + 1 :]


def manager(context: typer.Context) -> None:
    """Keep a cluster manager in line with the list: yarn, slurm, kubernetes or exec; see `manager KIND --help`."""
    hand_over_context()
    from blocklist.managers.__main__ import main  # noqa: PLC0415 - rarely needed

    raise typer.Exit(main(context.args, prog="blocklist manager"))
