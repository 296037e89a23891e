"""What the pages of listeners share, so that their cost does not grow with visitors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from fastapi import Request

from app.components import Components
from app.listeners.entry import ListenerEntry
from app.listeners.last_reports import LastReport, TasksOnHost
from app.page.host_rows import BlockAtListener, HostRow, host_rows
from app.page.listener_blocks import block_at
from app.page.turns import in_turns
from blocklist.model.node_lookup import find_blocked

USABLE_AGE_MS: Final = 2_000
"""The nodes that are blocked are compared with those of all listeners at most once in this time."""
MAX_UNCACHED: Final = 500
"""The rows of a listener with at most this number of nodes are computed for each visitor: some 10 ms."""
MS_PER_HOST: Final = 1
"""Others are computed at most once in this time for each of their nodes: 10,000 take some 200 ms every 10 s."""
MAX_LISTENERS: Final = 50
"""Maximum number of listeners whose rows are stored."""


@dataclass(frozen=True, slots=True)
class HostRows:
    """The rows of a listener as of a time (Unix ms), of what it reported."""

    at: int
    report: LastReport
    rows: Sequence[HostRow]


class ListenerCache:
    """The rows of listeners, computed one listener at a time in turns of the event loop."""

    def __init__(self, components: Components) -> None:
        self._components = components
        self._rows: dict[tuple[str, str, int, bool], HostRows] = {}
        self._computing = asyncio.Lock()
        self._counted_at = 0
        self._count: Callable[[ListenerEntry], int | None] | None = None

    async def rows(self, entry: ListenerEntry, report: Callable[[], LastReport], *, live: bool) -> HostRows:
        """The rows of a listener, from what `report` returns; many of them are up to MS_PER_HOST old for each."""
        key = entry.id, *entry.listener.registration_key, live
        async with self._computing:
            now, found = self._components.clock(), self._rows.pop(key, None)
            if found is None or not 0 <= now - found.at < MS_PER_HOST * len(found.rows):
                current = report()
                found = HostRows(now, current, await self._compute(entry, current.hosts, live=live))
            if len(found.rows) <= MAX_UNCACHED:
                return found
            self._rows[key] = found
            if len(self._rows) > MAX_LISTENERS:
                del self._rows[next(iter(self._rows))]
            return found

    def usable(self, entry: ListenerEntry) -> int | None:
        """The number of nodes of the listener that are not blocked, USABLE_AGE_MS old at most; None if it has none."""
        now = self._components.clock()
        if self._count is None or not 0 <= now - self._counted_at < USABLE_AGE_MS:
            self._counted_at, self._count = now, self._components.listeners.usable_nodes.counter()
        return self._count(entry)

    async def _compute(self, entry: ListenerEntry, hosts: Sequence[TasksOnHost], *, live: bool) -> Sequence[HostRow]:
        blocks: dict[str, BlockAtListener | None] = {}
        async for host in in_turns(hosts):
            blocks[host.node] = _block_of_host(self._components, entry, host.node)
        return host_rows(hosts, blocks.__getitem__, reports=live)


def listener_cache_of(request: Request) -> ListenerCache:
    """The cache of the service that received the request."""
    cache: ListenerCache = request.app.state.listener_cache
    return cache


def _block_of_host(components: Components, entry: ListenerEntry, name: str) -> BlockAtListener | None:
    """The strongest block of a node, under any name of its machine."""
    found = find_blocked(components.engine.view.tracker, name, components.clock())
    return block_at(components, entry, max(found, key=lambda block: (block.action, block.end))) if found else None
