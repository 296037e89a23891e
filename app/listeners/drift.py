"""DriftMonitor: what live listeners report about nodes, compared with the list every few seconds."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final

from app.engine.handler import BlocklistHandler
from app.engine.list_view import LastChanges, ListView
from app.listeners.state import ListenerDirectory, ListenerEntry
from blocklist.model.changes import Author, Source
from blocklist.model.claims import automatic_claims
from blocklist.model.draft import BlocklistView, Draft, claims_on, find_blocked
from blocklist.model.errors import UnavailableError
from blocklist.model.listener import (
    EMPTY_REPORT,
    DriftKind,
    DriftObserver,
    DriftReport,
    ReportedState,
    ReportingListener,
    TasksOnBlockedNode,
)
from blocklist.model.node import BlockedNode

EVACUATION_MS: Final = 5 * 60_000
"""How long tasks may still run on an evacuated node before that is drift."""
OBSERVE_SECONDS: Final = 5.0
"""Interval between two observations."""
MAX_REPORTED: Final = 20_000
"""Maximum number of nodes that managers report as different and that are shown. The longest reports are cut first."""
_NODES_PER_TURN: Final = 500


class DriftMonitor:
    """Observes every OBSERVE_SECONDS, and lets other tasks run in between, as reports may be long.

    Belongs to the event loop. What it has observed is in memory only, and lost with a restart.
    """

    def __init__(self, directory: ListenerDirectory, view: ListView, last_changes: LastChanges) -> None:
        self._directory = directory
        self._view = view
        self._last_changes = last_changes
        self._observer = DriftObserver(EVACUATION_MS)
        self.latest: DriftReport | None = None

    async def run(self) -> None:
        """Observe every OBSERVE_SECONDS; never returns."""
        while True:
            await self.observe()
            await asyncio.sleep(OBSERVE_SECONDS)

    async def observe(self) -> DriftReport:
        """Compare what is reported with the list now; `latest` is the result."""
        tasks = await self._tasks()
        reported = await self._reported()
        self.latest = self._observer.observe(tasks, reported, self._view.clock(), self._reporting())
        return self.latest

    async def _tasks(self) -> list[TasksOnBlockedNode]:
        """What runs on each blocked node, for each live listener that has TaskManagers there."""
        blocked: dict[str, BlockedNode] = {}
        # Not from the blocked nodes, of which there may be many more than nodes with TaskManagers.
        for number, name in enumerate(list(self._view.task_managers.nodes)):
            blocked |= {node.id: node for node in self._blocked(name)}
            if number % _NODES_PER_TURN == 0:
                await asyncio.sleep(0)
        return [tasks for node in blocked.values() for tasks in self._tasks_on(node)]

    def _tasks_on(self, node: BlockedNode) -> Iterator[TasksOnBlockedNode]:
        if node.canary:
            return  # Tasks of the executors that may stay there begin and end as on a free node.
        running: defaultdict[str, dict[str, int | None]] = defaultdict(dict)
        for task_manager, listener in self._view.task_managers.with_listeners_on(node.id):
            if (entry := self._live(listener)) is not None:
                running[entry.id][task_manager] = entry.running_tasks.get(task_manager)
        for listener_id, counts in running.items():
            if (entry := self._live(listener_id)) is not None:
                yield TasksOnBlockedNode(
                    node=node.id,
                    block_start=self._start(node),
                    evacuates=node.evacuates,
                    listener=entry.id,
                    registration=entry.listener.registration_key,
                    lease=entry.listener.lease,
                    acked=self._has_confirmed(entry, node) and entry.pending_reason_of(node.id) is None,
                    refused=entry.refusal_of(node.id),
                    running=counts,
                )

    def _start(self, node: BlockedNode) -> int:
        """Since when it is blocked for all: what its canary ran before is no drift."""
        claims = claims_on(self._view.tracker, node, self._view.clock())
        return min((it.block.start for it in claims if not it.block.canary), default=node.start)

    async def _reported(self) -> list[ReportedState]:
        """What live listeners report about nodes that are not as the list says."""
        found: list[ReportedState] = []
        for entry in sorted(self._directory.live(), key=_reported_nodes):
            found += islice(self._reported_by(entry), MAX_REPORTED - len(found))
            await asyncio.sleep(0)
        return found

    def _reporting(self) -> dict[str, ReportingListener]:
        """The live listeners that have reported anything."""
        entries = (entry for entry in self._directory.live() if entry.report != EMPTY_REPORT)
        return {entry.id: ReportingListener(entry.listener.registration_key, entry.listener.lease) for entry in entries}

    def _reported_by(self, entry: ListenerEntry) -> Iterator[ReportedState]:
        for name, state in (entry.report.schedulable or {}).items():
            for node in self._blocked(name):
                if self._has_confirmed(entry, node):
                    yield _state(node.id, DriftKind.SCHEDULABLE, entry, state)
        for name, state in (entry.report.replaced or {}).items():
            yield from (_state(node.id, DriftKind.REPLACED, entry, state) for node in self._blocked(name))
        for name, state in (entry.report.unschedulable or {}).items():
            if not self._blocked(name):
                yield _state(name, DriftKind.UNSCHEDULABLE, entry, state)

    def _live(self, listener_id: str) -> ListenerEntry | None:
        entry = self._directory.get(listener_id)
        return entry if entry is not None and entry.is_live(self._view.clock()) else None

    def _blocked(self, name: str) -> list[BlockedNode]:
        return find_blocked(self._view.tracker, name, self._view.clock())

    def _has_confirmed(self, entry: ListenerEntry, node: BlockedNode) -> bool:
        """Whether it has acknowledged the node's last change."""
        return entry.has_confirmed(self._last_changes.revision_of(node.id, self._view.tracker.revision))


