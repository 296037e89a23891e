"""What runs on the nodes of a listener, for its page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from app.listeners.reports import LastReport, TasksOnHost
from app.listeners.state import ListenerEntry
from app.page.host_rows import BlockAtListener, HostRow, host_rows
from app.page.listener_blocks import block_at
from app.page.shared import SharedValues
from app.page.turns import in_turns
from app.service import Service
from blocklist.model.node_lookup import find_blocked

USABLE_AGE_MS: Final = 2_000
"""The nodes that are blocked are compared with those of all listeners at most once in this time."""
MAX_UNCACHED: Final = 500
"""The rows of a listener with at most this number of nodes are computed for each visitor: some 10 ms."""
MS_PER_HOST: Final = 1
"""Others are computed at most once in this time for each of their nodes: 10,000 take some 200 ms every 10 s."""


@dataclass(frozen=True, slots=True)
class HostRows:
    """The rows of a listener as of a time (Unix ms), of what it reported."""

    at: int
    report: LastReport
    rows: Sequence[HostRow]


async def listener_rows(
    service: Service, shared: SharedValues, entry: ListenerEntry, report: Callable[[], LastReport], *, live: bool
) -> HostRows:
    """The rows of a listener, from what `report` returns; many of them are up to MS_PER_HOST old for each."""

    async def compute() -> HostRows:
        at, current = service.clock(), report()
        return HostRows(at, current, await _compute(service, entry, current.hosts, live=live))

    return await shared.get(("rows", entry.id, *entry.listener.registration_key, live), compute, _max_age)


def usable_nodes(service: Service, shared: SharedValues, entry: ListenerEntry) -> int | None:
    """The number of nodes of the listener that are not blocked, USABLE_AGE_MS old at most; None if it has none."""
    return shared.get_now("usable", service.usable_nodes.counter, USABLE_AGE_MS)(entry)


def _max_age(found: HostRows) -> float:
    return MS_PER_HOST * len(found.rows) if len(found.rows) > MAX_UNCACHED else 0


async def _compute(
    service: Service, entry: ListenerEntry, hosts: Sequence[TasksOnHost], *, live: bool
) -> Sequence[HostRow]:
    blocks: dict[str, BlockAtListener | None] = {}
    async for host in in_turns(hosts):
        blocks[host.node] = _block_of_host(service, entry, host.node)
    return host_rows(hosts, blocks.__getitem__, reports=live)


def _block_of_host(service: Service, entry: ListenerEntry, name: str) -> BlockAtListener | None:
    """The strongest block of a node, under any name of its machine."""
    found = find_blocked(service.view.tracker, name, service.clock())
    return block_at(service, entry, max(found, key=lambda block: (block.action, block.end))) if found else None
