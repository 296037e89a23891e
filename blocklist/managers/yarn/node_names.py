"""Which hosts of YARN the ids on the list mean. Pure, except for a look-up that the caller hands in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from blocklist.managers.plan import merged_block
from blocklist.model.host_matching import NameIndex, normalize_address, normalize_name
from blocklist.model.node import BlockedNode

NamesOf = Callable[[str], Collection[str]]
"""The host names of an address in its shortest form, as the resolver of this machine knows them.

Raises UnresolvedError if it does not know at the moment.
"""


class UnresolvedError(Exception):
    """The names of an address are not known.

    `since_start`: they were needed when this process started, so a former one may have marked a node for the address.
    """

    def __init__(self, address: str, *, since_start: bool) -> None:
        super().__init__(f"Not known to be in force: the resolver does not answer for address {address}.")
        self.since_start = since_start


@dataclass(frozen=True, kw_only=True, slots=True)
class Blocks:
    """The blocked hosts: `by_host` has one block for each, `ids` the ids on the list that mean it.

    `unknown` has the ids that mean no host of YARN, or of which that is not known, with a sentence. While there are
    `unresolved` addresses no host may be freed: it may be the one that such an address means.
    """

    by_host: Mapping[str, BlockedNode] = field(default_factory=dict)
    ids: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    unresolved: Sequence[str] = ()


def resolve(blocked: Mapping[str, BlockedNode], hosts: Iterable[str], names_of: NamesOf) -> Blocks:
    """Match ids with hosts: in any case, short or full; an address also by the names that it has in the network.

    Such a name means the host that has it, or whose name is its first label; not all hosts of which it is the first.
    """
    looked_up: dict[str, Collection[str]] = {}
    index = NameIndex(hosts, lambda name: looked_up.get(name, ()))
    ids: defaultdict[str, list[str]] = defaultdict(list)
    unknown = {}
    unresolved = []
    for node_id in sorted(blocked):
        found = set(index.matching(node_id))
        address = normalize_address(node_id)
        if not found and address is not None:
            try:
                looked_up[node_id] = {normalize_name(name) for name in names_of(address)}
            except UnresolvedError as error:
                unknown[node_id] = str(error)
                unresolved += [node_id] if error.since_start else []
                continue
            found = set(index.matching(node_id))
        for host in found:
            ids[host].append(node_id)
        if not found:
            unknown[node_id] = f"YARN has no node {node_id}."
    merged = {host: merged_block(host, (blocked[node_id] for node_id in its)) for host, its in ids.items()}
    return Blocks(by_host=merged, ids=dict(ids), unknown=unknown, unresolved=unresolved)


def withheld_message(hosts: Sequence[str], unresolved: Sequence[str]) -> str:
    """Why these hosts, which no name on the list means, are not freed."""
    return (
        f"Node {hosts[0]} is not freed, nor any other: it may be the one that {unresolved[0]} on the list means, for"
        " which the resolver of this machine does not answer. Repair it, or block the node by its name instead."
    )