def _reported_nodes(entry: ListenerEntry) -> int:
    report = entry.report
    return sum(len(part or ()) for part in (report.schedulable, report.unschedulable, report.replaced))


def _state(node_id: str, kind: DriftKind, entry: ListenerEntry, state: str) -> ReportedState:
    return ReportedState(node=node_id, kind=kind, listener=entry.id, reason=state)


# What automatic owners have found out about a machine says nothing about the one that has its name now.

RELEASE_SECONDS: Final = 1.0
"""Interval at which reports of new machines are read."""


class ReplacementReleaser:
    """Ends the automatic claims that are older than the machine which has the node's name now.

    Their owners are asked again by that: an alert that still fires, or new evidence, blocks the node again. Claims of
    people stay, and drift says that it is another machine. Belongs to the event loop.
    """

    def __init__(self, directory: ListenerDirectory, view: ListView, handler: BlocklistHandler) -> None:
        self._directory = directory
        self._view = view
        self._handler = handler

    async def run(self) -> None:
        """Release every RELEASE_SECONDS; never returns."""
        while True:
            await asyncio.sleep(RELEASE_SECONDS)
            with suppress(UnavailableError):  # Tried again when the database is available.
                await self.step()

    async def step(self) -> None:
        """End what is due now. Raises UnavailableError."""
        for entry in self._directory.live():
            machines, now = entry.report.new_machines or {}, self._view.clock()
            if any(outdated_owners(self._view.tracker, node, since, now) for node, since in machines.items()):
                author = Author(entry.id, Source.REPLACEMENT)
                await self._handler.submit(partial(_release, machines=machines), author)


def outdated_owners(nodes: BlocklistView, name: str, since: int, now: int) -> Mapping[str, Sequence[str]]:
    """By the id of a block of this node, the automatic owners whose claims began before `since`. Both in Unix ms.

    None until then, if the manager's clock is ahead: each new claim would end as well.
    """
    if since > now:
        return {}
    found = {
        node.id: [it.owner for it in automatic_claims(claims_on(nodes, node, now)) if it.block.start < since]
        for node in find_blocked(nodes, name, now)
    }
    return {node_id: owners for node_id, owners in found.items() if owners}


def _release(draft: Draft, machines: Mapping[str, int]) -> None:
    for name, since in machines.items():
        for node_id, owners in outdated_owners(draft, name, since, draft.now).items():
            draft.change_claims(node_id, (), owners)
