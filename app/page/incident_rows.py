"""The incidents of the running service: their racks, the listeners that have applied them, and the tasks left."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fastapi import Request

from app.api.applied import task_managers_on
from app.components import Components
from app.listeners.entry import ListenerEntry
from app.page.incidents import Incident, OwnedBlock, group_incidents
from app.page.turns import in_turns
from blocklist.model.claims import ANONYMOUS
from blocklist.model.node import BlockedNode
from blocklist.model.node_lookup import claims_on, find_blocked
from blocklist.model.task_count import TaskCount

PAGE_SIZE: Final = 30
"""Incidents of a page."""
MAX_AGE_MS: Final = 2000
"""All visitors share one computation for this long, unless the list changes."""
RACK_LABEL: Final = "rack"


@dataclass(frozen=True, kw_only=True, slots=True)
class IncidentRow:
    """An incident. `racks` has the number of nodes of each rack, `no_rack` those whose rack is not known.

    Of the `listeners` that are live, `pending` have not applied the last change of each of its nodes yet, and `refused`
    do not carry out a block of it.
    """

    incident: Incident
    racks: Sequence[tuple[str, int]]
    no_rack: int
    listeners: int
    pending: Sequence[str]
    refused: Sequence[str]
    task_managers: int
    tasks: TaskCount

    @property
    def applied(self) -> int:
        """The number of listeners that have applied the whole incident."""
        return self.listeners - len(self.pending) - len(self.refused)

    @property
    def settled(self) -> bool:
        """All listeners have applied it, and no task runs on a node that is evacuated."""
        return self.applied == self.listeners and not (self.incident.evacuated and self.tasks.may_run)


@dataclass(kw_only=True, slots=True)
class Incidents:
    """All incidents at a time, and the rows that were shown since."""

    at: int
    revision: int
    all: Sequence[Incident]
    rows: dict[int, IncidentRow] = field(default_factory=dict)


class IncidentCache:
    """The incidents, at most MAX_AGE_MS old and with all changes, computed one at a time in turns of the event loop."""

    def __init__(self, components: Components) -> None:
        self._components = components
        self._incidents: Incidents | None = None
        self._computing = asyncio.Lock()

    async def page(self, number: int) -> tuple[Incidents, int, Sequence[IncidentRow]]:
        """All incidents; the number of the page, at most that of the last one; and its rows."""
        # Whoever has just changed something sees the change; all who wait meanwhile share one computation.
        needed = self._components.engine.view.tracker.revision
        async with self._computing:
            now, incidents = self._components.clock(), self._incidents
            if incidents is None or incidents.revision < needed or not 0 <= now - incidents.at < MAX_AGE_MS:
                incidents = self._incidents = await _group(self._components, now)
            number = min(number, max(1, -(-len(incidents.all) // PAGE_SIZE)))
            places = range((number - 1) * PAGE_SIZE, min(number * PAGE_SIZE, len(incidents.all)))
            missing = [place for place in places if place not in incidents.rows]
            if missing:
                refused = await refused_nodes(self._components)
                for place in missing:
                    incidents.rows[place] = await _row(self._components, incidents.all[place], refused)
            return incidents, number, [incidents.rows[place] for place in places]


def incident_cache_of(request: Request) -> IncidentCache:
    """The cache of the service that received the request."""
    cache: IncidentCache = request.app.state.incident_cache
    return cache


async def owned_blocks(components: Components) -> list[OwnedBlock]:
    """The blocked nodes with their owners."""
    tracker, now = components.engine.view.tracker, components.clock()
    found = []
    async for node in in_turns(list(tracker.blocked(now).values())):
        claims = claims_on(tracker, node, now) if tracker.get(node.id) is node else ()
        found.append(OwnedBlock(node, claims[0].owner if claims else ANONYMOUS))
    return found


async def _group(components: Components, now: int) -> Incidents:
    revision = components.engine.view.tracker.revision
    blocks = await owned_blocks(components)
    # In a thread, because of 10,000 blocks this takes some 25 ms.
    return Incidents(at=now, revision=revision, all=await asyncio.to_thread(group_incidents, blocks))


async def _row(
    components: Components, incident: Incident, refused: Sequence[tuple[ListenerEntry, set[str]]]
) -> IncidentRow:
    newest = components.engine.view.tracker.revision
    revision, racks, running, task_managers = 0, Counter[str](), list[int | None](), 0
    async for node in in_turns(incident.nodes):
        revision = max(revision, components.engine.last_changes.revision_of(node.id, newest))
        racks[_rack(components, node)] += 1
        there = task_managers_on(components, node.id)
        task_managers += len(there)
        running += [each.running_tasks for each in there]
    names = {node.id for node in incident.nodes}
    refusing = [entry.id for entry, nodes in refused if entry.has_confirmed(revision) and not names.isdisjoint(nodes)]
    pending = [entry.id for entry, _ in refused if not entry.has_confirmed(revision)]
    no_rack = racks.pop("", 0)
    return IncidentRow(
        incident=incident,
        racks=sorted(racks.items(), key=lambda rack: (-rack[1], rack[0])),
        no_rack=no_rack,
        listeners=len(refused),
        pending=pending,
        refused=refusing,
        task_managers=task_managers,
        tasks=TaskCount.of(running),
    )


async def refused_nodes(components: Components) -> list[tuple[ListenerEntry, set[str]]]:
    """The live listeners, by id, with the blocked nodes that each refuses under any name."""
    tracker, now = components.engine.view.tracker, components.clock()
    found = []
    for entry in sorted(components.listeners.directory.live(), key=lambda entry: entry.id):
        nodes = set[str]()
        async for name in in_turns(list(entry.refused)):
            nodes.update(node.id for node in find_blocked(tracker, name, now))
        found.append((entry, nodes))
    return found


def _rack(components: Components, node: BlockedNode) -> str:
    labels: Mapping[str, str] = components.listeners.inventory.labels_of(node.id)
    return labels.get(RACK_LABEL, "")
