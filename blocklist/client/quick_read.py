"""A GET on a socket: httpx, pydantic and even http.client take longer to import than the request takes.

It returns what the client would read, or raises NotQuickError: then ask the client, which knows what is the matter and
how to say it. Only the plainest response of the service is read here.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

_URL: Final = re.compile(
    r"(https?)://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?((?:/[A-Za-z0-9._~-]+)*)/*", re.ASCII
)
_MAX_SECONDS: Final = 1.0
"""A slow service is asked again by the client, with its own timeout."""
_MAX_BYTES: Final = 2**26


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
    if not _is_loopback(host) and _may_have_proxy():
        raise NotQuickError
    deadline = time.monotonic() + min(timeout, _MAX_SECONDS)
    try:
        request = _request(url, prefix + path, read_token)
        with _connect(scheme, host, port, deadline) as connection:
            connection.sendall(request)
            return _parsed(_receive(connection, deadline))
    except (OSError, ValueError, RecursionError) as error:
        raise NotQuickError from error


def _request(url: str, target: str, read_token: Callable[[], str] | None) -> bytes:
    authority = url.split("/")[2]
    lines = [f"GET {target} HTTP/1.1", f"Host: {authority}", "Accept: application/json", "Connection: close"]
    if read_token is not None:
        lines.append(f"Authorization: Bearer {read_token()}")
    return "\r\n".join([*lines, "", ""]).encode("ascii")


def _connect(scheme: str, host: str, port: str | None, deadline: float) -> socket.socket:
    name, usual_port = host.strip("[]"), 443 if scheme == "https" else 80
    connection = socket.create_connection((name, int(port or usual_port)), _seconds_until(deadline))
    if scheme == "http":
        return connection
    try:
        return _trust(local=_is_loopback(host)).wrap_socket(connection, server_hostname=name)
    except BaseException:
        connection.close()
        raise


def _receive(connection: socket.socket, deadline: float) -> bytes:
    """What the service sends until it closes the connection."""
    received = bytearray()
    connection.settimeout(_seconds_until(deadline))
    while data := connection.recv(65536):
        received += data
        if len(received) > _MAX_BYTES:
            raise NotQuickError
        connection.settimeout(_seconds_until(deadline))
    return bytes(received)


def _parsed(response: bytes) -> QuickResponse:
    head, _, body = response.partition(b"\r\n\r\n")
    status, *lines = head.decode("ascii").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    # Anything else may be incomplete, encoded, or from another server than the service.
    if not (
        status.startswith("HTTP/1.1 200 ")
        and headers.get("content-length") == str(len(body))
        and "transfer-encoding" not in headers
        and "blocklist-revision" in headers
    ):
        raise NotQuickError
    return QuickResponse(json.loads(body), headers.get("date"))


def _seconds_until(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise NotQuickError
    return left


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
