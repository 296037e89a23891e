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

from blocklist.model.host_matching import HostMatcher, names_by_address, possible_names
from blocklist.model.node import BlockAction, BlockedNode, merge

LAST_HOST: Final = "last"
STUCK_TASK: Final = "stuck"
"""Why a host had to be opened again: it was the last one, or a task that Spark kept from the others needs it."""
MAX_CAUSE: Final = 80


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterState:
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
class ExclusionPlan:
    """What to do. Every choice has its sentence: `blocks` in their `reason`, the others as values.

    `blocks` are hosts with a live executor, the weakest first: in that order they would be opened again. `names` are
    for hosts to come: a lower-case name, or a short one and a dot for each full name that it begins. `free` are hosts
    blocked by an earlier plan, `refused` ids of blocks that are not, or not everywhere, carried out. `known_as` is the
    id of each host that any block means, also where it stays open.
    """

    blocks: tuple[HostBlock, ...] = ()
    names: Mapping[str, BlockedNode] = field(default_factory=dict)
    freed: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    node_ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def blocked_as(self) -> dict[str, str]:
        """Host to the id it is blocked as."""
        return {block.host: block.node.id for block in self.blocks}

    @property
    def evacuate(self) -> frozenset[str]:
        return frozenset(block.host for block in self.blocks if block.evacuate)


def make_plan(
    nodes: Iterable[BlockedNode],
    cluster: ClusterState,
    *,
    now: int,
    keep_hosts: int = 1,
    addresses: Mapping[str, frozenset[str]] = MappingProxyType({}),
    required: frozenset[str] = frozenset(),
) -> ExclusionPlan:
    """Decide. `addresses` are those known so far, by lower-case name; `required` hosts stay open for a stuck task.

    Blocks that have ended at `now` count no more. Who stays open when not all hosts may be blocked: the weakest
    action first, then the oldest block.
    """
    current = [node for node in nodes if not node.ended(now)]
    matches = _matches(current, HostMatcher(cluster.open | cluster.excluded, addresses))
    blocks = sorted((_merged(host, found) for host, found in matches.items()), key=block_strength)
    left_open = _choose_open(blocks, cluster, keep_hosts, required)
    kept = tuple(block for block in blocks if block.host not in left_open)
    return ExclusionPlan(
        blocks=kept,
        names=_future_names(current, addresses),
        freed=_freed(cluster, {block.host for block in kept}, left_open),
        refused=_refused(matches, left_open),
        node_ids={block.host: block.node.id for block in blocks},
    )


def block_strength(block: HostBlock) -> tuple[int, int, str]:
    """Sort key: what is to be given up first comes first."""
    return block.node.action, block.node.start, block.host


def _matches(nodes: Iterable[BlockedNode], matcher: HostMatcher) -> dict[str, list[BlockedNode]]:
    matches: dict[str, list[BlockedNode]] = {}
    for node in sorted(nodes, key=lambda node: node.id):
        for host in sorted(matcher.hosts_of(node.id)):
            matches.setdefault(host, []).append(node)
    return matches


def _merged(host: str, nodes: Iterable[BlockedNode]) -> HostBlock:
    """Several ids may mean one host: the stronger action, the later end, as if it were one node."""
    strongest_first = sorted(nodes, key=lambda node: (-node.action, -node.end, node.id))
    first = strongest_first[0]
    return HostBlock(host=host, node=reduce(lambda a, b: merge(a, replace(b, id=a.id)), strongest_first, first))


def _choose_open(
    blocks: Iterable[HostBlock], cluster: ClusterState, keep_hosts: int, required: frozenset[str]
) -> dict[str, str]:
    """Host to the sentence why it is not blocked."""
    open_blocks = [block for block in blocks if block.host in cluster.open]
    sentences = {block.host: _stuck_task_reason(block) for block in open_blocks if block.host in required}
    missing = keep_hosts - (len(cluster.open) - len(open_blocks) + len(sentences))
    for block in open_blocks:
        if missing > 0 and block.host not in sentences:
            sentences[block.host] = _last_host_reason(block, keep_hosts)
            missing -= 1
    return sentences


def _last_host_reason(block: HostBlock, keep_hosts: int) -> str:
    hosts = "a host" if keep_hosts == 1 else f"{keep_hosts} hosts"
    return (
        f"Host {block.host} stays open although {block.node.id} is blocked ({_truncated_cause(block)}): the job must"
        f" keep {hosts} with a live executor, and this is the weakest block."
    )


def _stuck_task_reason(block: HostBlock) -> str:
    return (
        f"Host {block.host} stays open although {block.node.id} is blocked ({_truncated_cause(block)}): a task that"
        " failed on other hosts can run nowhere else."
    )


def _truncated_cause(block: HostBlock) -> str:
    """The cause, short enough for the service to take the whole sentence."""
    cause = block.node.cause
    return cause if len(cause) <= MAX_CAUSE else f"{cause[: MAX_CAUSE - 1]}…"


def _refused(matches: Mapping[str, Iterable[BlockedNode]], left_open: Mapping[str, str]) -> dict[str, str]:
    return {node.id: sentence for host, sentence in left_open.items() for node in matches[host]}


def _freed(cluster: ClusterState, kept: Collection[str], left_open: Mapping[str, str]) -> dict[str, str]:
    live = cluster.open | cluster.excluded

    def reason(host: str) -> str:
        gone = f"Host {host} has no executor any more."
        return left_open.get(host) or (f"Host {host} is blocked no more." if host in live else gone)

    return {host: reason(host) for host in sorted(cluster.blocked.keys() - set(kept))}


def _future_names(nodes: Iterable[BlockedNode], addresses: Mapping[str, frozenset[str]]) -> dict[str, BlockedNode]:
    names: dict[str, BlockedNode] = {}
    named = names_by_address(addresses)
    for node in nodes:
        for name in possible_names(node.id, addresses, named):
            before = names.get(name)
            names[name] = node if before is None else _merged(name, [before, node]).node
    return names
