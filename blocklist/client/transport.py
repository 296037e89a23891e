"""The way to the service: which URL is one, what talks to it, and how another thread cuts the line."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any, Final
from urllib.request import getproxies

import httpx

from blocklist.client.credentials import BearerAuth, resolve_auth
from blocklist.model.errors import InvalidError

TRANSPORT_ERRORS: Final = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, UnicodeError, OSError)
"""What httpx raises when the other side is away or answers garbage; UnicodeError for a host that no DNS could have."""


def service_url(text: str) -> str:
    """Return `text` without slashes at its end; raise InvalidError unless it is `http(s)://host[:port][/prefix]`."""
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, UnicodeError):
        url = httpx.URL()
    if url.scheme not in {"http", "https"} or not url.host or not {"?", "#"}.isdisjoint(text):
        raise InvalidError(f"{text[:64]!a} is not the URL of a service: give http://host:port.")
    return text.rstrip("/")


def http_client(
    url: str, timeout: httpx.Timeout | float, *, max_idle: int = 20, token: str | BearerAuth | None = None
) -> httpx.Client:
    """An HTTP client for the service at `url`; it keeps up to `keep` idle connections, and sends its credentials.

    Those are `token`, else the environment's (see credentials). Raises InvalidError for what could be no token.

    It heeds HTTP_PROXY, NO_PROXY and the like, as every client does, but not for a service on this machine: a proxy
    elsewhere would look for it at home.
    """
    # The service closes a connection that is idle for 5 s; a request sent on it at that moment would be lost.
    limits = httpx.Limits(max_connections=100, max_keepalive_connections=max_idle, keepalive_expiry=2)
    service = httpx.URL(url)
    local = _is_loopback(service.host)
    # Who meets no TLS need not read which certificates to trust: it is most of what a client costs.
    plain = service.scheme == "http" and (local or not getproxies())
    verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else True
    return httpx.Client(auth=resolve_auth(token), timeout=timeout, trust_env=not local, limits=limits, verify=verify)


def retry_after(response: httpx.Response) -> float | None:
    """The answer's Retry-After in seconds; None where it gives none, or a date."""
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isascii() and value.isdigit() else None


class AbortableSocket:
    """The socket that a thread waits on, for another thread to cut.

    A thread in recv() wakes when its socket is shut down, not when it is closed. `trace` is to be the `trace`
    extension of each request: so the socket is known as soon as it is connected, before anything is answered.
    """

    def __init__(self) -> None:
        self.aborted = threading.Event()
        # Reentrant: a signal handler may close what its own thread is about to use.
        self._lock = threading.RLock()
        self._socket: socket.socket | None = None

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            with self._lock:
                self._socket = info["return_value"].get_extra_info("socket")
                if self.aborted.is_set():
                    self._shut_down()

    def abort(self) -> None:
        """Cut it, and every later one at once."""
        with self._lock:
            self.aborted.set()
            self._shut_down()

    def _shut_down(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                # Not SSLSocket's own method, which takes the TLS state from under the reader.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
