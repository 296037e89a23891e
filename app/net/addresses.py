"""Networks, addresses of this machine and of clients behind proxies, secure URLs, accepted values of Host. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit

from blocklist.model.errors import BlocklistError


class Networks:
    """A set of networks, each written `10.0.0.0/8` or as one address. Raises ValueError for anything else."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._networks = [ip_network(text.strip()) for text in texts if text.strip()]

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, host: object) -> bool:
        """Whether this address, as text, is in one of the networks."""
        try:
            address = _unmapped(ip_address(str(host)))
        except ValueError:
            return False
        return any(address in network for network in self._networks)


def is_loopback(host: str) -> bool:
    """Whether a server that listens on this host can be reached from this machine only."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def reaches_this_machine(address: str) -> bool:
    """Whether a connection to this IP address ends on this machine; the unspecified address does as well."""
    parsed = _unmapped(ip_address(address))
    return parsed.is_loopback or parsed.is_unspecified


def check_secure_url(url: str) -> str:
    """Return the URL. Raises ValueError unless it is https, or http on this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if not host or not (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))):
        raise ValueError("give an https URL (http only on this machine)")
    return url


def _unmapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address of an IPv4-mapped IPv6 address; any other as it is."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


# The address of the client behind trusted proxies. Pure.

_MAX_ADDRESS: Final = 64
"""Maximum number of characters of an address in X-Forwarded-For."""


def client_address(peer: str, forwarded_for: Sequence[str], trusted_proxies: Networks) -> str:
    """The address of the client. A trusted proxy appends it to the X-Forwarded-For headers that it received."""
    if forwarded_for and peer in trusted_proxies:
        return forwarded_for[-1].rpartition(",")[2].strip()[:_MAX_ADDRESS]
    return peer


# Which values of the Host header the service accepts while authentication is off.
#
# A web page can send requests to a loopback address under a name of its own (DNS rebinding); its Host is that name.

_LOOPBACK: Final = (r"(?:[a-z0-9-]+\.)*localhost", r"127(?:\.[0-9]{1,3}){3}", r"\[::1\]")
"""Browsers resolve `localhost` and names below it themselves (RFC 6761), so no DNS server can rebind them."""
_NAME: Final = re.compile(r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*", re.ASCII)


class MisdirectedError(BlocklistError):
    """The request was sent to a host name that the service does not accept; nothing was changed."""


class HostPolicy:
    """Accepts loopback names and addresses, and further `names`, with any port."""

    def __init__(self, names: Iterable[str]) -> None:
        """Raises ValueError for anything but host names and addresses."""
        further = [_pattern(name.strip().lower()) for name in names if name.strip()]
        pattern = rf"(?:{'|'.join((*_LOOPBACK, *further))})\.?(?::[0-9]*)?"
        self._pattern = re.compile(pattern.encode(), re.IGNORECASE)

    def accepts(self, host: bytes | None) -> bool:
        """Whether a request with this Host header is accepted. Without one it does not come from a browser."""
        return host is None or self._pattern.fullmatch(host) is not None


def _pattern(name: str) -> str:
    if _NAME.fullmatch(name) is not None:
        return re.escape(name)
    try:
        address = ip_address(name.strip("[]"))
    except ValueError:
        raise ValueError(f"{name!a} is neither a host name nor an address") from None
    return re.escape(f"[{address}]")
