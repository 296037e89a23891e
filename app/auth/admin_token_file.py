"""The admin's token in a file: made at the start if it is not there, so that there is a first credential."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final

from app.auth.tokens import generate_token

ADMIN_NAME: Final = "admin"
"""The author of what is done with this token."""
_TOKEN_PATTERN: Final = re.compile(r"[A-Za-z0-9._~+/=-]{32,1024}", re.ASCII)


class AdminTokenFileError(Exception):
    """The file cannot be used; the message is for the operator."""


def create(path: Path) -> bool:
    """Make the file, for its owner's eyes only, unless it is there; whether it was made. Raises AdminTokenFileError."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    except OSError as error:
        raise AdminTokenFileError(f"The admin token file {path} cannot be made: {error.strerror}.") from None
    with os.fdopen(handle, "w") as file:
        file.write(generate_token().text + "\n")
    return True


def read(path: Path) -> bytes:
    """The token. Raises AdminTokenFileError if it cannot be read, anybody can read it, or it holds none."""
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise AdminTokenFileError(f"The admin token file {path} cannot be read: {error.strerror}.") from None
    except ValueError:
        text = ""
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise AdminTokenFileError(f"Anybody may read or write the admin token file {path}: run chmod 600 {path}.")
    if not _TOKEN_PATTERN.fullmatch(text):
        raise AdminTokenFileError(
            f"The admin token file {path} holds no token: put one line of 32 or more of A-Z a-z 0-9 . _ ~ + / = -"
            " into it, or remove it and the service makes one."
        )
    return text.encode()
