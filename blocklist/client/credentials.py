"""Where a client's token is from: the environment, or a file that may change. The token never appears in an error."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from blocklist.model.errors import InvalidError
from blocklist.model.text import read_text

# The syntax of RFC 6750. The HTTP library would quote anything else in its error.
_TOKEN_PATTERN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*", re.ASCII)


class TokenFileError(OSError):
    """The token file cannot be read, or contains no token."""


def token_reader(token: str | None = None) -> Callable[[], str] | None:
    """What returns the given token, or BLOCKLIST_TOKEN, or the token in the file BLOCKLIST_TOKEN_FILE; else None.

    Raises InvalidError for a malformed token. Does not read the file yet.
    """
    if text := token or os.environ.get("BLOCKLIST_TOKEN"):
        if not _TOKEN_PATTERN.fullmatch(text):
            raise InvalidError("The token is malformed: use only A-Z a-z 0-9 . _ ~ + / - and = at its end.")
        return lambda: text
    if path := os.environ.get("BLOCKLIST_TOKEN_FILE"):
        return lambda: read_token_file(Path(path))
    return None


def read_token_file(path: Path, source: str = "BLOCKLIST_TOKEN_FILE") -> str:
    """The token in a file; `source` says who named the file. Raises TokenFileError."""
    try:
        text = read_text(path).strip()
    except OSError as error:
        raise TokenFileError(f"{source}: the token file {path} cannot be read: {error.strerror}") from None
    except ValueError:
        text = ""
    if len(text.split()) > 1:
        raise TokenFileError(f"{source}: the token file {path} must contain exactly one token")
    if not _TOKEN_PATTERN.fullmatch(text):
        raise TokenFileError(f"{source}: the token file {path} contains no token")
    return text


# User name and password in a URL: they are refused, and never shown.

_CREDENTIALS: Final = re.compile(r"^(https?:(?=//))?.*@", re.DOTALL | re.IGNORECASE)


def without_credentials(url: str) -> str:
    """The URL with `…` in place of them."""
    return _CREDENTIALS.sub(lambda match: f"{match[1] or ''}//…@", url)


def check_no_credentials(url: str) -> None:
    """Raises InvalidError, with a message that does not show them, if the URL of the service has them.

    That is any `@`: in a mistyped URL, such as one without `//` or with a `/` in the password, it may be anywhere.
    """
    if "@" in url:
        raise InvalidError(
            "The URL of the service has a user name or a password in it, which the service does not use: leave them"
            " out. A token is given as BLOCKLIST_TOKEN_FILE, or as token_file of a context."
        )
