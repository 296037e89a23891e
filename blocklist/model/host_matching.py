"""When a node id and a host are the same machine. Pure: addresses are handed in, nobody is asked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from ipaddress import ip_address


class HostMatcher:
    """Finds the hosts that an id means. An address that several hosts claim says nothing, and is not used."""

    def __init__(self, hosts: Iterable[str], addresses: Mapping[str, frozenset[str]]) -> None:
        self._addresses = addresses
        self._by_name: defaultdict[str, set[str]] = defaultdict(set)
        self._by_address: defaultdict[str, set[str]] = defaultdict(set)
        for host in hosts:
            for name in _index_keys(host.lower()):
                self._by_name[name].add(host)
            for address in addresses_of(host, addresses):
                self._by_address[address].add(host)

    def hosts_of(self, node_id: str) -> set[str]:
        """The hosts with this id's name, in any case, short or full, or with an address of it."""
        hosts = set().union(*(self._by_name.get(name, ()) for name in _lookup_keys(node_id.lower())))
        for address in addresses_of(node_id, self._addresses):
            claimed = self._by_address.get(address, set())
            if len(claimed) == 1:
                hosts |= claimed
        return hosts


def addresses_of(name: str, addresses: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """The addresses known for a name; an address is its own, in its shortest form."""
    address = normalize_address(name)
    return addresses.get(name.lower(), frozenset()) if address is None else frozenset((address,))


def normalize_address(name: str) -> str | None:
    """The shortest form of an IP address (IPv6 also in brackets, as Spark writes it); None for a name."""
    bare = name.strip("[]")
    # Most names at once: all addresses of version 4 begin with a digit, all of version 6 have a colon.
    if not (bare[:1].isdigit() or ":" in bare):
        return None
    try:
        return str(ip_address(bare))
    except ValueError:
        return None


def possible_names(node_id: str, addresses: Mapping[str, frozenset[str]], named: Mapping[str, set[str]]) -> set[str]:
    """The names that a host of this id may turn up with, in lower case. `named` are the names known by address.

    A short name is there once more with a dot behind it, which stands for every full name that it begins.
    """
    own = addresses_of(node_id, addresses)
    bracketed = {f"[{address}]" for address in own if ":" in address}
    return _lookup_keys(node_id.lower()).union(own, bracketed, *(named.get(address, ()) for address in own))


def names_by_address(addresses: Mapping[str, frozenset[str]]) -> dict[str, set[str]]:
    """The map turned around: address to names."""
    named: dict[str, set[str]] = {}
    for name, known in addresses.items():
        for address in known:
            named.setdefault(address, set()).add(name)
    return named


def _lookup_keys(name: str) -> set[str]:
    """`n7` asks for `n7` and all `n7.…`; `n7.example.com` for itself and for the short `n7`."""
    if normalize_address(name) is not None:
        return {name}
    short, dot, _ = name.partition(".")
    if dot:
        return {name, short}
    # A number would begin addresses, too.
    return {name} if name.isdigit() else {name, f"{name}."}


def _index_keys(name: str) -> set[str]:
    short, dot, _ = name.partition(".")
    return {name, f"{short}."} if dot and normalize_address(name) is None else {name}
