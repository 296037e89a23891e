"""Whether names mean the same machine. Pure: the caller provides addresses; nothing is resolved.

Names are compared in any case, short or full, and addresses in any spelling. Everything that compares node ids or
hosts does it with these functions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from itertools import chain
from typing import NamedTuple


class NameIndex:
    """Names that change one by one, found under any name of the same machine."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._by_key: dict[str, set[str]] = {}
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        """Add a name, if it is not there."""
        for key in _keys(name).indexed:
            self._by_key.setdefault(key, set()).add(name)

    def discard(self, name: str) -> None:
        """Remove a name, if it is there."""
        for key in _keys(name).indexed:
            if (names := self._by_key.get(key)) is not None:
                names.discard(name)
                if not names:
                    del self._by_key[key]

    def matching(self, name: str) -> Iterator[str]:
        """The names that mean the same machine as this one, each once, equal names first; lazy, as they may be many."""
        by_key = self._by_key
        return chain.from_iterable(by_key.get(key, ()) for key in _keys(name).looked_up)


class HostMatcher:
    """Finds the hosts that a node id matches. An address that several hosts share is ambiguous, and not used."""

    def __init__(self, hosts: Iterable[str], addresses: Mapping[str, frozenset[str]]) -> None:
        self._addresses = addresses
        self._names = NameIndex()
        self._by_address: defaultdict[str, set[str]] = defaultdict(set)
        for host in hosts:
            self._names.add(host)
            for address in addresses_of(host, addresses):
                self._by_address[address].add(host)

    def hosts_of(self, node_id: str) -> set[str]:
        """The hosts with the id's name (in any case, short or full), or with one of its addresses."""
        hosts = set(self._names.matching(node_id))
        for address in addresses_of(node_id, self._addresses):
            claimed = self._by_address.get(address, set())
            if len(claimed) == 1:
                hosts |= claimed
        return hosts


def same_machine(name: str, other: str) -> bool:
    """Whether two names mean the same machine."""
    return not set(_keys(other).indexed).isdisjoint(_keys(name).looked_up)


def usual_spellings(name: str) -> tuple[set[str], set[str]]:
    """The names of the same machine in lower case, in upper case and as given; and the prefixes of its full names.

    For an index that compares exactly: a name in mixed case that was given otherwise is not among them.
    """
    keys = {*_keys(name).looked_up, *_lookup_keys(name)}
    spelled = keys | {key.upper() for key in keys} | {name}
    prefixes = {key for key in spelled if key.endswith(".")} - {name}
    return spelled - prefixes, prefixes


def normalize_name(name: str) -> str:
    """The name in lower case, without a final dot; an address in its shortest form."""
    return normalize_address(name) or name.lower().rstrip(".") or name


def addresses_of(name: str, addresses: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """The known addresses of a name; of an address, its shortest form."""
    address = normalize_address(name)
    return addresses.get(name.lower(), frozenset()) if address is None else frozenset((address,))


def normalize_address(name: str) -> str | None:
    """The shortest form of an IP address (IPv6 also in brackets, as Spark writes it); None for a name."""
    bare = name.strip("[]")
    # Fast path for names: every IPv4 address begins with a digit and has dots, every IPv6 address has a colon.
    if ":" not in bare and not (bare[:1].isdigit() and "." in bare):
        return None
    try:
        address = ip_address(bare)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


def host_key(name: str) -> str:
    """One key for the spellings of a node: the address in its shortest form, or the short name in lower case."""
    return normalize_address(name) or name.lower().partition(".")[0]


def possible_names(node_id: str, addresses: Mapping[str, frozenset[str]], named: Mapping[str, set[str]]) -> set[str]:
    """The names, in lower case, under which a host with this id may appear. `named` maps addresses to known names.

    A short name is included a second time with a trailing dot, as a prefix that matches every full name.
    """
    own = addresses_of(node_id, addresses)
    bracketed = {f"[{address}]" for address in own if ":" in address}
    aliases = (named.get(address, ()) for address in own)
    return {node_id.lower(), *_keys(node_id).looked_up}.union(own, bracketed, *aliases)


def names_by_address(addresses: Mapping[str, frozenset[str]]) -> dict[str, set[str]]:
    """The inverse map: address to names."""
    named: dict[str, set[str]] = {}
    for name, known in addresses.items():
        for address in known:
            named.setdefault(address, set()).add(name)
    return named


class _Keys(NamedTuple):
    """The keys under which a name is in an index, and those under which its machine is looked up."""

    indexed: tuple[str, ...]
    looked_up: tuple[str, ...]


@lru_cache(maxsize=16_384)
def _keys(name: str) -> _Keys:
    """Cached, because one change looks up and adds the same name in several indexes."""
    normal = normalize_name(name)
    return _Keys(_index_keys(normal), _lookup_keys(normal))


def _lookup_keys(name: str) -> tuple[str, ...]:
    """`n7` matches `n7` and every `n7.…`; `n7.example.com` matches itself and the short `n7`. The name itself first."""
    short, dot = _short_name(name)
    if not short:
        return (name,)
    return (name, short) if dot else (name, f"{name}.")


def _index_keys(name: str) -> tuple[str, ...]:
    short, dot = _short_name(name)
    return (name, f"{short}.") if short and dot else (name,)


def _short_name(name: str) -> tuple[str, str]:
    """The first label, and a dot if there are more. Empty for addresses, and for a number, which begins addresses."""
    short, dot, _ = name.partition(".")
    is_address = short.isdigit() or (":" in name and normalize_address(name) is not None)
    return ("", "") if is_address else (short, dot)
