"""Networks, addresses of this machine and of clients behind proxies, secure URLs, accepted values of Host."""

from __future__ import annotations

import re
import socket
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
    """Whether a connection to this IP address ends on this machine: loopback, unspecified, or of an interface."""
    return any(it.is_loopback or it.is_unspecified or _is_own(it) for it in _meanings(address))


def is_link_local(address: str) -> bool:
    """Whether this IP address is one of the network to which the machine is attached, and of no other."""
    return any(it.is_link_local for it in _meanings(address))


_METADATA_SERVICES: Final = frozenset(
    map(
        ip_address,
        (
            "169.254.169.254",  # most clouds
            "169.254.170.2",  # AWS: tasks of ECS
            "169.254.170.23",  # AWS: pods of EKS
            "fd00:ec2::23",
            "fd00:ec2::254",  # AWS
            "fd20:ce::254",  # Google
            "fd00:c1::a9fe:a9fe",  # Oracle
            "192.0.0.192",  # Oracle
            "168.63.129.16",  # Azure
            "100.100.100.200",  # Alibaba
            "169.254.0.23",  # Tencent
        ),
    )
)


def is_metadata_service(address: str) -> bool:
    """Whether a cloud answers at this IP address, with credentials of this machine."""
    return any(it in _METADATA_SERVICES for it in _meanings(address))


_TRANSLATED: Final = (ip_network("64:ff9b::/96"), ip_network("64:ff9b:1::/48"), ip_network("::/96"))
"""Networks in whose addresses the last 32 bits are an IPv4 address: NAT64, and IPv4-compatible addresses."""


def _meanings(address: str) -> set[IPv4Address | IPv6Address]:
    """The address, and the IPv4 addresses that it carries: a gateway or the kernel may connect to those."""
    parsed = ip_address(address)
    found: set[IPv4Address | IPv6Address] = {_unmapped(parsed)}
    if isinstance(parsed, IPv6Address):
        found |= {it for it in (parsed.sixtofour, *(parsed.teredo or ())) if it is not None}
        if int(parsed) > 1 and any(parsed in network for network in _TRANSLATED):
            found.add(IPv4Address(int(parsed) & 0xFFFF_FFFF))
    return found


def _is_own(address: IPv4Address | IPv6Address) -> bool:
    """Whether an interface of this machine has the address: then the kernel would send from it as well."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))  # sends nothing
            return ip_address(probe.getsockname()[0]) == address
    except OSError:
        return False


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
