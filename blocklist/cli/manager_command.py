"""manager: hands over to `python -m blocklist.managers`, with the service and the token of the context."""

from __future__ import annotations

import typer

from blocklist.cli.environment import hand_over_context


def manager(context: typer.Context) -> None:
    """Keep a cluster manager in line with the list: yarn, slurm, kubernetes or exec; see `manager KIND --help`."""
    hand_over_context()
    from blocklist.managers.__main__ import main  # noqa: PLC0415 - rarely needed

    raise typer.Exit(main(context.args, prog="blocklist manager"))
