"""All hosts that are known, with their state: computed in turns of the event loop, as there may be 10,000."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.api.applied import TaskManager, task_managers_on
from app.page.groups import refused_nodes
from app.page.map_rows import UNREPORTED, Group, MapRow, group_of, map_rows
from app.page.map_states import BlockReports, MapState, state_of_blocked
from app.page.node_model import machine_names
from app.page.turns import in_turns
from app.service import Service
from blocklist.model.listener import ListenerRole
from blocklist.model.node import BlockedNode
from blocklist.model.node_lookup import find_blocked
from blocklist.model.task_count import TaskCount


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
