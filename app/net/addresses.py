"""Networks, addresses of clients behind proxies, secure URLs, accepted values of Host, where pushes may go."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from threading import Thread
from typing import Final
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from blocklist.model.errors import BlocklistError, InvalidError, UnavailableError


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


# Where pushes may go: a registration must not reach hosts that its sender could not reach itself (SSRF).
#
# What a caller names is checked before it is looked up, and what was looked up is checked at each connection.


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
