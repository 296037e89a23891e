"""Which blocked hosts may go into the exclude file: those whose NodeManagers come back. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from blocklist.managers.plan import evacuates
from blocklist.managers.yarn.cluster_state import RUNNING, YarnNode
from blocklist.managers.yarn.exclude_file import Entries
from blocklist.managers.yarn.node_names import Blocks, in_service_message
from blocklist.model.node import BlockAction, BlockedNode

_EXITS = "would end its NodeManager, and the end of the block would not bring it back (see --accept-exits)."


@dataclass(frozen=True, kw_only=True, slots=True)
class Excludable:
    """What may be excluded: also nodes whose NodeManager exits, and how many nodes stay in service."""

    accept_exits: bool
    min_nodes: int


def choose(
    blocks: Blocks, current: Entries, nodes: Sequence[YarnNode], rules: Excludable
) -> tuple[dict[str, BlockedNode], dict[str, str]]:
    """The hosts to exclude, each with its block, and the ids that are refused, with a reason.

    An idle node that is not excluded yet is refused; instead of an evacuation, a busy one is marked. What is excluded
    already stays so, however few nodes are left.
    """
    containers = Counter[str]()
    for node in nodes:
        containers[node.host] += node.containers
    running = {node.host for node in nodes if node.state == RUNNING}
    in_service = len(running - (current.keys() & blocks.by_host.keys()))
    chosen: dict[str, BlockedNode] = {}
    refused: dict[str, str] = {}
    for host, block in sorted(
        blocks.by_host.items(), key=lambda item: (item[0] not in current, item[1].start, item[0])
    ):
        new = host not in current
        excluded, reason = _excluded(block, rules, new=new, idle=not containers[host])
        if excluded is not None and new and host in running and in_service - 1 < rules.min_nodes:
            excluded = None
            reason = in_service_message(host, rules.min_nodes)
        if excluded is not None:
            in_service -= new and host in running
            chosen[host] = excluded
        if reason:
            refused |= dict.fromkeys(blocks.ids[host], reason)
    return chosen, refused


def _excluded(block: BlockedNode, rules: Excludable, *, new: bool, idle: bool) -> tuple[BlockedNode | None, str]:
    if rules.accept_exits:
        return block, ""
    if new and idle:
        return None, f"Node {block.id} is idle: to exclude it {_EXITS}"
    if evacuates(block):
        marked = replace(block, action=BlockAction.MARK_BLOCKED)
        return marked, f"Node {block.id} gets no new containers, but is not evacuated: that {_EXITS}"
    return block, ""
