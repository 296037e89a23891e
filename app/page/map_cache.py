"""The map that all visitors share: names in rows, and the states of all hosts as one string."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import chain
from typing import Final
from urllib.parse import urlencode

from fastapi import Request
from markupsafe import Markup, escape

from app.api.applied import TaskManager, task_managers_on
from app.page.groups import refused_nodes
from app.page.map_rows import UNREPORTED, Group, MapRow, group_of, map_rows
from app.page.map_states import LEGENDS, UNSETTLED, BlockReports, MapState, state_of_blocked
from app.page.node_model import machine_names
from app.page.shared import in_turns, shared_of
from app.service import Service, service_of
from blocklist.model.listener import ListenerRole
from blocklist.model.node import BlockedNode, TaskCount
from blocklist.model.tracker import find_blocked

# All hosts that are known, with their state: computed in turns of the event loop, as there may be 10,000.


@dataclass(frozen=True, slots=True)
class BlockedHost:
    """A blocked host: its state, its block and the tasks that run there."""

    state: MapState
    node: BlockedNode
    tasks: TaskCount


@dataclass(frozen=True, kw_only=True, slots=True)
class Hosts:
    """All hosts at a revision: rows of ids, those that are blocked, and those that are free but get no work."""

    revision: int
    rows: Sequence[MapRow]
    blocked: Mapping[str, BlockedHost]
    not_ready: frozenset[str]

    def state(self, host: str) -> MapState:
        found = self.blocked.get(host)
        if found is not None:
            return found.state
        return MapState.NOT_READY if host in self.not_ready else MapState.FREE


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reports:
    """What is the same for all hosts: revisions that live listeners have applied, what they refuse, and silent jobs."""

    acked: int | None
    refused: frozenset[str]
    complete: bool
    lapsed: frozenset[str]


async def all_hosts(service: Service) -> Hosts:
    """The hosts that anybody reports, and all that are blocked."""
    inventory = service.inventory
    revision = service.view.tracker.revision
    spellings: dict[str, str] = {}
    groups: dict[str, Group] = {}
    async for node_id in in_turns(list(inventory)):
        # What has gone in between is left out.
        if (labels := inventory.labels_if_known(node_id)) is not None:
            spellings[node_id] = inventory.spelling(node_id)
            groups[node_id] = group_of(node_id, labels)
    blocks = await _blocks(service, spellings, groups)
    reports = await _reports(service)
    blocked = {}
    async for host, node in in_turns(blocks.items()):
        blocked[spellings[host]] = _blocked_host(service, node, reports)
    return Hosts(
        revision=revision,
        # In a thread, because to sort 10,000 names takes some 30 ms.
        rows=await asyncio.to_thread(map_rows, [(spellings[host], group) for host, group in groups.items()]),
        blocked=blocked,
        not_ready=await _not_ready(service, spellings),
    )


async def _blocks(service: Service, spellings: dict[str, str], groups: dict[str, Group]) -> dict[str, BlockedNode]:
    """The strongest block of each blocked host. Adds those that nobody reports."""
    tracker, now, inventory = service.view.tracker, service.clock(), service.inventory
    blocks: dict[str, BlockedNode] = {}
    async for node in in_turns(list(tracker.blocked(now).values())):
        known = [host for host in inventory.known_as(node.id) if host in spellings]
        for host in known:
            # A short name may mean several hosts, and each of them may have a block of its own.
            if found := find_blocked(tracker, spellings[host], now):
                blocks[host] = max(found, key=lambda block: (block.action, block.end))
        if not known and node.id not in spellings:
            spellings[node.id], groups[node.id] = node.id, Group(UNREPORTED, "")
            blocks[node.id] = node
    return blocks


async def _reports(service: Service) -> _Reports:
    directory = service.directory
    live = directory.live()
    jobs = [entry for entry in live if entry.listener.role is ListenerRole.JOB_MASTER]
    refused = set[str]()
    for _, nodes in await refused_nodes(service):
        refused |= nodes
    complete, lapsed = directory.last_reports.hosts()
    return _Reports(
        acked=min((entry.confirmed_revision for entry in live), default=None),
        refused=frozenset(refused),
        # As `blocklist drain` decides that nothing runs there.
        complete=complete and bool(jobs) and all(entry.report.task_managers is not None for entry in jobs),
        lapsed=frozenset(lapsed),
    )


def _blocked_host(service: Service, node: BlockedNode, reports: _Reports) -> BlockedHost:
    revision = service.last_changes.revision_of(node.id, service.view.tracker.revision)
    there: Sequence[TaskManager] = task_managers_on(service, node.id)
    tasks = TaskCount.of(each.running_tasks for each in there)
    silent = bool(reports.lapsed) and not reports.lapsed.isdisjoint(machine_names(service.inventory, node.id))
    state = state_of_blocked(
        node,
        BlockReports(
            refused=node.id in reports.refused,
            applied=reports.acked is None or reports.acked >= revision,
            tasks=tasks,
            complete=reports.complete and not silent,
        ),
    )
    return BlockedHost(state, node, tasks)


async def _not_ready(service: Service, spellings: Mapping[str, str]) -> frozenset[str]:
    """The hosts that a live listener reports as unschedulable."""
    inventory = service.inventory
    found = set[str]()
    for entry in service.directory.live():
        async for name in in_turns(list(entry.report.unschedulable or ())):
            host = inventory.find(name)
            if host is not None and host in spellings:
                found.add(spellings[host])
    return frozenset(found)


MIN_AGE_MS: Final = 1_000
MS_PER_HOST: Final = 0.1
MS_PER_BLOCK: Final = 0.5
"""The map is computed at most once in the sum of these: some tenth of the time is spent on it, while somebody looks."""
MAX_HTML_AGE_MS: Final = 60_000


class Variant(Enum):
    """For whom the cells are made: where they lead to, or nowhere."""

    OPERATOR = "/page/block?node="
    READER = "/page/nodes/"
    WALL = ""


@dataclass(frozen=True)
class HostMap:
    """The map at a time. `layout` names the order of hosts, `states` has the code of each in this order."""

    hosts: Hosts

    @cached_property
    def layout(self) -> str:
        return hashlib.sha256(repr(self.hosts.rows).encode()).hexdigest()[:16]

    @cached_property
    def states(self) -> str:
        return "".join(map(self.hosts.state, chain.from_iterable(row.hosts for row in self.hosts.rows)))

    @property
    def counts(self) -> list[tuple[MapState, int]]:
        """The number of hosts in each state, in the order of the legend."""
        counts = Counter(self.states)
        return [(state, counts[state.value]) for state in LEGENDS]

    @property
    def total(self) -> int:
        return len(self.states)

    @property
    def settled(self) -> bool:
        return UNSETTLED.isdisjoint(map(MapState, set(self.states)))

    def max_age(self) -> float:
        """In milliseconds, from the constants above."""
        return MIN_AGE_MS + MS_PER_HOST * self.total + MS_PER_BLOCK * len(self.hosts.blocked)


async def host_map(request: Request) -> HostMap:
    """The map of the service that received the request."""

    async def compute() -> HostMap:
        return HostMap(await all_hosts(service_of(request)))

    return await shared_of(request).get("map", compute, HostMap.max_age)


def rows_html(request: Request, found: HostMap, variant: Variant) -> Sequence[tuple[MapRow, Markup]]:
    """The rows of the map with the HTML of their cells, made once for all visitors of a kind."""

    def render() -> Sequence[tuple[MapRow, Markup]]:
        return [(row, _cells(row, found.hosts, variant)) for row in found.hosts.rows]

    return shared_of(request).get_now(("cells", variant, found.layout, found.states), render, MAX_HTML_AGE_MS)


def table_url(row: MapRow) -> str:
    """The table of the group of a row."""
    return f"/page/map/hosts?{urlencode({'group': row.group.key})}"


def _cells(row: MapRow, hosts: Hosts, variant: Variant) -> Markup:
    """The cells of a row. Without the templates, as there may be 10,000 of them."""
    cells = []
    for host in row.hosts:
        state, name = hosts.state(host), escape(host)
        word, free = LEGENDS[state].word, state in {MapState.FREE, MapState.NOT_READY}
        if variant is Variant.WALL:
            cells.append(f'<span class="cell {state}">{name}, {word}</span>')
        else:
            path = variant.value if free else Variant.READER.value
            cells.append(f'<a class="cell {state}" tabindex="-1" href="{path}{name}">{name}, {word}</a>')
    return Markup("\n".join(cells))  # noqa: S704 - the ids are escaped
