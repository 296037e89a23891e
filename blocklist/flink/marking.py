"""Flink is notified of blocked nodes with leases. Pure.

Flink forgets a block only at its end, and of two ends the later one counts. So Flink receives each block with a lease,
which is renewed while the node is on the list; a node is freed by not renewing it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from blocklist.model.host_matching import normalize_address
from blocklist.model.node import BlockedNode

MAX_LEASE: Final = 30_000
"""Milliseconds for which a node is blocked in Flink: without the bridge it is free after them."""
MIN_LEASE: Final = 10_000
"""Milliseconds: renewals come late when the machine is busy, and the service knows leases of whole seconds."""
_MAX_CAUSE: Final = 200


def listener_lease(lease: int) -> int:
    """The lease of the bridge's listeners at the service, for that of the nodes in Flink; both in milliseconds.

    An acknowledgement must not outlive what it states. When a round begins, five sixths of each lease in Flink are left
    at least. What was observed in it is reported for a quarter of a lease (`report_validity`); a heartbeat may arrive
    late by the listener's lease, and then renews it once more. A quarter and twice 7/24 are these five sixths.
    """
    return lease * 7 // 24


def report_validity(lease: int) -> float:
    """Seconds from the begin of a round, for which what was observed in it may be reported. See `listener_lease`."""
    return lease / 4000


class NodeLease(NamedTuple):
    """A block as Flink receives it: its end is in Unix milliseconds."""

    node: str
    cause: str
    end: int


class Clocks(NamedTuple):
    """By how many milliseconds the clocks of the service and of the JobManager are ahead of this machine's."""

    service: int = 0
    leader: int = 0


def node_leases(
    blocked: Mapping[str, BlockedNode],
    matches: Mapping[str, Collection[str]],
    now: int,
    lease: int = MAX_LEASE,
    clocks: Clocks = Clocks(),  # noqa: B008 - it is a constant
) -> list[NodeLease]:
    """Each blocked node under its id on the list, and under the ids that Flink uses for it.

    `now` is in Unix milliseconds, `lease` in milliseconds. The ends of blocks are by the service's clock, those of the
    leases by the JobManager's. Flink receives the id on the list even if no TaskManager has
    it yet: one that registers later is blocked at once.
    """
    found: dict[str, NodeLease] = {}
    for node_id, node in blocked.items():
        end = min(node.end - clocks.service, now + lease) + clocks.leader
        for name in {it for known in (node_id, *matches.get(node_id, ())) for it in _spellings(known)}:
            before = found.get(name)
            if before is None or before.end < end:
                found[name] = NodeLease(name, node.cause[:_MAX_CAUSE], end)
    return list(found.values())


def _spellings(name: str) -> set[str]:
    """How Flink may write a name: in lower case, and an IPv6 address in brackets."""
    address = normalize_address(name)
    if address is None:
        return {name, name.lower()}
    return {name, f"[{address}]"} if ":" in address else {name, address}


def is_due(blocks: Iterable[NodeLease], notified: Mapping[str, int], now: int, lease: int = MAX_LEASE) -> bool:
    """Whether Flink must be notified: a node is new to it, or its lease can be longer and a sixth of it has passed.

    `notified` maps the nodes to the ends that Flink was notified, in Unix milliseconds.
    """
    threshold = now + lease - lease // 6
    return any((end := notified.get(block.node, 0)) < block.end and end < threshold for block in blocks)
