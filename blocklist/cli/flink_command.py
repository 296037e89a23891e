"""flink: run the bridge to a Flink cluster."""

from __future__ import annotations

import os
import sys

import typer

from blocklist.cli.environment import connect, hand_over_context
from blocklist.cli.output import flush


def flink(context: typer.Context) -> None:
    """Make a Flink cluster follow the list: runs beside its JobManager until it is stopped."""
    # An invalid URL is an error here, because only this command knows which context it is from.
    connect().close()
    hand_over_context()
    command = [sys.executable, "-m", "blocklist.flink", *context.args]
    flush()
    os.execv(command[0], command)  # noqa: S606 - the bridge replaces this process
