"""Applied: how far a listener is with a change, and which TaskManagers are still there. For the API and the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from app.components import Service
from app.listeners.member import Member
from blocklist.model.changes import Change


@dataclass(frozen=True, slots=True)
class TaskManager:
    """One that is there, and whose it is; `tasks` that run on it, None where nobody has said."""

    id: str
    listener: str | None
    tasks: int | None

    @classmethod
    def of(cls, service: Service, task_manager: str) -> Self:
        """As its listener last said."""
        owner = service.view.task_managers.owner_of(task_manager)
        member = None if owner is None else service.roll.get(owner)
        return cls(task_manager, owner, None if member is None else member.running.get(task_manager))


@dataclass(frozen=True, kw_only=True, slots=True)
class Applied:
    """How far a live listener is with a change.

    `at` is when it said that it has applied it, in Unix milliseconds, `late` how long that was after the change, in
    milliseconds: None where it has yet to, or nobody remembers. `task_managers` are its own on the node.
    """

    id: str
    role: str
    applied: bool
    at: int | None
    late: int | None
    refused: str | None
    task_managers: Sequence[TaskManager]

    @classmethod
    def of(cls, service: Service, member: Member, change: Change) -> Self:
        """As it is now."""
        at = member.applied_at(change.revision)
        there = service.view.task_managers.of(member.id, change.node.id)
        return cls(
            id=member.id,
            role=member.listener.role.value,
            applied=member.applied(change.revision),
            at=at,
            late=None if at is None else max(0, at - change.at),
            refused=member.refused.get(change.node.id),
            task_managers=[TaskManager.of(service, own) for own in there],
        )


def there_now(service: Service, node_id: str) -> list[TaskManager]:
    """The TaskManagers on a node, by id."""
    return [TaskManager.of(service, own) for own in service.view.task_managers.on(node_id)]


def applied_by_live(service: Service, change: Change) -> list[Applied]:
    """How far each live listener is with a change, by id."""
    found = [Applied.of(service, member, change) for member in service.roll.live()]
    return sorted(found, key=lambda own: own.id)
