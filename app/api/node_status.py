"""Which listeners have applied a change, and which TaskManagers are still on its node. For the API and the page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

from fastapi import Request, Response

from app.api.parameters import KNOWN_PARAMETERS, REQUIRE_READER, ApiRouter, MinRevision, NodeId
from app.api.responses import JsonResponse, problem_responses
from app.listeners.state import ListenerEntry
from app.service import Service, service_of
from blocklist.model.changes import Change
from blocklist.model.errors import NotFoundError
from blocklist.model.listener import ListenerRole, Mode
from blocklist.model.node import BlockState, TaskCount, block_state
from blocklist.wire.body import Json, dump_json
from blocklist.wire.listeners import NodeStatusBody
from blocklist.wire.nodes import repeat_body


@dataclass(frozen=True, slots=True)
class TaskManager:
    """A TaskManager, its listener, and its number of running tasks; None if not reported."""

    id: str
    listener: str
    running_tasks: int | None

    @classmethod
    def of(cls, service: Service, task_manager: str, listener: str) -> Self:
        """The TaskManager as this listener last reported it."""
        return cls(task_manager, listener, service.directory.running_tasks(task_manager, listener))

    def body(self) -> Json:
        return {"id": self.id, "listener": self.listener, "runningTasks": self.running_tasks}


@dataclass(frozen=True, kw_only=True, slots=True)
class ListenerProgress:
    """What is known of a change of a node at a live listener.

    `applied_at` is when it reported that (Unix milliseconds), `delay_ms` how long after the change: None if it has not
    applied the change, or if the time is no longer known. `pending_reason` is why the change is not in force yet; while
    it has not acknowledged it, what it last reported of the blocked node, perhaps why it refused an earlier block.
    `would` is what it would do in the mode observe. `task_managers` are those of the listener on the node; they are
    unknown unless it `reports_task_managers`.
    """

    id: str
    role: str
    cluster: str | None
    mode: Mode
    would: str | None
    state: BlockState
    applied_at: int | None
    delay_ms: int | None
    refused: str | None
    pending_reason: str | None
    task_managers: Sequence[TaskManager]
    reports_task_managers: bool

    @property
    def applied(self) -> bool:
        return self.state.is_applied

    @property
    def pending(self) -> bool:
        return self.state is BlockState.PENDING and self.mode is Mode.APPLY

    @property
    def not_here(self) -> bool:
        return self.state is BlockState.NOT_HERE

    @property
    def counts(self) -> bool:
        """Whether the change is for it: the node is one of its own, and it applies blocks."""
        return not self.not_here and self.mode is Mode.APPLY

    @classmethod
    def of_listener(
        cls, service: Service, entry: ListenerEntry, change: Change, task_managers: Sequence[TaskManager]
    ) -> Self:
        """The current state; `task_managers` are those of the listener on the node of the change."""
        reports = entry.reports_task_managers or entry.listener.role is ListenerRole.RESOURCE_MANAGER
        tasks = TaskCount.of((each.running_tasks for each in task_managers), silent=not reports)
        state = entry.state_of(change.revision, change.node.id, tasks)
        applied_at = entry.applied_at(change.revision, change.node.id)
        refused, pending = entry.refusal_of(change.node.id), entry.pending_reason_of(change.node.id)
        if not entry.has_confirmed(change.revision):
            # It can only have refused an earlier change, or be at this one.
            refused, pending = None, None if change.type.frees else refused or pending
        return cls(
            id=entry.id,
            role=entry.listener.role.value,
            cluster=service.directory.cluster_of(entry),
            mode=entry.mode,
            would=entry.would_do(change.node.id),
            state=state,
            applied_at=applied_at,
            delay_ms=None if applied_at is None else max(0, applied_at - change.at),
            refused=refused,
            pending_reason=pending,
            task_managers=task_managers,
            reports_task_managers=entry.reports_task_managers,
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
        ListenerProgress.of_listener(service, entry, change, there.get(entry.id, ()))
        for entry in service.directory.live()
    ]
    return sorted(progress, key=lambda listener: listener.id)


def state_at_all(service: Service, change: Change, listeners: Sequence[ListenerProgress]) -> BlockState:
    """What is known of the change at all live listeners together, and of what runs on its node."""
    directory = service.directory
    return block_state(
        directory.tasks_on(change.node.id, silent=directory.silent_on()(change.node.id)),
        refused=any(each.state is BlockState.REFUSED for each in listeners),
        applied=not any(each.pending for each in listeners),
        not_here=directory.is_nowhere(change.node.id),
    )


router = ApiRouter(tags=["Nodes"], dependencies=[REQUIRE_READER, KNOWN_PARAMETERS])

AMBIGUOUS: Final = (
    "The id is the short name of several blocked nodes (`type` ends in `ambiguous-node`): `blockedNodes`."
)


@router.get(
    "/blocklist/nodes/{node_id}/status",
    summary="Which listeners have applied a node's last change",
    operation_id="getNodeStatus",
    dependencies=[MinRevision],
    response_model=NodeStatusBody,
    responses=problem_responses(400, 404, 409, 503, _404="The change log has no entry for this node.", _409=AMBIGUOUS),
)
async def get_status(request: Request, node_id: NodeId) -> Response:
    """For each live listener: whether and when it applied the node's last change, and its TaskManagers on the node."""
    service = service_of(request)
    blocked = service.view.get(node_id)
    change = await service.store.last_change(node_id if blocked is None else blocked.id)
    if change is None:
        raise NotFoundError(f"The change log has no entry for node {node_id}.")
    await service.registry.refresh()
    return JsonResponse(request, dump_json(_status(service, change)))


def _status(service: Service, change: Change) -> Json:
    progress = applied_by_live_listeners(service, change)
    return {
        "id": change.node.id,
        "blocked": service.view.get(change.node.id) is not None,
        "revision": change.revision,
        "at": str(change.at),
        "applied": sum(listener.applied for listener in progress),
        "of": sum(listener.counts for listener in progress),
        "state": state_at_all(service, change, progress),
        "automaticBlocks": service.automatic_blocks.count(service.view.tracker, change.node.id, service.clock()),
        "repeat": None if change.repeat is None else repeat_body(change.repeat),
        "listeners": list(map(_progress_body, progress)),
    }


def _progress_body(progress: ListenerProgress) -> Json:
    return {
        "id": progress.id,
        "role": progress.role,
        "cluster": progress.cluster,
        "applied": progress.applied,
        "notHere": progress.not_here,
        "mode": progress.mode,
        "would": progress.would,
        "appliedAt": None if progress.applied_at is None else str(progress.applied_at),
        "lateMs": progress.delay_ms,
        "refused": progress.refused,
        "pendingReason": progress.pending_reason,
        "taskManagers": [
            {"id": task_manager.id, "runningTasks": task_manager.running_tasks}
            for task_manager in progress.task_managers
        ],
        "reportsTaskManagers": progress.reports_task_managers,
    }
