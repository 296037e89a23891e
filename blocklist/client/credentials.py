"""The client's credential: a token, from the caller, the environment, or a file that may change.

The token is never shown: not in a repr, a log line or an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final

import httpx

from blocklist.model.errors import InvalidError

# What may stand behind `Bearer` (RFC 6750); anything else would be quoted in an error of the HTTP library.
_TOKEN_PATTERN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*", re.ASCII)


class TokenFileError(OSError):
    """The token file cannot be read, or holds no token."""


class BearerAuth(httpx.Auth):
    """Sends a token with each request; one from a file is read again when the service does not take it (any more)."""

    def __init__(self, read: Callable[[], str]) -> None:
        self._read = read
        self._header: str | None = None

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """What httpx is to send. Raises TokenFileError."""
        sent = request.headers["Authorization"] = self._header or self._reload()
        response = yield request
        if response.status_code == httpx.codes.UNAUTHORIZED and self._reload() != sent:
            request.headers["Authorization"] = self._header or ""
            yield request

    def _reload(self) -> str:
        self._header = f"Bearer {self._read()}"
        return self._header


def resolve_auth(token: str | BearerAuth | None) -> BearerAuth | None:
    """What to send: this token, else that of BLOCKLIST_TOKEN, else that in the file BLOCKLIST_TOKEN_FILE, else nothing.

    Keep what this returns, not the token: a debugger shows attributes. Raises InvalidError for what could be no token.
    The file is not read yet.
    """
    if isinstance(token, BearerAuth):
        return token
    if text := token or os.environ.get("BLOCKLIST_TOKEN"):
        if not _TOKEN_PATTERN.fullmatch(text):
            raise InvalidError("The token is none: it has characters that no token has.")
        return BearerAuth(lambda: text)
    if path := os.environ.get("BLOCKLIST_TOKEN_FILE"):
        return BearerAuth(lambda: _read_file(Path(path)))
    return None


def _read_file(path: Path) -> str:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise TokenFileError(f"the token file {path} cannot be read: {error.strerror}") from None
    except ValueError:
        text = ""
    if not _TOKEN_PATTERN.fullmatch(text):
        raise TokenFileError(f"the token file {path} holds no token")
    return text
