"""The admin token file: created at the start if it is missing, so that there is a first token."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final

from app.auth.tokens import generate_token

ADMIN_NAME: Final = "admin"
"""The author of changes made with this token."""
_TOKEN_PATTERN: Final = re.compile(r"[A-Za-z0-9._~+/=-]{32,1024}", re.ASCII)


class AdminTokenFileError(Exception):
    """The file cannot be used; the message is for the operator."""


def create(path: Path) -> bool:
    """Create the file, readable by its owner only; False if it exists already. Raises AdminTokenFileError."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    except OSError as error:
        raise AdminTokenFileError(f"The admin token file {path} cannot be created: {error.strerror}.") from None
    with os.fdopen(handle, "w") as file:
        file.write(generate_token().text + "\n")
    return True


def read(path: Path) -> bytes:
    """The token. Raises AdminTokenFileError if the file cannot be read, is open to all users, or has no token."""
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise AdminTokenFileError(f"The admin token file {path} cannot be read: {error.strerror}.") from None
    except ValueError:
        text = ""
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise AdminTokenFileError(f"All users may read or write the admin token file {path}: run chmod 600 {path}.")
    if not _TOKEN_PATTERN.fullmatch(text):
        raise AdminTokenFileError(
            f"The admin token file {path} does not contain a token: write one line of at least 32 of"
            " A-Z a-z 0-9 . _ ~ + / = - into it, or remove it and the service creates one."
        )
    return text.encode()
