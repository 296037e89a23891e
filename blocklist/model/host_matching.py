"""Whether a node id and a host are the same machine. Pure: the caller provides addresses; nothing is resolved."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from ipaddress import ip_address


class HostMatcher:
    """Finds the hosts that a node id matches. An address that several hosts share is ambiguous, and not used."""

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
        """The hosts with the id's name (in any case, short or full), or with one of its addresses."""
        hosts = set().union(*(self._by_name.get(name, ()) for name in _lookup_keys(node_id.lower())))
        for address in addresses_of(node_id, self._addresses):
            claimed = self._by_address.get(address, set())
            if len(claimed) == 1:
                hosts |= claimed
        return hosts


def addresses_of(name: str, addresses: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """The known addresses of a name; of an address, its shortest form."""
    address = normalize_address(name)
    return addresses.get(name.lower(), frozenset()) if address is None else frozenset((address,))


def normalize_address(name: str) -> str | None:
    """The shortest form of an IP address (IPv6 also in brackets, as Spark writes it); None for a name."""
    bare = name.strip("[]")
    # Fast path for names: every IPv4 address begins with a digit, every IPv6 address has a colon.
    if not (bare[:1].isdigit() or ":" in bare):
        return None
    try:
        return str(ip_address(bare))
    except ValueError:
        return None


def host_key(name: str) -> str:
    """One key for the spellings of a node: the address in its shortest form, or the short name in lower case."""
    return normalize_address(name) or name.lower().partition(".")[0]


def possible_names(node_id: str, addresses: Mapping[str, frozenset[str]], named: Mapping[str, set[str]]) -> set[str]:
    """The names, in lower case, under which a host with this id may appear. `named` maps addresses to known names.

    A short name is included a second time with a trailing dot, as a prefix that matches every full name.
    """
    own = addresses_of(node_id, addresses)
    bracketed = {f"[{address}]" for address in own if ":" in address}
    return _lookup_keys(node_id.lower()).union(own, bracketed, *(named.get(address, ()) for address in own))


def names_by_address(addresses: Mapping[str, frozenset[str]]) -> dict[str, set[str]]:
    """The inverse map: address to names."""
    named: dict[str, set[str]] = {}
    for name, known in addresses.items():
        for address in known:
            named.setdefault(address, set()).add(name)
    return named


def _lookup_keys(name: str) -> set[str]:
    """`n7` matches `n7` and every `n7.…`; `n7.example.com` matches itself and the short `n7`."""
    if normalize_address(name) is not None:
        return {name}
    short, dot, _ = name.partition(".")
    if dot:
        return {name, short}
    # A number would also be a prefix of addresses.
    return {name} if name.isdigit() else {name, f"{name}."}


def _index_keys(name: str) -> set[str]:
    short, dot, _ = name.partition(".")
    return {name, f"{short}."} if dot and normalize_address(name) is None else {name}
