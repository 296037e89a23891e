"""Where pushes may go: a registration must not reach hosts that its sender could not reach itself (SSRF).

What a caller names is checked before it is looked up, and what was looked up is checked at each connection.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from ipaddress import ip_address, ip_network
from threading import Thread
from typing import Final
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from app.net.addresses import Networks, is_link_local, is_metadata_service, reaches_this_machine
from blocklist.model.errors import InvalidError, UnavailableError


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

    Addresses that mean more than a host need a narrower entry than others: those of this machine an exact name or
    address, or a network of loopback addresses only; link-local ones an address, or a network of link-local addresses
    only; those of metadata services of clouds, which give credentials to whoever asks, the address.
    """

    def __init__(self, entries: Iterable[str]) -> None:
        """Raises ValueError for an entry that is neither a name nor a network."""
        entries = [entry.strip().lower() for entry in entries]
        networks = [entry for entry in entries if _is_network(entry)]
        self._networks = Networks(networks)
        self._addresses = Networks(it for it in networks if ip_network(it).num_addresses == 1)
        self._loopback = Networks(it for it in networks if ip_network(it).is_loopback)
        self._link_local = Networks(it for it in networks if ip_network(it).is_link_local)
        self._resolves_names = any(not ip_network(it).is_loopback for it in networks)
        self._names = [entry for entry in entries if entry and entry not in networks]
        self._lookups = NameLookups()

    def check(self, url: str) -> None:
        """Raise InvalidError if pushes to this URL are not allowed, whatever its host resolves to."""
        host, _ = _host_and_port(url)
        address = _address_in(host)
        if address is not None:
            possible = self._is_allowed(host, address)
        else:
            local = host == "localhost" and bool(self._loopback)
            possible = local or self._resolves_names or self._is_named(host)
        if not possible:
            raise _not_allowed(host)

    async def resolve(self, url: str, principal: str | None = None) -> PinnedTarget:
        """Pin a URL to one address of its host, which is looked up on behalf of a principal.

        An allowed name may have any addresses; the addresses of any other host must all be in an allowed network.
        Raises InvalidError if the host cannot be resolved or is not allowed, UnavailableError if that takes too long.
        """
        self.check(url)
        host, port = _host_and_port(url)
        named, literal = self._is_named(host), _address_in(host)
        addresses = [literal] if literal else await self._lookups.addresses(host, port, principal)
        if named and not addresses:
            raise InvalidError(f"callbackUrl: host {host} cannot be resolved.")
        if not addresses or not all(self._is_allowed(host, address) for address in addresses):
            raise _not_allowed(host)
        return PinnedTarget(url=url, host=host, authority=urlsplit(url).netloc, address=addresses[0], named=named)

    def allows(self, target: PinnedTarget) -> bool:
        """Whether pushes to this address are still allowed: it may have become one of this machine."""
        return self._is_allowed(target.host, target.address)

    def _is_named(self, host: str) -> bool:
        return any(fnmatchcase(host, name) for name in self._names)

    def _is_allowed(self, host: str, address: str) -> bool:
        plain = address.partition("%")[0]
        if is_metadata_service(plain):
            return plain in self._addresses
        if reaches_this_machine(plain):
            return host in self._names or plain in self._loopback or plain in self._addresses
        if is_link_local(plain):
            return plain in self._link_local
        return self._is_named(host) or plain in self._networks


def _not_allowed(host: str) -> InvalidError:
    # One message for all reasons: it must not tell which names there are in the network of the service.
    return InvalidError(
        f"callbackUrl: {host} cannot be resolved, or pushes to it are not allowed; an operator can add it to"
        " BLOCKLIST_CALLBACK_HOSTS."
    )


def _is_network(entry: str) -> bool:
    return "/" in entry or ":" in entry or entry.replace(".", "").isdigit()


def _host_and_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return (parts.hostname or "").lower(), parts.port or (443 if parts.scheme == "https" else 80)


def _address_in(host: str) -> str | None:
    """The address that a host is written as, in any form that a resolver takes (`0x7f.1`); None for a name."""
    try:
        return str(ip_address(host))
    except ValueError:
        pass
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except (OSError, UnicodeError):
        return None


# Looking up names that callers send.

LOOKUP_SECONDS: Final = 2.0
"""Time for looking up a name, together with the wait for an earlier lookup of the same principal."""
MAX_LOOKUPS: Final = 16
"""Maximum number of names that are looked up at once."""


class NameLookups:
    """Looks up names in threads of its own, one at a time for each principal. Belongs to the event loop.

    A name server that is silent holds a thread for half a minute. The threads of the event loop would not be enough for
    many such names: the database could not be reached, and no keys fetched.
    """

    def __init__(self) -> None:
        self._turns = WeakValueDictionary[str | None, asyncio.Lock]()
        self._running = 0

    async def addresses(self, host: str, port: int, principal: str | None) -> Sequence[str]:
        """The addresses of a host; none if it cannot be resolved. Raises UnavailableError."""
        turn = self._turns.setdefault(principal, asyncio.Lock())
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                await turn.acquire()
                return await asyncio.shield(self._start(host, port, turn))
        except TimeoutError:
            raise UnavailableError(
                f"callbackUrl: the name {host} could not be looked up within {LOOKUP_SECONDS:g} s; try again.",
                retry_after=5,
            ) from None

    def _start(self, host: str, port: int, turn: asyncio.Lock) -> asyncio.Future[Sequence[str]]:
        """Look up in a thread; the turn ends with it, not with the wait for it."""
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Sequence[str]] = loop.create_future()
        if self._running >= MAX_LOOKUPS:
            turn.release()
            raise UnavailableError("callbackUrl: too many names are being looked up; try again.", retry_after=5)

        def done(addresses: Sequence[str]) -> None:
            self._running -= 1
            turn.release()
            if not found.done():
                found.set_result(addresses)

        def look_up() -> None:
            addresses = _look_up(host, port)
            if not loop.is_closed():
                loop.call_soon_threadsafe(partial(done, addresses))

        self._running += 1
        # A daemon: the process must not wait for a name server at its end.
        Thread(target=look_up, name="look up a name", daemon=True).start()
        return found


def _look_up(host: str, port: int) -> Sequence[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
