"""Applied: how far a listener is with a change, and which TaskManagers are still there. For the API and the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from app.components import Components
from app.listeners.entry import ListenerEntry
from blocklist.model.changes import Change


@dataclass(frozen=True, slots=True)
class TaskManager:
    """One that is there, and whose it is; `tasks` that run on it, None where nobody has said."""

    id: str
    listener: str | None
    running_tasks: int | None

    @classmethod
    def of(cls, service: Components, task_manager: str) -> Self:
        """As its listener last said."""
        owner = service.view.task_managers.owner_of(task_manager)
        member = None if owner is None else service.listeners.get(owner)
        return cls(task_manager, owner, None if member is None else member.running_tasks.get(task_manager))


@dataclass(frozen=True, kw_only=True, slots=True)
class ListenerProgress:
    """How far a live listener is with a change.

    `at` is when it said that it has applied it, in Unix milliseconds, `late` how long that was after the change, in
    milliseconds: None where it has yet to, or nobody remembers. `task_managers` are its own on the node.
    """

    id: str
    role: str
    applied: bool
    applied_at: int | None
    delay_ms: int | None
    refused: str | None
    task_managers: Sequence[TaskManager]

    @classmethod
    def of_listener(cls, service: Components, member: ListenerEntry, change: Change) -> Self:
        """As it is now."""
        applied_at = member.applied_at(change.revision)
        task_managers = service.view.task_managers.of_listener(member.id, change.node.id)
        return cls(
            id=member.id,
            role=member.listener.role.value,
            applied=member.has_applied(change.revision),
            applied_at=applied_at,
            delay_ms=None if applied_at is None else max(0, applied_at - change.at),
            refused=member.refused.get(change.node.id),
            task_managers=[TaskManager.of(service, task_manager) for task_manager in task_managers],
        )


def task_managers_on(service: Components, node_id: str) -> list[TaskManager]:
    """The TaskManagers on a node, by id."""
    return [TaskManager.of(service, task_manager) for task_manager in service.view.task_managers.on_node(node_id)]


def applied_by_live_listeners(service: Components, change: Change) -> list[ListenerProgress]:
    """How far each live listener is with a change, by id."""
    progress = [ListenerProgress.of_listener(service, member, change) for member in service.listeners.live()]
    return sorted(progress, key=lambda task_manager: task_manager.id)
