"""The HTTP connection to the service, and how another thread aborts it."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Generator, Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from ipaddress import ip_address, ip_network
from typing import Any, Final
from urllib.request import getproxies

import httpx

from blocklist.client.credentials import check_no_credentials, token_reader
from blocklist.model.errors import InvalidError

# The client's token: from the caller, the environment, or a file that may change.
#
# The token never appears in a repr, a log line or an error.


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


_CERTIFICATE_SETTINGS: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")
_PLAIN_ANSWERS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
"""How OpenSSL, by its version, names an answer without TLS."""
TRANSPORT_ERRORS: Final = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, UnicodeError, OSError)
"""What httpx raises if the server is unreachable or its response is invalid; UnicodeError for an invalid host name."""


def service_url(text: str) -> str:
    """Return `text` without trailing slashes; raise InvalidError unless it is `http(s)://host[:port][/prefix]`."""
    check_no_credentials(text)
    # In a URL, the zone of an address is behind `%25` (RFC 6874); httpx hands over what is there.
    text = re.sub(r"(?<=[0-9a-fA-F:])%25(?=[^/\]]*\])", "%", text)
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, UnicodeError):
        url = httpx.URL()
    if url.scheme not in {"http", "https"} or not _has_usable_host(url) or not {"?", "#"}.isdisjoint(text):
        raise InvalidError(f"{text[:64]!a} is not the URL of a service: give http://host:port.")
    return text.rstrip("/")


def _has_usable_host(url: httpx.URL) -> bool:
    return bool(url.host) and not any(it.isspace() for it in url.host) and (url.port or 0) < 65_536


def http_client(
    url: str, timeout: httpx.Timeout | float, *, max_idle: int = 20, token: str | BearerAuth | None = None
) -> httpx.Client:
    """An HTTP client for the service at `url` with up to `max_idle` idle connections.

    It sends `token`, or the token of the environment (see resolve_auth). It uses the proxy of the environment (see
    proxy_of). Raises InvalidError for a malformed token, InvalidError for a proxy or certificates that cannot
    be used.
    """
    # Well below the idle timeout of the service (75 s): a request on a connection that is being closed would be lost.
    limits = httpx.Limits(max_connections=100, max_keepalive_connections=max_idle, keepalive_expiry=2)
    proxy = proxy_of(url)
    # Without TLS, do not load the trusted certificates: that takes most of the time to create a client.
    plain = httpx.URL(url).scheme == "http"
    verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else _trusted_certificates()
    auth = resolve_auth(token)
    return httpx.Client(auth=auth, timeout=timeout, trust_env=False, proxy=proxy, limits=limits, verify=verify)


def _trusted_certificates() -> ssl.SSLContext:
    """Those of SSL_CERT_FILE or SSL_CERT_DIR, else of certifi. Raises InvalidError."""
    try:
        return httpx.create_ssl_context()
    except OSError as error:
        named = [f"{name}={os.environ[name]}" for name in _CERTIFICATE_SETTINGS if os.environ.get(name)]
        raise InvalidError(
            f"The certificates for https:// cannot be loaded ({error.strerror or error}): correct or unset"
            f" {' and '.join(named) or 'SSL_CERT_FILE'}."
        ) from None


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


def read_at_most(response: httpx.Response, limit: int) -> bytes | None:
    """The whole body; None if it has more than `limit` bytes: another server may send for ever."""
    body = bytearray()
    for chunk in response.iter_bytes():
        body += chunk
        if len(body) > limit:
            return None
    return bytes(body)


def unreachable_message(url: str, error: Exception) -> str:
    """The message of a transport error, with what to do if the scheme of the URL may be the wrong one."""
    reason = str(error) or type(error).__name__
    if proxy := _proxy_name(url):
        return f"{url} is out of reach through the proxy {proxy} of the environment: {reason}"
    if any(sign in reason.replace(" ", "_").upper() for sign in _PLAIN_ANSWERS):
        return f"{url} is out of reach: the server there does not use TLS; try http:// instead of https:// ({reason})"
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return f"{url} is out of reach: {reason}. If its authority is your own, give the file of it as SSL_CERT_FILE."
    if url.startswith("http://") and isinstance(error, httpx.RemoteProtocolError) and "body" not in reason:
        return f"{url} is out of reach: {reason.rstrip('.')}. If the server uses TLS, its URL begins with https://."
    return f"{url} is out of reach: {reason}"


def via_proxy(url: str) -> str:
    """A sentence that names the proxy of the URL, with a blank before it; empty if there is none."""
    proxy = _proxy_name(url)
    return "" if proxy is None else f" The request went to the proxy {proxy} of the environment: see NO_PROXY."


# The proxy for a URL, by HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, whose forms are those of curl.
#
# httpx reads them too, but raises for some forms, such as `[::1]`, and takes others, such as `10.0.0.0/8`, for names.

_SEPARATORS: Final = re.compile(r"[,\s]+")
_EXCEPTION: Final = re.compile(
    r"(?:[A-Za-z]+://)?(?:\[(?P<v6>[^\]]*)\]|(?P<bare_v6>[^:]*:[^:]*:.*)|(?P<host>[^:]*))(?::(?P<port>[0-9]{1,5}))?"
)
_USUAL_PORTS: Final = {"http": 80, "https": 443}


def proxy_of(url: str) -> httpx.Proxy | None:
    """The proxy for this valid URL; None for a server on this machine, which a proxy would look for on its own.

    Raises InvalidError if the environment names something that is no proxy.
    """
    server = httpx.URL(url)
    host = server.host.rstrip(".")
    proxies = getproxies()
    named = proxies.get(server.scheme) or proxies.get("all")
    if not named or is_loopback(host):
        return None
    port = server.port or _USUAL_PORTS.get(server.scheme)
    if any(_matches(exception, host, port) for exception in _SEPARATORS.split(proxies.get("no", ""))):
        return None
    proxy = _parse_proxy(named if "://" in named else f"http://{named}")
    if proxy is None:
        # Not shown: it may have a password.
        raise InvalidError(
            f"The proxy that the environment names for {server.scheme}:// is invalid: give"
            f" {server.scheme.upper()}_PROXY as http://host:port."
        )
    if proxy.url.scheme.startswith("socks") and find_spec("socksio") is None:
        raise InvalidError("The environment names a SOCKS proxy: install httpx[socks], or give one for HTTP.")
    return proxy


def _parse_proxy(text: str) -> httpx.Proxy | None:
    try:
        proxy = httpx.Proxy(text)
    except (httpx.InvalidURL, ValueError):
        return None
    return proxy if _has_usable_host(proxy.url) else None


def _proxy_name(url: str) -> str | None:
    """`proxy.example.com:3128`, without a password; None if the URL has no proxy."""
    try:
        proxy = proxy_of(url)
    except InvalidError:
        return None
    return None if proxy is None else proxy.url.netloc.decode()


def is_loopback(host: str) -> bool:
    """Whether it is surely this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _matches(exception: str, host: str, port: int | None) -> bool:
    """Whether an entry of NO_PROXY is for the server: `*`, a name with all names below it, an address or a network."""
    if exception == "*":
        return True
    match = _EXCEPTION.fullmatch(exception)
    if match is None or (match["port"] is not None and int(match["port"]) != port):
        return False
    named = match["v6"] or match["bare_v6"] or match["host"] or ""
    try:
        address = ip_address(host)
    except ValueError:
        name = named.removeprefix("*").strip(".").lower()
        return bool(name) and (host == name or host.endswith(f".{name}"))
    try:
        return address in ip_network(named, strict=False)
    except ValueError:
        return False


