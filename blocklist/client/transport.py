"""The HTTP connection to the service, and how another thread aborts it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Mapping
from typing import Any, Final

import httpx

from blocklist.client.credentials import BearerAuth, resolve_auth
from blocklist.client.proxies import proxy_of
from blocklist.client.url_credentials import check_no_credentials
from blocklist.model.errors import InvalidError

_PLAIN_ANSWERS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
"""How OpenSSL, by its version, names an answer without TLS."""
TRANSPORT_ERRORS: Final = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, UnicodeError, OSError)
"""What httpx raises if the server is unreachable or its response is invalid; UnicodeError for an invalid host name."""


def service_url(text: str) -> str:
    """Return `text` without trailing slashes; raise InvalidError unless it is `http(s)://host[:port][/prefix]`."""
    check_no_credentials(text)
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
    """An HTTP client for the service at `url` with up to `max_idle` idle connections.

    It sends `token`, or the token of the environment (see resolve_auth). It uses the proxy of the environment (see
    proxy_of). Raises InvalidError for a malformed token or an invalid proxy.
    """
    # Well below the idle timeout of the service (75 s): a request on a connection that is being closed would be lost.
    limits = httpx.Limits(max_connections=100, max_keepalive_connections=max_idle, keepalive_expiry=2)
    proxy = proxy_of(url)
    # Without TLS, do not load the trusted certificates: that takes most of the time to create a client.
    plain = httpx.URL(url).scheme == "http"
    verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else httpx.create_ssl_context()
    auth = resolve_auth(token)
    return httpx.Client(auth=auth, timeout=timeout, trust_env=False, proxy=proxy, limits=limits, verify=verify)


def retry_after(response: httpx.Response) -> float | None:
    """The response's Retry-After in seconds; None if it is missing or a date."""
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isascii() and value.isdigit() else None


class AbortableSocket:
    """The socket on which one thread waits, so that another thread can abort it.

    A thread in recv() wakes up when its socket is shut down, not when it is closed. Pass `trace` as the `trace`
    extension of each request: it provides the socket as soon as it is connected, before there is a response.
    """

    def __init__(self) -> None:
        self.aborted = threading.Event()
        # Reentrant, as a signal handler may run in the thread that holds it.
        self._lock = threading.RLock()
        self._socket: socket.socket | None = None

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            with self._lock:
                self._socket = info["return_value"].get_extra_info("socket")
                if self.aborted.is_set():
                    self._shut_down()

    def abort(self) -> None:
        """Abort this connection, and any later one at once."""
        with self._lock:
            self.aborted.set()
            self._shut_down()

    def _shut_down(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                # Not SSLSocket.shutdown, which would discard the TLS state that the reader uses.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def unreachable_message(url: str, error: Exception) -> str:
    """The message of a transport error, with what to do if the scheme of the URL may be the wrong one."""
    reason = str(error) or type(error).__name__
    if any(sign in reason.replace(" ", "_").upper() for sign in _PLAIN_ANSWERS):
        return f"{url} is out of reach: the server there does not use TLS; try http:// instead of https:// ({reason})"
    if url.startswith("http://") and isinstance(error, httpx.RemoteProtocolError):
        return f"{url} is out of reach: {reason} If the server uses TLS, its URL begins with https://."
    return f"{url} is out of reach: {reason}"
