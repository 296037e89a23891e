"""Where pushes may go. A registration must not reach what its sender could not reach by himself (SSRF)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from blocklist.model.errors import InvalidError


class PushError(Exception):
    """A listener did not take a push; the message says why, for an operator."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PinnedTarget:
    """A callback URL, and the one address that it is pinned to."""

    url: str
    host: str
    authority: str
    address: str


class CallbackPolicy:
    """Names (`*.example.com` too) and networks to which pushes may go."""

    def __init__(self, entries: Iterable[str]) -> None:
        """Raises ValueError for an entry that is neither a name nor a network."""
        self._names: list[str] = []
        self._networks: list[IPv4Network | IPv6Network] = []
        for entry in (entry.strip().lower() for entry in entries):
            if "/" in entry or entry.replace(".", "").isdigit() or ":" in entry:
                self._networks.append(ip_network(entry))
            elif entry:
                self._names.append(entry)

    async def resolve(self, url: str) -> PinnedTarget:
        """Resolve a URL's host once; from then on the name is not asked for again.

        A name that is allowed may have any address; of another name, or an address, every one must lie in an allowed
        network. Raises InvalidError if it may not be called, or is not known.
        """
        parts = urlsplit(url)
        host = (parts.hostname or "").lower()
        port = parts.port or (443 if parts.scheme == "https" else 80)
        addresses = await _resolve(host, port)
        if not any(fnmatchcase(host, name) for name in self._names) and not all(map(self._in_networks, addresses)):
            raise InvalidError(
                f"callbackUrl: pushes to {host} are not allowed; an operator can add it to BLOCKLIST_CALLBACK_HOSTS."
            )
        return PinnedTarget(url=url, host=host, authority=parts.netloc, address=addresses[0])

    def _in_networks(self, address: str) -> bool:
        ip = ip_address(address.partition("%")[0])
        mapped = getattr(ip, "ipv4_mapped", None)
        return any((mapped or ip) in network for network in self._networks)


async def _resolve(host: str, port: int) -> Sequence[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise InvalidError(f"callbackUrl: nobody knows the host {host}.") from None
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
