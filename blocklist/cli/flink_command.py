"""flink: run the bridge to a Flink cluster."""

from __future__ import annotations

import os
import sys

import typer

from blocklist.cli.environment import connect, current_context
from blocklist.cli.output import flush


def flink(context: typer.Context) -> None:
    """Make a Flink cluster follow the list: runs beside its JobManager until it is stopped."""
    with connect() as client:
        environment = {**os.environ, "BLOCKLIST_URL": client.url}
    chosen = current_context()
    if chosen is not None and chosen.token_file is not None:
        environment["BLOCKLIST_TOKEN_FILE"] = str(chosen.token_file)
    command = [sys.executable, "-m", "blocklist.flink", *context.args]
    flush()
    os.execve(command[0], command, environment)  # noqa: S606 - the bridge replaces this process
