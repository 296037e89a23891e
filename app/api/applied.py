"""Which listeners have applied a change, and which TaskManagers are still on its node. For the API and the page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from app.listeners.state import ListenerEntry
from app.service import Service
from blocklist.model.changes import Change


@dataclass(frozen=True, slots=True)
class TaskManager:
    """A TaskManager, its listener, and its number of running tasks; None if not reported."""

    id: str
    listener: str
    running_tasks: int | None

    @classmethod
    def of(cls, service: Service, task_manager: str, listener: str) -> Self:
        """The TaskManager as this listener last reported it."""
        entry = service.directory.get(listener)
        return cls(task_manager, listener, None if entry is None else entry.running_tasks.get(task_manager))


@dataclass(frozen=True, kw_only=True, slots=True)
class ListenerProgress:
    """Whether a live listener has applied a change of a node.

    `applied_at` is when it reported that (Unix milliseconds), `delay_ms` how long after the change: None if it has not
    applied the change, or if the time is no longer known. `pending_reason` is what it last reported of the blocked node
    while it has not acknowledged the change: why it cannot yet, or why it refused an earlier block. `task_managers` are
    those of the listener on the node; they are unknown unless it `reports_task_managers`.
    """

    id: str
    role: str
    applied: bool
    applied_at: int | None
    delay_ms: int | None
    refused: str | None
    pending_reason: str | None
    task_managers: Sequence[TaskManager]
    reports_task_managers: bool

    @property
    def pending(self) -> bool:
        """Whether it has neither applied nor refused the change."""
        return not self.applied and self.refused is None

    @classmethod
    def of_listener(cls, entry: ListenerEntry, change: Change, task_managers: Sequence[TaskManager]) -> Self:
        """The current state; `task_managers` are those of the listener on the node of the change."""
        applied = entry.has_applied(change.revision, change.node.id)
        applied_at = entry.acked_at(change.revision) if applied else None
        reason = entry.refusal_of(change.node.id)
        acked = entry.has_acked(change.revision)
        return cls(
            id=entry.id,
            role=entry.listener.role.value,
            applied=applied,
            applied_at=applied_at,
            delay_ms=None if applied_at is None else max(0, applied_at - change.at),
            # Before it has acknowledged the change, it can only have refused an earlier one, or be at it.
            refused=reason if acked else None,
            pending_reason=None if acked or change.type.frees else reason,
            task_managers=task_managers,
            reports_task_managers=entry.report.task_managers is not None,
        )


def task_managers_on(service: Service, node_id: str) -> list[TaskManager]:
    """The TaskManagers on a node, sorted by id; one that two principals report is there for each of them."""
    return [TaskManager.of(service, *reported) for reported in service.view.task_managers.with_listeners_on(node_id)]


def by_listener(task_managers: Iterable[TaskManager]) -> dict[str, list[TaskManager]]:
    """TaskManagers by the id of their listener."""
    grouped = defaultdict[str, list[TaskManager]](list)
    for task_manager in task_managers:
        grouped[task_manager.listener].append(task_manager)
    return dict(grouped)


def applied_by_live_listeners(service: Service, change: Change) -> list[ListenerProgress]:
    """The progress of each live listener, sorted by id."""
    there = by_listener(task_managers_on(service, change.node.id))
    progress = [
        ListenerProgress.of_listener(entry, change, there.get(entry.id, ())) for entry in service.directory.live()
    ]
    return sorted(progress, key=lambda listener: listener.id)
