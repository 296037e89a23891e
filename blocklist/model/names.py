"""Whether names mean the same machine. Pure: the caller provides addresses and aliases; nothing is resolved.

Names are compared in any case, short or full, and addresses in any spelling. `Aliases` adds what else is known about a
machine: in the service, the inventory's names and addresses. Everything that compares node ids or hosts does it with
these functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from itertools import chain, islice
from typing import Final, NamedTuple

Aliases = Callable[[str], Collection[str]]
"""The other names and addresses, in normal form, of the machine with a name; none if it is not known, or ambiguous."""

MachineOf = Callable[[str], str]
"""One name for all names of a machine, in normal form; a name that is not known, or is ambiguous, is its own."""

_ZONE: Final = "(?:%[A-Za-z0-9._-]{1,16})?"
"""The name of a network interface, which `ipaddress` would take from any text."""
_ADDRESS: Final = re.compile(
    rf"\[(?P<bracketed>[0-9A-Fa-f:.]+){_ZONE}\](?::[0-9]{{1,5}})?"
    rf"|(?P<v4>[0-9.]+)(?::[0-9]{{1,5}})?"
    rf"|(?P<v6>[0-9A-Fa-f]*:[0-9A-Fa-f:.]*){_ZONE}",
    re.ASCII,
)
_NORMAL: Final = re.compile(r"[a-z](?:[a-z0-9_.-]*[a-z0-9_-])?")
"""Most names are in normal form already."""
_BYTE: Final = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_SHORTEST_V4: Final = re.compile(rf"{_BYTE}(?:\.{_BYTE}){{3}}")


MAX_NAMED: Final = 20
"""Of the nodes of an ambiguous name."""


def no_aliases(name: str) -> Collection[str]:  # noqa: ARG001
    """Aliases where nothing else is known about machines."""
    return ()


class NameSet:
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

    def full_names(self, label: str) -> Collection[str]:
        """The full names with this first label."""
        return self._by_key[f"{label}."]

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
        self._names = NameSet()
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
    keys = {*_keys(name).looked_up, *_keys_of(name).looked_up}
    spelled = keys | {key.upper() for key in keys} | {name}
    prefixes = {key for key in spelled if key.endswith(".")} - {name}
    return spelled - prefixes, prefixes


def normalize_name(name: str) -> str:
    """The name in lower case, without a final dot; an address in its shortest form."""
    if _NORMAL.fullmatch(name):
        return name
    normal = normalize_address(name) or name.lower().rstrip(".")
    # The same object, so that indexes keep no copy of it.
    return normal if normal and normal != name else name


def addresses_of(name: str, addresses: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """The known addresses of a name; of an address, its shortest form."""
    address = normalize_address(name)
    return addresses.get(name.lower(), frozenset()) if address is None else frozenset((address,))


def normalize_address(name: str) -> str | None:
    """The one form of an IP address, in which each spelling of it is kept and compared; None for a name.

    IPv6 may be in brackets, as Spark writes it, and have a zone, as Java does; an IPv4 address may be mapped into IPv6.
    A port is left out.
    """
    # Fast path for names: every IPv4 address begins with a digit and has dots, every IPv6 address has a colon.
    if ":" not in name and not (name[:1].isdigit() and "." in name):
        return None
    # Almost every address is written in its one form: to parse it costs ten times as much.
    return name if _SHORTEST_V4.fullmatch(name) else _shortest_form(name)


@lru_cache(maxsize=16_384)
def _shortest_form(text: str) -> str | None:
    """Cached, because a manager reports the same thousands of addresses again and again."""
    match = _ADDRESS.fullmatch(text)
    if match is None:
        return None
    try:
        address = ip_address(match["bracketed"] or match["v4"] or match["v6"])
    except ValueError:
        return None
    return str((isinstance(address, IPv6Address) and address.ipv4_mapped) or address)


def short_name(name: str) -> tuple[str, str]:
    """The first label of a name in normal form, and a dot if there are more labels.

    Empty for addresses, and for a number, which begins addresses.
    """
    short, dot, _ = name.partition(".")
    is_address = short.isdigit() or (":" in name and normalize_address(name) is not None)
    return ("", "") if is_address else (short, dot)


def ambiguous_message(name: str, node_ids: Collection[str]) -> str:
    """The message for a name or an address that several nodes claim."""
    return f"{name} means {len(node_ids)} nodes: {_first_of(node_ids)}. Give the id of one of them."


def several_message(name: str, node_ids: Collection[str]) -> str:
    """The message for a short name of several nodes, all of which a block of it blocks."""
    return f"{name} means {len(node_ids)} nodes, which are all blocked by it: {_first_of(node_ids)}."


def _first_of(node_ids: Collection[str]) -> str:
    """Some of the ids: in a header a thousand are more than a proxy takes."""
    more = len(node_ids) - MAX_NAMED
    return ", ".join([*islice(node_ids, MAX_NAMED), *([f"and {more} more"] if more > 0 else [])])


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
    return _keys_of(normalize_name(name))


def _keys_of(name: str) -> _Keys:
    """`n7` matches `n7` and every `n7.…`; `n7.example.com` matches itself and the short `n7`. The name itself first."""
    short, dot = short_name(name)
    if not short:
        return _Keys((name,), (name,))
    return _Keys((name, f"{short}."), (name, short)) if dot else _Keys((name,), (name, f"{name}."))


# Multimap: texts by key. Pure.


class Multimap:
    """Texts by key; a key without any is not there.

    Almost every key has one text: a set for each would take four times the memory.
    """

    def __init__(self) -> None:
        self._values: dict[str, str | set[str]] = {}
        self.with_several = 0
        """Number of keys that have several."""

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        """The keys, in the order in which they came."""
        return iter(self._values)

    def __getitem__(self, key: str) -> Collection[str]:
        """Those of a key, each once; none if the key is not there."""
        found = self._values.get(key, ())
        return (found,) if isinstance(found, str) else found

    def add(self, key: str, value: str) -> None:
        """Add a text to a key, if it is not there."""
        found = self._values.get(key)
        if found is None:
            self._values[key] = value
        elif isinstance(found, set):
            found.add(value)
        elif found != value:
            self._values[key] = {found, value}
            self.with_several += 1

    def discard(self, key: str, value: str) -> None:
        """Remove a text from a key, if it is there."""
        found = self._values.get(key)
        if isinstance(found, set):
            found.discard(value)
            if len(found) == 1:
                self._values[key] = found.pop()
                self.with_several -= 1
        elif found == value:
            del self._values[key]

    def move(self, value: str, before: AbstractSet[str], after: AbstractSet[str]) -> None:
        """Move a text from some keys to others."""
        for key in before - after:
            self.discard(key, value)
        for key in after - before:
            self.add(key, value)


# MachineSet: the machines that a changing set of names means. Pure.


class MachineSet:
    """The names that several sources use for machines, and how many machines they are.

    Names are kept in normal form. A short name is no further machine beside a full name of it. A name that is added
    twice stays until it is discarded twice. No operation takes longer because there are more names; the length is the
    number of machines.
    """

    def __init__(self, names: Iterable[str] = (), aliases: Aliases = no_aliases) -> None:
        self._aliases = aliases
        self._uses: dict[str, int] = {}
        # By first label.
        self._full = Multimap()
        self._machines = 0
        for name in names:
            self.add(name)

    def __len__(self) -> int:
        return self._machines

    def __contains__(self, name: object) -> bool:
        """Whether this very name, in normal form, is there."""
        return name in self._uses

    def __iter__(self) -> Iterator[str]:
        """The names, in no order."""
        return iter(self._uses)

    def add(self, name: str) -> bool:
        """Add a name for one more source; whether it was not there."""
        normal = normalize_name(name)
        count = self._uses.get(normal, 0)
        self._uses[normal] = count + 1
        if count:
            return False
        label, is_full = short_name(normal)
        self._machines += self._machines_by(label, is_full)
        if label and is_full:
            self._full.add(label, normal)
        return True

    def discard(self, name: str) -> None:
        """Remove a name for one of the sources that added it."""
        normal = normalize_name(name)
        count = self._uses.get(normal, 0)
        if count > 1:
            self._uses[normal] = count - 1
        elif count:
            del self._uses[normal]
            label, is_full = short_name(normal)
            self._full.discard(label, normal)
            self._machines -= self._machines_by(label, is_full)

    def matching(self, name: str) -> Iterator[str]:
        """The names that mean the same machine as this one, equal names first; lazy, as they may be many.

        Those that `aliases` knows for the machine come last.
        """
        normal = normalize_name(name)
        label, is_full = short_name(normal)
        equal = (normal,) if normal in self._uses else ()
        further = [alias for alias in self._aliases(name) if alias in self._uses]
        if is_full:
            equal = (*equal, label) if label in self._uses else equal
        full_names = () if is_full else self._full[label]
        return chain(equal, full_names, (name for name in further if name not in equal and name not in full_names))

    def matching_any(self, names: Collection[str]) -> Collection[str]:
        """At least the names that mean the same machine as one of these: all, if these are more.

        A start brings all names at once: a lookup of each would cost more than what is done for all of the set.
        """
        if len(names) > len(self._uses):
            return list(self._uses)
        return {own for name in names for own in self.matching(name)}

    @property
    def has_ambiguous(self) -> bool:
        """Whether a short name means several machines. Without aliases, each name means at most one if it does not."""
        return self._full.with_several > 0

    def count_matching(self, names: Iterable[str]) -> int:
        """The number of machines that these names mean."""
        given = set(map(normalize_name, names))
        given |= {alias for name in given for alias in self._aliases(name) if alias in self._uses}
        counted, short_names = 0, set[str]()
        for name in given:
            label, is_full = short_name(name)
            if not is_full:
                counted += len(self._full[label]) or name in self._uses
            elif label in given:
                continue  # Counted with its short name.
            elif name in self._uses:
                counted += 1
            elif label in self._uses and label not in self._full:
                short_names.add(label)
        return counted + len(short_names)

    def _machines_by(self, label: str, is_full: str) -> int:
        """How many machines more there are with a name, 0 or 1; no full name of the index may be this one."""
        if not label:
            return 1
        return int(label not in self._uses or label in self._full) if is_full else int(label not in self._full)


# ReportedMachines: how many machines several sources report, whatever names they use for them. Pure.


class ReportedMachines:
    """The machines that several sources report. The length is their number.

    All names that `machine_of` knows for one machine count once; call `machines_changed` when it knows others. A name
    that is added twice stays until it is discarded twice.
    """

    def __init__(self, names: Iterable[str] = (), machine_of: MachineOf = normalize_name) -> None:
        self._machine_of = machine_of
        self._names = MachineSet()
        self._counted = MachineSet()
        # The machine as which a name is counted, if that is not the name itself.
        self._machines: dict[str, str] = {}
        for name in names:
            self.add(name)

    def __len__(self) -> int:
        return len(self._counted)

    def add(self, name: str) -> None:
        """Add a name for one more source."""
        normal = normalize_name(name)
        if self._names.add(normal):
            self._count(normal)

    def discard(self, name: str) -> None:
        """Remove a name for one of the sources that added it."""
        normal = normalize_name(name)
        if normal not in self._names:
            return
        self._names.discard(normal)
        if normal not in self._names:
            self._counted.discard(self._machines.pop(normal, normal))

    def __contains__(self, name: str) -> bool:
        return self.count_matching([name]) > 0

    def may_exceed(self, count: int, maximum: int) -> bool:
        """Whether this number of names may mean more machines than the maximum. To count them takes 1 µs for each."""
        return count > maximum or self._counted.has_ambiguous

    def count_matching(self, names: Iterable[str]) -> int:
        """The number of machines that these names mean."""
        return self._counted.count_matching(map(self._machine_of, names))

    def machines_changed(self, names: Collection[str]) -> None:
        """These names, or short and full ones of them, may mean other machines now."""
        for own in self._names.matching_any(names):
            if self._machine_of(own) != (counted := self._machines.get(own, own)):
                self._machines.pop(own, None)
                self._counted.discard(counted)
                self._count(own)

    def _count(self, name: str) -> None:
        machine = self._machine_of(name)
        self._counted.add(machine)
        if machine != name:
            self._machines[name] = machine


# ConfirmedNodes: the nodes that listeners name, and which principals name each of them. Pure.


class ConfirmedNodes:
    """A node is confirmed if two principals name it: none can invent any, however many listeners it registers.

    Without authentication everybody is trusted: each listener is its own principal, and one that names a node is
    enough. With it, a listener without a principal does not count. The length is the number of confirmed nodes.

    The short name that one principal uses and a full name that another one uses confirm each other. As the short name
    may mean any of several machines, it confirms one node more, however many full names of it there are: otherwise one
    token could invent those. All names that `machine_of` knows for one machine confirm each other too; call
    `machines_changed` when it knows others.

    `names` are all nodes that listeners name, confirmed or not; `version` changes when other nodes are confirmed, and
    when a name means another machine. `known` are the nodes that count for limits: those that a trusted source reports
    and, with authentication, the confirmed ones.
    """

    def __init__(
        self, *, authenticated: bool, aliases: Aliases = no_aliases, machine_of: MachineOf = normalize_name
    ) -> None:
        self.names = MachineSet(aliases=aliases)
        self.version = 0
        self.known = ReportedMachines(machine_of=machine_of)
        self.authenticated = authenticated
        self._trusted: dict[str, frozenset[str]] = {}
        self._required = 2 if authenticated else 1
        self._principals: dict[str, str | None] = {}
        self._named: dict[str, frozenset[str]] = {}
        self._machine_of = machine_of
        # The machine under which a name is counted, if that is not the name itself.
        self._machines: dict[str, str] = {}
        self._naming = _PrincipalCounts()
        self._confirmed = MachineSet()

    def __len__(self) -> int:
        return len(self._confirmed)

    def add_listener(self, listener: str, principal: str | None) -> None:
        """Add a listener, or change its principal; it keeps the nodes that it names."""
        witness = principal if self.authenticated else listener
        if self._principals.get(listener) == witness:
            return
        named = self._named.get(listener, frozenset())
        self._withdraw(listener, named)
        self._principals[listener] = witness
        self._add(listener, named)

    def remove_listener(self, listener: str) -> None:
        self.set_nodes(listener, ())
        self._named.pop(listener)
        self._principals.pop(listener, None)

    def set_nodes(self, listener: str, names: Iterable[str]) -> None:
        """Replace the nodes that a listener names."""
        before, after = self._named.get(listener, frozenset()), frozenset(map(normalize_name, names))
        self._named[listener] = after
        self._withdraw(listener, before - after)
        for name in before - after:
            self.names.discard(name)
            self._store_machine(name)
        for name in after - before:
            self.names.add(name)
            self._store_machine(name)
        self._add(listener, after - before)

    def set_trusted(self, source: str, names: Iterable[str]) -> None:
        """Replace the nodes that a source reports which is believed alone: a manager, or the file of nodes."""
        before, after = self._trusted.pop(source, frozenset()), frozenset(map(normalize_name, names))
        if after:
            self._trusted[source] = after
        for name in after - before:
            self.known.add(name)
        for name in before - after:
            self.known.discard(name)

    def named_by(self, listener: str) -> frozenset[str]:
        """The nodes that a listener names, in normal form."""
        return self._named.get(listener, frozenset())

    def principal_of(self, listener: str) -> str | None:
        """The principal of a listener; None if unknown."""
        return self._principals.get(listener)

    def confirmed_name(self, name: str) -> str | None:
        """The name, in normal form, under which this machine is confirmed, the same for all names of it; else None."""
        return next(self._confirmed.matching(self._machine_of(name)), None)

    def one_name_each(self, names: frozenset[str]) -> frozenset[str]:
        """One of these names for each machine; others once `version` has changed."""
        by_machine = {self._machine_of(name): name for name in sorted(names)}
        return names if len(by_machine) == len(names) else frozenset(by_machine.values())

    def machines_changed(self, names: Collection[str]) -> None:
        """These names, or short and full ones of them, may mean other machines now."""
        self.known.machines_changed(names)
        for name in self.names.matching_any(names):
            before, after = self._machines.get(name, name), self._machine_of(name)
            if before != after:
                self._move(name, before, after)

    def _move(self, name: str, before: str, after: str) -> None:
        """Count a name for another machine."""
        self.version += 1
        for listener, named in self._named.items():
            principal = self._principals.get(listener)
            if principal is not None and name in named:
                self._count(before, principal, -1)
                self._count(after, principal, 1)
        self._store_machine(name)

    def _store_machine(self, name: str) -> None:
        """Remember under which machine a name is counted, as long as a listener names it."""
        machine = self._machine_of(name)
        if machine == name or name not in self.names:
            self._machines.pop(name, None)
        else:
            self._machines[name] = machine

    def _add(self, listener: str, names: Iterable[str]) -> None:
        principal = self._principals.get(listener)
        if principal is not None:
            for name in names:
                self._count(self._machines.get(name, name), principal, 1)

    def _withdraw(self, listener: str, names: Iterable[str]) -> None:
        principal = self._principals.get(listener)
        if principal is not None:
            for name in names:
                self._count(self._machines.get(name, name), principal, -1)

    def _count(self, name: str, principal: str, step: int) -> None:
        label, is_full = short_name(name)
        if self._naming.add(name, principal, step):
            self._update(name, f"{label}." if label and not is_full else None)
        if is_full and label and self._naming.add(f"{label}.", principal, step) and label in self._naming:
            self._update(label, f"{label}.")

    def _update(self, name: str, full_names: str | None) -> None:
        """Confirm a name, or no longer; for a short name, `full_names` is the key of all full names of it."""
        confirmed = self._naming.number(name, full_names) >= self._required
        if confirmed == (name in self._confirmed):
            return
        self.version += 1
        for found in (self._confirmed, self.known) if self.authenticated else (self._confirmed,):
            (found.add if confirmed else found.discard)(name)


class _PrincipalCounts:
    """For each key the principals that use it, and how many times each."""

    def __init__(self) -> None:
        # Almost every key has one principal that uses it once: a dict for each would take three times the memory.
        self._by_key: dict[str, str | dict[str, int]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._by_key

    def add(self, key: str, principal: str, step: int) -> bool:
        """Count `step` uses more; whether the principals of the key are others than before."""
        used = self._by_key.get(key)
        if used is None:
            self._by_key[key] = principal
            return True
        counts = {used: 1} if isinstance(used, str) else used
        before = len(counts)
        counts[principal] = counts.get(principal, 0) + step
        if not counts[principal]:
            del counts[principal]
        if not counts:
            del self._by_key[key]
        elif len(counts) == 1 and sum(counts.values()) == 1:
            self._by_key[key] = next(iter(counts))
        else:
            self._by_key[key] = counts
        return len(counts) != before

    def number(self, key: str, other: str | None) -> int:
        """Number of principals of a key; with those of another one, if the first has any."""
        used = self._by_key.get(key)
        if used is None:
            return 0
        more = None if other is None else self._by_key.get(other)
        if more is None:
            return 1 if isinstance(used, str) else len(used)
        return len(_principals(used) | _principals(more))


def _principals(counts: str | dict[str, int]) -> set[str]:
    return {counts} if isinstance(counts, str) else set(counts)
