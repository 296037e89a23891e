"""ListenerObserver: what listeners report about blocked nodes: evacuated, refused, drift."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from app.engine.list_view import ListView
from app.listeners.drift import DriftMonitor
from app.listeners.state import ListenerDirectory, ListenerEntry
from app.notices.grouping import Event, NoticeKind, Subject
from app.notices.tracked_nodes import TrackedNode, TrackedNodes
from blocklist.model.drift import Drift, DriftReport
from blocklist.model.task_count import TaskCount
from blocklist.model.tracker import find_blocked

REPEAT_MS: Final = 10 * 60_000
"""Drift that ends and begins again within this time is not news (milliseconds)."""
_NODES_PER_TURN: Final = 500


class ListenerObserver:
    """Each event is returned once. Only about nodes that were blocked since the start, and drift that began since then.

    Belongs to the event loop, and lets other tasks run in between, as there may be many nodes.
    """

    def __init__(
        self,
        nodes: TrackedNodes,
        directory: ListenerDirectory,
        view: ListView,
        drift: DriftMonitor,
        clock: Callable[[], int],
    ) -> None:
        self._nodes = nodes
        self._directory = directory
        self._view = view
        self._drift = drift
        self._clock = clock
        self._started_at = clock()
        self._last_report: DriftReport | None = None
        self._drift_seen_at: dict[tuple[str, str, str], int] = {}

    async def observe(self) -> list[Event]:
        """What has happened since the last observation."""
        live = self._directory.live()
        return [*self._refused(live), *await self._evacuated(live), *self._new_drift()]

    def _refused(self, live: list[ListenerEntry]) -> list[Event]:
        return [event for entry in live for name in entry.refused for event in self._refused_by(entry, name)]

    def _refused_by(self, entry: ListenerEntry, name: str) -> Iterator[Event]:
        for blocked in find_blocked(self._view.tracker, name, self._clock()):
            node = self._nodes.get(blocked.id)
            # Before it has acknowledged the change, it can only have refused an earlier one.
            if node is None or entry.id in node.refused_by or not entry.has_acked(node.revision):
                continue
            node.refused_by.add(entry.id)
            subject = Subject(NoticeKind.REFUSED, "", node.cause, entry.id)
            yield Event(subject, blocked.id, self._clock(), entry.refused[name])

    async def _evacuated(self, live: list[ListenerEntry]) -> list[Event]:
        if not live:
            return []
        acked = min(entry.confirmed_revision for entry in live)
        refusing = [entry for entry in live if entry.refused]
        found: list[Event] = []
        for number, (name, node) in enumerate(self._nodes.evacuating()):
            if number % _NODES_PER_TURN == 0:
                await asyncio.sleep(0)
            if acked >= node.revision and not self._may_run(name, refusing):
                found += self._mark_evacuated(name, node)
        return found

    def _mark_evacuated(self, name: str, node: TrackedNode) -> list[Event]:
        """The event, unless the node was freed or blocked again in between."""
        if self._nodes.get(name) is not node:
            return []
        node.is_evacuated = True
        return [Event(Subject(NoticeKind.EVACUATED, "", node.cause, node.by), name, self._clock())]

    def _may_run(self, name: str, refusing: list[ListenerEntry]) -> bool:
        if any(entry.refusal_of(name) is not None for entry in refusing):
            return True
        reported = self._view.task_managers.with_listeners_on(name)
        return TaskCount.of(self._running(*each) for each in reported).may_run

    def _running(self, task_manager: str, listener: str) -> int | None:
        entry = self._directory.get(listener)
        return None if entry is None else entry.running_tasks.get(task_manager)

    def _new_drift(self) -> list[Event]:
        latest = self._drift.latest
        if latest is None or latest is self._last_report:
            return []
        self._last_report = latest
        now = latest.observed_at
        seen = {key: at for key, at in self._drift_seen_at.items() if now - at < REPEAT_MS}
        new = [each for each in latest.drift if _key(each) not in seen and self._began_since_start(each)]
        self._drift_seen_at = seen | dict.fromkeys(map(_key, latest.drift), now)
        return [_drift_event(each) for each in new]

    def _began_since_start(self, drift: Drift) -> bool:
        """After a restart, listeners report again what they had reported before."""
        entry = self._directory.get(drift.listener)
        is_new = entry is not None and entry.listener.registered_at >= self._started_at
        return drift.begin_observed or is_new


def _key(drift: Drift) -> tuple[str, str, str]:
    return drift.node, drift.kind.value, drift.listener


def _drift_event(drift: Drift) -> Event:
    subject = Subject(NoticeKind.DRIFT, "", drift.kind.value, drift.listener)
    return Event(subject, drift.node, drift.since, drift.reason)
