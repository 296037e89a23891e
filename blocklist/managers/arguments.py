"""Types of command line arguments that several managers have."""

from __future__ import annotations

import argparse
import math
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from blocklist.model.errors import InvalidError


def require_command(command: Sequence[str]) -> Sequence[str]:
    """The command, if its program is there. Raises InvalidError."""
    if not command:
        raise InvalidError("Name the command to run.")
    if shutil.which(command[0]) is None:
        raise InvalidError(f"Command {command[0]} was not found.")
    return command


def require_folder(path: Path) -> Path:
    """The path of a file, if its folder is there. Raises InvalidError."""
    if not path.parent.is_dir():
        raise InvalidError(f"Folder {path.parent} does not exist.")
    if path.is_dir():
        raise InvalidError(f"{path} is a folder; name a file.")
    return path


def positive_seconds(text: str) -> float:
    """Seconds, above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError("give a number of seconds above 0")
    return value


def count(text: str) -> int:
    """A whole number from 0 on."""
    if not re.fullmatch("[0-9]{1,9}", text, re.ASCII):
        raise argparse.ArgumentTypeError("give a whole number")
    return int(text)
