"""A GET without httpx and pydantic, which take longer to import than the request takes.

It returns what the client would read, or raises NotQuickError: then ask the client, which knows what is the matter and
how to say it.
"""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

_URL: Final = re.compile(
    r"(https?)://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?((?:/[A-Za-z0-9._~-]+)*)/*", re.ASCII
)
_MAX_SECONDS: Final = 1.0
"""A slow service is asked again by the client, with its own timeout."""


class QuickResponse(NamedTuple):
    """The JSON of a response, and its Date header."""

    body: Any
    date: str | None


class NotQuickError(Exception):
    """The request or its response needs the client."""


def quick_get(url: str, path: str, read_token: Callable[[], str] | None, timeout: float) -> QuickResponse:
    """A successful response of the service at `url`; `timeout` is in seconds. Raises NotQuickError."""
    match = _URL.fullmatch(url)
    if match is None:
        raise NotQuickError
    scheme, host, port, prefix = match.groups()
    local = _is_loopback(host)
    if not local and _may_have_proxy():
        raise NotQuickError
    try:
        to: dict[str, Any] = {
            "host": host.strip("[]"),
            "port": int(port) if port else None,
            "timeout": min(timeout, _MAX_SECONDS),
        }
        connection = HTTPSConnection(**to, context=_trust(local=local)) if scheme == "https" else HTTPConnection(**to)
        return _get(connection, prefix + path, read_token)
    except (OSError, HTTPException, ValueError, RecursionError) as error:
        raise NotQuickError from error


def _get(connection: HTTPConnection, path: str, read_token: Callable[[], str] | None) -> QuickResponse:
    headers = {"Accept": "application/json"}
    if read_token is not None:
        headers["Authorization"] = f"Bearer {read_token()}"
    with closing(connection):
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        # Anything else may come from another server than the service.
        if response.status != 200 or response.headers.get("Blocklist-Revision") is None:
            raise NotQuickError
        return QuickResponse(json.loads(response.read()), response.headers.get("Date"))


def _is_loopback(host: str) -> bool:
    """Whether it is surely this machine. No proxy is asked for it."""
    return host == "localhost" or re.fullmatch(r"127(?:\.[0-9]{1,3}){3}|\[::1\]", host, re.ASCII) is not None


def _may_have_proxy() -> bool:
    """Whether a proxy may be set, in the environment or, elsewhere than on Linux, in the system."""
    return sys.platform != "linux" or any(name.lower().endswith("_proxy") and os.environ[name] for name in os.environ)


def _trust(*, local: bool) -> ssl.SSLContext:
    """The certificates that httpx trusts."""
    import ssl  # noqa: PLC0415 - slow to import

    given = {} if local else os.environ
    if file := given.get("SSL_CERT_FILE"):
        return ssl.create_default_context(cafile=file)
    if folder := given.get("SSL_CERT_DIR"):
        return ssl.create_default_context(capath=folder)
    import certifi  # noqa: PLC0415

    return ssl.create_default_context(cafile=certifi.where())
