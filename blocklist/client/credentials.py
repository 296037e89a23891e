"""The client's token: from the caller, the environment, or a file that may change.

The token never appears in a repr, a log line or an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final

import httpx

from blocklist.model.errors import InvalidError

# The syntax of RFC 6750. The HTTP library would quote anything else in its error.
_TOKEN_PATTERN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*", re.ASCII)


class TokenFileError(OSError):
    """The token file cannot be read, or contains no token."""


class BearerAuth(httpx.Auth):
    """Sends a token with each request. Reads it again when the service rejects it, as a file may have changed."""

    def __init__(self, read: Callable[[], str]) -> None:
        self._read = read
        self._header: str | None = None

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """The requests that httpx sends. Raises TokenFileError."""
        sent = request.headers["Authorization"] = self._header or self._reload()
        response = yield request
        if response.status_code == httpx.codes.UNAUTHORIZED and self._reload() != sent:
            request.headers["Authorization"] = self._header or ""
            yield request

    def _reload(self) -> str:
        self._header = f"Bearer {self._read()}"
        return self._header


def resolve_auth(token: str | BearerAuth | None) -> BearerAuth | None:
    """The given token, or BLOCKLIST_TOKEN, or the token in the file BLOCKLIST_TOKEN_FILE, or None.

    Store the result, not the token: debuggers show attributes. Raises InvalidError for a malformed token. Does not read
    the file yet.
    """
    if isinstance(token, BearerAuth):
        return token
    if text := token or os.environ.get("BLOCKLIST_TOKEN"):
        if not _TOKEN_PATTERN.fullmatch(text):
            raise InvalidError("The token is malformed: use only A-Z a-z 0-9 . _ ~ + / - and = at its end.")
        return BearerAuth(lambda: text)
    if path := os.environ.get("BLOCKLIST_TOKEN_FILE"):
        return token_file_auth(Path(path))
    return None


def token_file_auth(path: Path) -> BearerAuth:
    """The token in a file, which is not read yet."""
    return BearerAuth(lambda: _read_file(path))


def _read_file(path: Path) -> str:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise TokenFileError(f"the token file {path} cannot be read: {error.strerror}") from None
    except ValueError:
        text = ""
    if len(text.split()) > 1:
        raise TokenFileError(f"the token file {path} must contain exactly one token")
    if not _TOKEN_PATTERN.fullmatch(text):
        raise TokenFileError(f"the token file {path} contains no token")
    return text
