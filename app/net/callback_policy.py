"""Where pushes may go: a registration must not reach hosts that its sender could not reach itself (SSRF)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from app.net.addresses import Networks
from blocklist.model.errors import InvalidError


class PushError(Exception):
    """A push failed; the message is for an operator."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PinnedTarget:
    """A callback URL, and the one address that pushes to it go to."""

    url: str
    host: str
    authority: str
    address: str


class CallbackPolicy:
    """Allows callbacks to host names (also `*.example.com`) and to networks."""

    def __init__(self, entries: Iterable[str]) -> None:
        """Raises ValueError for an entry that is neither a name nor a network."""
        entries = [entry.strip().lower() for entry in entries]
        networks = [entry for entry in entries if _is_network(entry)]
        self._networks = Networks(networks)
        self._names = [entry for entry in entries if entry and entry not in networks]

    async def resolve(self, url: str) -> PinnedTarget:
        """Resolve the host of a URL and pin the URL to one of its addresses.

        An allowed name may have any addresses; the addresses of any other host must all be in an allowed network.
        Raises InvalidError if the host cannot be resolved or is not allowed.
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
        return address.partition("%")[0] in self._networks


def _is_network(entry: str) -> bool:
    return "/" in entry or ":" in entry or entry.replace(".", "").isdigit()


async def _resolve(host: str, port: int) -> Sequence[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise InvalidError(f"callbackUrl: host {host} cannot be resolved.") from None
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
