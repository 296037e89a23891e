"""Plan which hosts of a Spark application are blocked, which stay open, and why. Pure; the time is passed in.

A node id matches a host if their names are equal, if one is the short name of the other, or if they share an address.
At least `keep_hosts` hosts with a live executor stay open, whatever the list says: Spark aborts a job within a second
when all of its hosts are excluded.
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
"""Why the driver reopened a host: it was the last one, or a task that Spark keeps off all other hosts needs it."""
MAX_CAUSE: Final = 80


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterState:
    """The hosts of an application at one epoch, by Spark's names.

    `open` and `excluded` are the hosts with a live executor that Spark itself does not exclude, and does exclude.
    `blocked` maps the hosts that earlier plans blocked to the end of the block in Unix ms. `opened` maps the hosts that
    the driver has reopened since to LAST_HOST or STUCK_TASK.
    """

    epoch: int
    open: frozenset[str]
    excluded: frozenset[str] = frozenset()
    blocked: Mapping[str, int] = field(default_factory=dict)
    opened: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class HostBlock:
    """A host to block. `node` merges all blocked nodes that match the host; it has the id of the strongest one."""

    host: str
    node: BlockedNode

    @property
    def evacuate(self) -> bool:
        return self.node.action is BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS

    @property
    def reason(self) -> str:
        until = "permanently" if self.node.permanent else f"until {self.node.end}"
        return f"Host {self.host} is blocked as {self.node.id} {until} ({self.node.cause})."


@dataclass(frozen=True, kw_only=True, slots=True)
class ExclusionPlan:
    """What to do, with a reason for each decision: `HostBlock.reason`, else the values of the mappings.

    `blocks` are hosts with a live executor, the weakest block first: the driver reopens them in this order. `names` are
    for future hosts: lower-case names; a short name with a trailing dot stands for all full names that begin with it.
    `freed` are hosts that an earlier plan blocked. `refused` are node ids whose block is not applied to all matching
    hosts. `node_ids` maps each host with a matching node to its id, including hosts that stay open.
    """

    blocks: tuple[HostBlock, ...] = ()
    names: Mapping[str, BlockedNode] = field(default_factory=dict)
    freed: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    node_ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def blocked_as(self) -> dict[str, str]:
        """Blocked hosts to node ids."""
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
    """Decide which hosts to block at `now` (Unix ms).

    `addresses` maps lower-case names to their known addresses. `required` hosts stay open for a stuck task. If not all
    hosts may be blocked, those with the weakest action stay open, and among equal actions those with the oldest block.
    """
    current = [node for node in nodes if not node.ended(now)]
    matches = _matches(current, HostMatcher(cluster.open | cluster.excluded, addresses))
    blocks = sorted((_merged(host, found) for host, found in matches.items()), key=block_strength)
    left_open = _choose_open(blocks, cluster, keep_hosts, required)
    blocked = tuple(block for block in blocks if block.host not in left_open)
    return ExclusionPlan(
        blocks=blocked,
        names=_future_names(current, addresses),
        freed=_freed(cluster, {block.host for block in blocked}, left_open),
        refused=_refused(matches, left_open),
        node_ids={block.host: block.node.id for block in blocks},
    )


def block_strength(block: HostBlock) -> tuple[int, int, str]:
    """Sort key, weakest block first."""
    return block.node.action, block.node.start, block.host


def _matches(nodes: Iterable[BlockedNode], matcher: HostMatcher) -> dict[str, list[BlockedNode]]:
    matches: dict[str, list[BlockedNode]] = {}
    for node in sorted(nodes, key=lambda node: node.id):
        for host in sorted(matcher.hosts_of(node.id)):
            matches.setdefault(host, []).append(node)
    return matches


def _merged(host: str, nodes: Iterable[BlockedNode]) -> HostBlock:
    """Merge the nodes that match one host, as if they were one node."""
    strongest_first = sorted(nodes, key=lambda node: (-node.action, -node.end, node.id))
    first = strongest_first[0]
    return HostBlock(host=host, node=reduce(lambda a, b: merge(a, replace(b, id=a.id)), strongest_first, first))


def _choose_open(
    blocks: Iterable[HostBlock], cluster: ClusterState, keep_hosts: int, required: frozenset[str]
) -> dict[str, str]:
    """Return the hosts to leave open, each with the reason."""
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
    """Truncate the cause so that the whole sentence fits the service's limit."""
    cause = block.node.cause
    return cause if len(cause) <= MAX_CAUSE else f"{cause[: MAX_CAUSE - 1]}…"


def _refused(matches: Mapping[str, Iterable[BlockedNode]], left_open: Mapping[str, str]) -> dict[str, str]:
    return {node.id: sentence for host, sentence in left_open.items() for node in matches[host]}


def _freed(cluster: ClusterState, blocked: Collection[str], left_open: Mapping[str, str]) -> dict[str, str]:
    live = cluster.open | cluster.excluded

    def reason(host: str) -> str:
        no_executor = f"Host {host} no longer has an executor."
        return left_open.get(host) or (f"Host {host} is no longer blocked." if host in live else no_executor)

    return {host: reason(host) for host in sorted(cluster.blocked.keys() - set(blocked))}


def _future_names(nodes: Iterable[BlockedNode], addresses: Mapping[str, frozenset[str]]) -> dict[str, BlockedNode]:
    names: dict[str, BlockedNode] = {}
    named = names_by_address(addresses)
    for node in nodes:
        for name in possible_names(node.id, addresses, named):
            before = names.get(name)
            names[name] = node if before is None else _merged(name, [before, node]).node
    return names
