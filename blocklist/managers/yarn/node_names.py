"""Which hosts of YARN the ids on the list mean. Pure, except for a look-up that the caller hands in."""

from __future__ import annotations

import logging
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from blocklist.managers.command import Stopping
from blocklist.managers.plan import NO_OTHER_NAMES, OtherNames, meant_otherwise, merged_block
from blocklist.model.names import NameSet, normalize_address, normalize_name
from blocklist.model.node import BlockedNode

log = logging.getLogger("blocklist.managers")

NamesOf = Callable[[str], Collection[str]]
"""The host names of an address in its shortest form, as the resolver of this machine knows them.

Raises UnresolvedError if it does not know at the moment.
"""


class UnresolvedError(Exception):
    """The names of an address are not known.

    `since_start`: they were needed when this process started, so a former one may have marked a node for the address.
    """

    def __init__(self, address: str, *, since_start: bool) -> None:
        super().__init__(
            f"Not known to be in force: the resolver does not answer for address {address}. Repair it, or block the"
            " node by its name instead."
        )
        self.address = address
        self.since_start = since_start


@dataclass(frozen=True, kw_only=True, slots=True)
class Blocks:
    """The blocked hosts: `by_host` has one block for each, `ids` the ids on the list that mean it.

    `unmatched` are the ids that mean no host of YARN, `refused` those that may mean several, `pending` those of which
    that is not known. While there are `unresolved` ids no host may be freed: it may be the one that such an id means.
    """

    by_host: Mapping[str, BlockedNode] = field(default_factory=dict)
    ids: Mapping[str, Sequence[str]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    pending: Mapping[str, str] = field(default_factory=dict)
    unmatched: Collection[str] = ()
    unresolved: Sequence[str] = ()


def resolve(
    blocked: Mapping[str, BlockedNode],
    hosts: Iterable[str],
    names_of: NamesOf,
    others: OtherNames = NO_OTHER_NAMES,
) -> Blocks:
    """Match ids with hosts: in any case, short or full; an address also by the names that it has in the network.

    Such a name means the host that has it, or whose name is its first label; not all hosts of which it is the first.
    An id that means none by itself means the hosts that have one of the `others` of it.
    """
    matcher = _HostNames(hosts, names_of)
    ids: defaultdict[str, list[str]] = defaultdict(list)
    unmatched: set[str] = set()
    refused: dict[str, str] = {}
    pending: dict[str, str] = {}
    unresolved = []
    for node_id in sorted(blocked):
        try:
            found, ambiguity = matcher.hosts_of(node_id, others.of(node_id))
        except UnresolvedError as error:
            pending[node_id] = str(error)
            unresolved += [node_id] if error.since_start else []
            continue
        for host in found:
            ids[host].append(node_id)
        if ambiguity is not None:
            refused[node_id] = ambiguity
        elif not found:
            unmatched.add(node_id)
    return Blocks(
        by_host={host: merged_block(host, (blocked[node_id] for node_id in its)) for host, its in ids.items()},
        ids=dict(ids),
        refused=refused,
        pending=pending,
        unmatched=unmatched,
        unresolved=[*unresolved, *others.unresolved(unmatched)],
    )


class _HostNames:
    """The hosts by their names, and by those of their addresses that were looked up."""

    def __init__(self, hosts: Iterable[str], names_of: NamesOf) -> None:
        self._names_of = names_of
        self._looked_up: dict[str, Collection[str]] = {}
        self._index = NameSet(hosts, lambda name: self._looked_up.get(name, ()))

    def hosts_of(self, node_id: str, others: Collection[str]) -> tuple[set[str], str | None]:
        """The hosts that an id means; if none, why not, if one of its `others` is a name of several.

        Raises UnresolvedError, if that would decide.
        """
        result = self._known(node_id, others)
        if any(result):
            return result
        self._look_up(node_id)
        unresolved = None
        for name in others:
            try:
                self._look_up(name)
            except UnresolvedError as error:
                # Nodes of other clusters have addresses too: for these, no host of this one is withheld.
                unresolved = UnresolvedError(error.address, since_start=False)
        result = self._known(node_id, others)
        if unresolved is not None and not any(result):
            raise unresolved
        return result

    def _look_up(self, name: str) -> None:
        if (address := normalize_address(name)) is not None:
            self._looked_up[name] = {normalize_name(each) for each in self._names_of(address)}

    def _known(self, node_id: str, others: Collection[str]) -> tuple[set[str], str | None]:
        if found := set(self._index.matching(node_id)):
            return found, None
        return meant_otherwise(others, lambda name: {*self._index.matching(name)})


# The host names of addresses, from the resolver of this machine, which may be slow.

_LOOK_UP_SECONDS: Final = 3.0
"""For all look-ups of one plan."""
_KEPT_SECONDS: Final = 300.0
_RETRY_SECONDS: Final = 30.0
"""After a look-up that failed: meanwhile others have their turn."""
_HOST_NOT_FOUND: Final = 1
_NO_DATA: Final = 4


@dataclass(slots=True)
class _Known:
    """`names` is None until a look-up has succeeded. `since_start`: asked for by the first plan."""

    since_start: bool
    names: Collection[str] | None = None
    next_look_up: float = 0.0


class AddressNames:
    """Remembers what it has looked up, and asks again after some minutes. A look-up that fails takes no name away.

    A name counts only if the address is one of its own: the reverse zone of an address is not always kept up. Memory is
    bounded by the list: an address that a plan does not ask for is forgotten. `looked_up`: this plan has waited for the
    resolver.
    """

    def __init__(self, stop: Stopping, look_up: Callable[[str], Collection[str]] | None = None) -> None:
        self._stop = stop
        self._look_up = look_up or confirmed_names
        self._known: dict[str, _Known] = {}
        self._asked: set[str] = set()
        self._plans = 0
        self.looked_up = False
        self._deadline = 0.0

    def begin(self) -> None:
        """Begin a plan: allow look-ups for _LOOK_UP_SECONDS from now."""
        self._known = {address: known for address, known in self._known.items() if address in self._asked}
        self._asked.clear()
        self._plans += 1
        self.looked_up = False
        self._deadline = time.monotonic() + _LOOK_UP_SECONDS

    def __call__(self, address: str) -> Collection[str]:
        """Its names; none if it has none. Raises UnresolvedError if that is not known, and StoppedError."""
        self._asked.add(address)
        known = self._known.setdefault(address, _Known(since_start=self._plans == 1))
        now = time.monotonic()
        if known.next_look_up <= now < self._deadline:
            self._refresh(address, known, now)
        if known.names is None:
            raise UnresolvedError(address, since_start=known.since_start)
        return known.names

    def _refresh(self, address: str, known: _Known, now: float) -> None:
        self.looked_up = True
        try:
            names = self._stop.call(lambda: self._look_up(address), self._deadline - now)
        except (OSError, UnicodeError) as error:
            log.debug("The names of address %s are not known: %s", address, error)
            known.next_look_up = now + _RETRY_SECONDS
        else:
            # A resolver that is out of order may also answer that there are none.
            known.names = names or known.names or ()
            known.next_look_up = now + _KEPT_SECONDS


def confirmed_names(address: str) -> Collection[str]:
    """The names of an address that lead back to it. Raises OSError if the resolver does not know at the moment."""
    try:
        name, aliases, _ = socket.gethostbyaddr(address)
    except socket.herror as error:
        if error.errno in {_HOST_NOT_FOUND, _NO_DATA}:
            return ()
        raise
    return [each for each in (name, *aliases) if address in _addresses(each)]


def _addresses(name: str) -> Collection[object]:
    try:
        return {found[4][0] for found in socket.getaddrinfo(name, None)}
    except UnicodeError:
        return ()
    except socket.gaierror as error:
        if error.errno in {socket.EAI_NONAME, socket.EAI_NODATA, socket.EAI_ADDRFAMILY}:
            return ()
        raise
