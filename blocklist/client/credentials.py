"""The client's token: from the caller, the environment, or a file that may change.

The token never appears in a repr, a log line or an error.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import httpx

from blocklist.client.token_file import token_reader


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
    read = token_reader(token)
    return None if read is None else BearerAuth(read)
