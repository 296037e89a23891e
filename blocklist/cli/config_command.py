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
from blocklist.cli.durations import FOREVER, written
from blocklist.cli.options import default_length
from blocklist.cli.output import say
from blocklist.cli.service import connect, timeout
from blocklist.cli.table import Table
from blocklist.model.node import PERMANENT

if TYPE_CHECKING:
    from blocklist.client.client import BlocklistClient


def check() -> None:
    """Show the settings, whether the service answers, and what one may do there; 1 or 3 where it does not work."""
    table = Table(("", ""), head=False, colour=False)
    with connect() as client:
        say(*table.lines(_settings(client.url)))
        snapshot = client.snapshot()
        answers = f"answers: {len(snapshot.nodes)} nodes blocked at revision {snapshot.revision}"
        say(*table.lines([("SERVICE", answers), ("ROLE", _role(client))]))
    if (root := serve_command.checkout()) is not None:
        sound, said = _checked(root)
        say(*table.lines([("CHECKOUT", f"{root}: {said}")]))
        if not sound:
            raise typer.Exit(1)


def _settings(url: str) -> list[tuple[str, str]]:
    length = default_length()
    return [
        ("VERSION", f"blocklist {blocklist.__version__}, Python {platform.python_version()}"),
        ("URL", f"{url} ({'BLOCKLIST_URL' if os.environ.get('BLOCKLIST_URL') else 'default'})"),
        ("TOKEN", _token()),
        ("TIMEOUT", written(round(timeout() * 1000))),
        ("DURATION", FOREVER if length == PERMANENT else written(length)),
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


def _checked(root: Path) -> tuple[bool, str]:
    """Whether the settings of the checkout's service are sound, and what it says of them."""
    command, environment = serve_command.app(root)
    done = subprocess.run(
        [*command, "check-settings"], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    said = (done.stdout or done.stderr).strip().splitlines()
    return done.returncode == 0, said[-1] if said else f"exit code {done.returncode}"
