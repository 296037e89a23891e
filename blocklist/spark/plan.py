"""The plan: which hosts of a Spark application are to be blocked, which stay open, and why. Pure; told the time.

A blocked node means a host when their names say the same, when one is short and begins the other, or when they have
an address in common. At least `keep_hosts` hosts with a live executor stay open, whatever the list says: Spark aborts
a job within a second when all its hosts are excluded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from types import MappingProxyType
from typing import Final

from blocklist.model.host_matching import Matcher, by_address, coming_names
from blocklist.model.node import BlockAction, BlockedNode, merge

LAST: Final = "last"
STUCK: Final = "stuck"
"""Why a host had to be opened again: it was the last one, or a task that Spark kept from the others needs it."""
_SHORT: Final = 80


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """What the application has at one moment, hosts as Spark names them.

    `open` and `excluded` are the hosts with a live executor: not excluded, and excluded, by Spark itself. `blocked` is
    what was put in place by a plan before and is still there, with its end in Unix milliseconds; `opened` are hosts
    that had to be opened since, and why. `epoch` tells one moment from another.
    """

    epoch: int
    open: frozenset[str]
    excluded: frozenset[str] = frozenset()
    blocked: Mapping[str, int] = field(default_factory=dict)
    opened: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class HostBlock:
    """A host to be blocked. `node` is what the ids that mean this host say together; its id is the strongest one's."""

    host: str
    node: BlockedNode

    @property
    def evacuate(self) -> bool:
        return self.node.action is BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS

    @property
    def reason(self) -> str:
        until = "without end" if self.node.permanent else f"until {self.node.end}"
        return f"Host {self.host} is blocked as {self.node.id} {until} ({self.node.cause})."


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What to do. Every choice has its sentence: `blocks` in their `reason`, the others as values.

    `blocks` are hosts with a live executor, the weakest first: in that order they would be opened again. `names` are
    for hosts to come: a lower-case name, or a short one and a dot for each full name that it begins. `free` are hosts
    blocked by an earlier plan, `refused` ids of blocks that are not, or not everywhere, carried out. `known_as` is the
    id of each host that any block means, also where it stays open.
    """

    blocks: tuple[HostBlock, ...] = ()
    names: Mapping[str, BlockedNode] = field(default_factory=dict)
    free: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    known_as: Mapping[str, str] = field(default_factory=dict)

    @property
    def matched(self) -> dict[str, str]:
        """Host to the id it is blocked as."""
        return {block.host: block.node.id for block in self.blocks}

    @property
    def evacuate(self) -> frozenset[str]:
        return frozenset(block.host for block in self.blocks if block.evacuate)


def make_plan(
    nodes: Iterable[BlockedNode],
    cluster: Cluster,
    *,
    now: int,
    keep_hosts: int = 1,
    addresses: Mapping[str, frozenset[str]] = MappingProxyType({}),
    needed: frozenset[str] = frozenset(),
) -> Plan:
    """Decide. `addresses` are those known so far, by lower-case name; `needed` hosts stay open for a stuck task.

    Blocks that have ended at `now` count no more. Who stays open when not all hosts may be blocked: the weakest
    action first, then the oldest block.
    """
    present = [node for node in nodes if not node.ended(now)]
    matches = _matches(present, Matcher(cluster.open | cluster.excluded, addresses))
    blocks = sorted((_joined(host, found) for host, found in matches.items()), key=strength)
    left_open = _left_open(blocks, cluster, keep_hosts, needed)
    kept = tuple(block for block in blocks if block.host not in left_open)
    return Plan(
        blocks=kept,
        names=_names(present, addresses),
        free=_free(cluster, {block.host for block in kept}, left_open),
        refused=_refused(matches, left_open),
        known_as={block.host: block.node.id for block in blocks},
    )


def strength(block: HostBlock) -> tuple[int, int, str]:
    """Sort key: what is to be given up first comes first."""
    return block.node.action, block.node.start, block.host


def _matches(nodes: Iterable[BlockedNode], matcher: Matcher) -> dict[str, list[BlockedNode]]:
    matches: dict[str, list[BlockedNode]] = {}
    for node in sorted(nodes, key=lambda node: node.id):
        for host in sorted(matcher.hosts_of(node.id)):
            matches.setdefault(host, []).append(node)
    return matches


def _joined(host: str, nodes: Iterable[BlockedNode]) -> HostBlock:
    """Several ids may mean one host: the stronger action, the later end, as if it were one node."""
    strongest_first = sorted(nodes, key=lambda node: (-node.action, -node.end, node.id))
    first = strongest_first[0]
    return HostBlock(host=host, node=reduce(lambda a, b: merge(a, replace(b, id=a.id)), strongest_first, first))


def _left_open(
    blocks: Iterable[HostBlock], cluster: Cluster, keep_hosts: int, needed: frozenset[str]
) -> dict[str, str]:
    """Host to the sentence why it is not blocked."""
    open_blocks = [block for block in blocks if block.host in cluster.open]
    sentences = {block.host: _stuck(block) for block in open_blocks if block.host in needed}
    missing = keep_hosts - (len(cluster.open) - len(open_blocks) + len(sentences))
    for block in open_blocks:
        if missing > 0 and block.host not in sentences:
            sentences[block.host] = _last(block, keep_hosts)
            missing -= 1
    return sentences


def _last(block: HostBlock, keep_hosts: int) -> str:
    hosts = "a host" if keep_hosts == 1 else f"{keep_hosts} hosts"
    return (
        f"Host {block.host} stays open although {block.node.id} is blocked ({_short(block)}): the job must keep"
        f" {hosts} with a live executor, and this is the weakest block."
    )


def _stuck(block: HostBlock) -> str:
    return (
        f"Host {block.host} stays open although {block.node.id} is blocked ({_short(block)}): a task that failed on"
        " other hosts can run nowhere else."
    )


def _short(block: HostBlock) -> str:
    """The cause, short enough for the service to take the whole sentence."""
    cause = block.node.cause
    return cause if len(cause) <= _SHORT else f"{cause[: _SHORT - 1]}…"


def _refused(matches: Mapping[str, Iterable[BlockedNode]], left_open: Mapping[str, str]) -> dict[str, str]:
    return {node.id: sentence for host, sentence in left_open.items() for node in matches[host]}


def _free(cluster: Cluster, kept: Collection[str], left_open: Mapping[str, str]) -> dict[str, str]:
    live = cluster.open | cluster.excluded

    def reason(host: str) -> str:
        gone = f"Host {host} has no executor any more."
        return left_open.get(host) or (f"Host {host} is blocked no more." if host in live else gone)

    return {host: reason(host) for host in sorted(cluster.blocked.keys() - set(kept))}


def _names(nodes: Iterable[BlockedNode], addresses: Mapping[str, frozenset[str]]) -> dict[str, BlockedNode]:
    names: dict[str, BlockedNode] = {}
    named = by_address(addresses)
    for node in nodes:
        for name in coming_names(node.id, addresses, named):
            before = names.get(name)
            names[name] = node if before is None else _joined(name, [before, node]).node
    return names
