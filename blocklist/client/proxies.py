"""The proxy for a URL, by HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, whose forms are those of curl.

httpx reads them too, but raises for some forms, such as `[::1]`, and takes others, such as `10.0.0.0/8`, for names.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from ipaddress import ip_address, ip_network
from typing import Final
from urllib.request import getproxies

import httpx

from blocklist.model.errors import InvalidError

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
    try:
        proxy = httpx.Proxy(named if "://" in named else f"http://{named}")
    except (httpx.InvalidURL, ValueError):
        # Not shown: it may have a password.
        raise InvalidError(
            f"The proxy that the environment names for {server.scheme}:// is invalid: give"
            f" {server.scheme.upper()}_PROXY as http://host:port."
        ) from None
    if proxy.url.scheme.startswith("socks") and find_spec("socksio") is None:
        raise InvalidError("The environment names a SOCKS proxy: install httpx[socks], or give one for HTTP.")
    return proxy


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
