"""Sets of networks, loopback addresses, and secure URLs. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit


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
