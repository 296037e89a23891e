"""serve: the service itself, from a checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from blocklist.model.errors import InvalidError


def serve() -> None:
    """Run the service, in a checkout: bring its database up to date, then serve."""
    root = find_checkout()
    if root is None:
        raise InvalidError("serve needs a checkout of blocklist, where the service is; this is the installed package.")
    command, environment = app_command(root)
    migrated = subprocess.run([*command, "migrate"], env=environment, check=False)
    if migrated.returncode:
        raise SystemExit(migrated.returncode)
    os.execve(command[0], command, environment)  # noqa: S606 - it is to take this process's place


def find_checkout() -> Path | None:
    """The checkout that this package is in; None where it is installed alone."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "app" / "__main__.py").is_file() and (root / "migrations").is_dir() else None


def app_command(root: Path) -> tuple[list[str], dict[str, str]]:
    """The command that runs the service of a checkout, in the folder where we are, and its environment."""
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    return [sys.executable, "-P", "-m", "app"], {**os.environ, "PYTHONPATH": path}
