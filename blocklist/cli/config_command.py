"""config check: what the command will do, and whether it will work."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import typer

import blocklist
from blocklist.cli import serve_command
from blocklist.cli.options import default_duration
from blocklist.cli.output import print_lines
from blocklist.cli.service import connect, request_timeout
from blocklist.cli.table import Table
from blocklist.model.durations import FOREVER, format_duration
from blocklist.model.node import PERMANENT

if TYPE_CHECKING:
    from blocklist.client.client import BlocklistClient


def check() -> None:
    """Show the settings, whether the service answers, and what one may do there; 1 or 3 where it does not work."""
    table = Table(("", ""), show_header=False, colour=False)
    with connect() as client:
        print_lines(*table.lines(_settings(client.url)))
        snapshot = client.snapshot()
        answers = f"answers: {len(snapshot.nodes)} nodes blocked at revision {snapshot.revision}"
        print_lines(*table.lines([("SERVICE", answers), ("ROLE", _role(client))]))
    if (root := serve_command.find_checkout()) is not None:
        sound, said = _check_service_settings(root)
        print_lines(*table.lines([("CHECKOUT", f"{root}: {said}")]))
        if not sound:
            raise typer.Exit(1)


def _settings(url: str) -> list[tuple[str, str]]:
    length = default_duration()
    return [
        ("VERSION", f"blocklist {blocklist.__version__}, Python {platform.python_version()}"),
        ("URL", f"{url} ({'BLOCKLIST_URL' if os.environ.get('BLOCKLIST_URL') else 'default'})"),
        ("TOKEN", _token()),
        ("TIMEOUT", format_duration(round(request_timeout() * 1000))),
        ("DURATION", FOREVER if length == PERMANENT else format_duration(length)),
    ]


def _token() -> str:
    """Where the token comes from; never the token."""
    if os.environ.get("BLOCKLIST_TOKEN"):
        return "of BLOCKLIST_TOKEN"
    path = os.environ.get("BLOCKLIST_TOKEN_FILE")
    return f"in the file {path} (BLOCKLIST_TOKEN_FILE)" if path else "none"


def _role(client: BlocklistClient) -> str:
    """The role that the service grants, and to whom."""
    name, access = client.whoami()
    return access.value if name is None else f"{access.value}, as {name}"


def _check_service_settings(root: Path) -> tuple[bool, str]:
    """Whether the settings of the checkout's service are sound, and what it says of them."""
    command, environment = serve_command.app_command(root)
    done = subprocess.run(
        [*command, "check-settings"], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    output = (done.stdout or done.stderr).strip().splitlines()
    return done.returncode == 0, output[-1] if output else f"exit code {done.returncode}"
