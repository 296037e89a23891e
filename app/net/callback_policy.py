"""Where pushes may go: a registration must not reach hosts that its sender could not reach itself (SSRF)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from ipaddress import ip_network
from urllib.parse import urlsplit

from app.net.addresses import Networks, reaches_this_machine
from blocklist.model.errors import InvalidError


class PushError(Exception):
    """A push failed; the message is for an operator."""


class PushRejectedError(PushError):
    """The listener responded with another status than 2xx."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PinnedTarget:
    """A callback URL, and the one address that pushes to it go to; `named` is whether its name is allowed."""

    url: str
    host: str
    authority: str
    address: str
    named: bool


class CallbackPolicy:
    """Allows callbacks to host names (also `*.example.com`) and to networks.

    Addresses of this machine need an entry of their own: an exact name, or a network of loopback addresses only.
    """

    def __init__(self, entries: Iterable[str]) -> None:
        """Raises ValueError for an entry that is neither a name nor a network."""
        entries = [entry.strip().lower() for entry in entries]
        networks = [entry for entry in entries if _is_network(entry)]
        self._networks = Networks(networks)
        self._loopback = Networks(network for network in networks if ip_network(network).is_loopback)
        self._names = [entry for entry in entries if entry and entry not in networks]

    async def resolve(self, url: str) -> PinnedTarget:
        """Resolve the host of a URL and pin the URL to one of its addresses.

        An allowed name may have any addresses; the addresses of any other host must all be in an allowed network.
        Raises InvalidError if the host cannot be resolved or is not allowed.
        """
        parts = urlsplit(url)
        host = (parts.hostname or "").lower()
        port = parts.port or (443 if parts.scheme == "https" else 80)
        addresses, named = await _resolve(host, port), self._is_named(host)
        if named and not addresses:
            raise InvalidError(f"callbackUrl: host {host} cannot be resolved.")
        if not addresses or not all(self._is_allowed(host, address) for address in addresses):
            # One message for both: it must not tell which names there are in the network of the service.
            raise InvalidError(
                f"callbackUrl: {host} cannot be resolved, or pushes to it are not allowed; an operator can add it to"
                " BLOCKLIST_CALLBACK_HOSTS."
            )
        return PinnedTarget(url=url, host=host, authority=parts.netloc, address=addresses[0], named=named)

    def _is_named(self, host: str) -> bool:
        return any(fnmatchcase(host, name) for name in self._names)

    def _is_allowed(self, host: str, address: str) -> bool:
        plain = address.partition("%")[0]
        if reaches_this_machine(plain):
            return host in self._names or plain in self._loopback
        return self._is_named(host) or plain in self._networks


def _is_network(entry: str) -> bool:
    return "/" in entry or ":" in entry or entry.replace(".", "").isdigit()


async def _resolve(host: str, port: int) -> Sequence[str]:
    """The addresses of a host; none if it cannot be resolved."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