# The clock of the service, by which blocks end, as a client of it knows it.

MIN_OFFSET: Final = 5_000
"""Smaller differences, in milliseconds, count as none: a Date header has whole seconds, and a response takes time."""
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
# The format in which servers must send it (RFC 9110). `email.utils` reads others as well, but is slow to import.
_DATE: Final = re.compile(r"[A-Z][a-z]{2}, ([0-9]{2}) ([A-Z][a-z]{2}) ([0-9]{4}) ([0-9]{2}):([0-9]{2}):([0-9]{2}) GMT")


class ServiceClock:
    """The service's time. It is this machine's as long as the two differ by less than MIN_OFFSET.

    Otherwise it is the Date of the last response, and the time that has passed since: the clock of this machine may be
    set meanwhile.

    THREADING: all methods may be called from any thread.
    """

    def __init__(self) -> None:
        self.has_response = False
        """Whether there was a response, with a Date or without."""
        self._last: tuple[int, float] | None = None

    def on_date(self, date: str | None) -> None:
        """Take the Date header of a response that has just come."""
        self.has_response = True
        if (at := _parse_date(date)) is not None:
            self._last = at, time.monotonic()

    def now(self) -> int:
        """Unix milliseconds; by the clock of this machine before the first response."""
        return _own_now() + self.ahead()

    def ahead(self) -> int:
        """By how many milliseconds it is ahead of the clock of this machine; 0 before the first response."""
        if self._last is None:
            return 0
        at, received = self._last
        offset = at + round((time.monotonic() - received) * 1000) - _own_now()
        return offset if abs(offset) >= MIN_OFFSET else 0


def _parse_date(date: str | None) -> int | None:
    match = _DATE.fullmatch(date or "")
    if match is None:
        return None
    day, month, year, hour, minute, second = match.groups()
    try:
        number = _MONTHS.index(month) + 1
        at = datetime(int(year), number, int(day), int(hour), int(minute), int(second), tzinfo=UTC)
    except ValueError:
        return None
    return round(at.timestamp() * 1000)


def _own_now() -> int:
    return time.time_ns() // 1_000_000
