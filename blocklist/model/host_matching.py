"""Whether names mean the same machine. Pure: the caller provides addresses and aliases; nothing is resolved.

Names are compared in any case, short or full, and addresses in any spelling. `Aliases` adds what else is known about a
machine: in the service, the inventory's names and addresses. Everything that compares node ids or hosts does it with
these functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from itertools import chain
from typing import Final, NamedTuple

from blocklist.model.multimap import Multimap

Aliases = Callable[[str], Collection[str]]
"""The other names and addresses, in normal form, of the machine with a name; none if it is not known, or ambiguous."""

MachineOf = Callable[[str], str]
"""One name for all names of a machine, in normal form; a name that is not known, or is ambiguous, is its own."""

_ZONE: Final = re.compile("[A-Za-z0-9._-]{1,16}")
"""The name of a network interface."""


def no_aliases(name: str) -> Collection[str]:  # noqa: ARG001
    """Aliases where nothing else is known about machines."""
    return ()


class NameIndex:
    """Names that change one by one, found under any name of the same machine.

    What `aliases` knows counts at the time of the question: the index itself does not depend on it.
    """

    def __init__(self, names: Iterable[str] = (), aliases: Aliases = no_aliases) -> None:
        self._aliases = aliases
        self._by_key = Multimap()
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        """Add a name, if it is not there."""
        for key in _keys(name).indexed:
            self._by_key.add(key, name)

    def discard(self, name: str) -> None:
        """Remove a name, if it is there."""
        for key in _keys(name).indexed:
            self._by_key.discard(key, name)

    def matching(self, name: str) -> Iterator[str]:
        """The names that mean the same machine as this one, each once; lazy, as they may be many.

        Equal names come first, then short and full ones, then aliases.
        """
        by_name = chain.from_iterable(map(self._by_key.__getitem__, _keys(name).looked_up))
        aliases = self._aliases(name)
        return chain(by_name, self._matching_aliases(name, aliases)) if aliases else by_name

    def _matching_aliases(self, name: str, aliases: Iterable[str]) -> Iterator[str]:
        found = {match for alias in aliases for match in self._same_or_short(alias)}
        return (match for match in sorted(found) if not same_machine(match, name))

    def _same_or_short(self, alias: str) -> Iterator[str]:
        """Not its full names: they may be those of other machines."""
        names = chain.from_iterable(map(self._by_key.__getitem__, _keys(alias).looked_up))
        return (name for name in names if (normal := normalize_name(name)) == alias or not short_name(normal)[1])


class HostMatcher:
    """Finds the hosts that a node id matches. An address that several hosts share is ambiguous, and not used."""

    def __init__(self, hosts: Iterable[str], addresses: Mapping[str, frozenset[str]]) -> None:
        self._addresses = addresses
        self._names = NameIndex()
        self._by_address = Multimap()
        for host in hosts:
            self._names.add(host)
            for address in addresses_of(host, addresses):
                self._by_address.add(address, host)

    def hosts_of(self, node_id: str) -> set[str]:
        """The hosts with the id's name (in any case, short or full), or with one of its addresses."""
        hosts = set(self._names.matching(node_id))
        for address in addresses_of(node_id, self._addresses):
            claimed = self._by_address[address]
            if len(claimed) == 1:
                hosts.update(claimed)
        return hosts


def same_machine(name: str, other: str, aliases: Aliases = no_aliases) -> bool:
    """Whether two names mean the same machine."""
    same_name = not set(_keys(other).indexed).isdisjoint(_keys(name).looked_up)
    return same_name or normalize_name(other) in aliases(name)


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
    normal = normalize_address(name) or name.lower().rstrip(".")
    # The same object, so that indexes keep no copy of it.
    return normal if normal and normal != name else name


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
    return _shortest_form(bare)


@lru_cache(maxsize=16_384)
def _shortest_form(bare: str) -> str | None:
    """Cached, because a manager reports the same thousands of addresses again and again."""
    try:
        address = ip_address(bare)
    except ValueError:
        return None
    if not isinstance(address, IPv6Address):
        return str(address)
    # `ipaddress` takes any text as a zone, also line ends.
    if address.scope_id is not None and _ZONE.fullmatch(address.scope_id) is None:
        return None
    return str(address.ipv4_mapped or address)


def short_name(name: str) -> tuple[str, str]:
    """The first label of a name in normal form, and a dot if there are more labels.

    Empty for addresses, and for a number, which begins addresses.
    """
    short, dot, _ = name.partition(".")
    is_address = short.isdigit() or (":" in name and normalize_address(name) is not None)
    return ("", "") if is_address else (short, dot)


def ambiguous_message(name: str, node_ids: Collection[str]) -> str:
    """The message for a name or an address that several nodes claim."""
    return f"{name} means {len(node_ids)} nodes: {', '.join(node_ids)}. Give the id of one of them."


def first_label(name: str) -> str:
    """The first label of a name in lower case, which all names of a machine share; an address in its shortest form."""
    normal = normalize_name(name)
    return short_name(normal)[0] or normal


def machine_keys(name: str, aliases: Aliases = no_aliases) -> set[str]:
    """The keys, in normal form, under which a host of this machine is found by its name, or the prefix of it.

    A short name is included a second time with a trailing dot: the prefix of all full names that begin so. A further
    name is no such prefix, as the full names may be those of other machines; its first label is included if it means
    this machine only.
    """
    further = aliases(name)
    labels = {alias: short_name(alias) for alias in further}
    return {
        *_keys(name).looked_up,
        *further,
        *(label for alias, (label, is_full) in labels.items() if label and is_full and alias in aliases(label)),
    }


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
    short, dot = short_name(name)
    if not short:
        return (name,)
    return (name, short) if dot else (name, f"{name}.")


def _index_keys(name: str) -> tuple[str, ...]:
    short, dot = short_name(name)
    return (name, f"{short}.") if short and dot else (name,)
