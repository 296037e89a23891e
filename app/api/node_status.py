"""Which listeners have applied a change; and waiting for them with `Prefer: wait`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, Final, NamedTuple, Self

from fastapi import APIRouter, Header, Request, Response

from app.api.authentication import REQUIRE_READER, slots_of
from app.api.parameters import KNOWN_PARAMETERS, MinRevision, NodeId
from app.api.responses import JsonResponse, problem_responses
from app.engine.handler import Outcome
from app.listeners.state import ListenerEntry
from app.service import Service, service_of
from app.watch import applied_by, run_until_disconnect, wait_seconds
from blocklist.model.changes import Change, ChangeType
from blocklist.model.errors import NotFoundError, UnavailableError
from blocklist.model.listener import ListenerRole
from blocklist.model.node import ALL_LISTENERS, AppliedBy, BlockedNode, BlockState, TaskCount, block_state
from blocklist.wire.body import Json, dump_json
from blocklist.wire.listeners import NodeStatusBody
from blocklist.wire.nodes import repeat_body

# Which listeners have applied a change, and which TaskManagers are still on its node. For the API and the page.


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


@dataclass(frozen=True, kw_only=True, slots=True)
class ListenerProgress:
    """What is known of a change of a node at a live listener.

    `applied_at` is when it reported that (Unix milliseconds), `delay_ms` how long after the change: None if it has not
    applied the change, or if the time is no longer known. `pending_reason` is why the change is not in force yet; while
    it has not acknowledged it, what it last reported of the blocked node, perhaps why it refused an earlier block.
    `task_managers` are those of the listener on the node; they are unknown unless it `reports_task_managers`.
    """

    id: str
    role: str
    cluster: str | None
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
        return self.state is BlockState.PENDING

    @property
    def not_here(self) -> bool:
        return self.state is BlockState.NOT_HERE

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


router = APIRouter(tags=["Nodes"], dependencies=[REQUIRE_READER, KNOWN_PARAMETERS])

MAX_NAMED: Final = 20
"""Maximum number of listeners named in a header."""


AMBIGUOUS: Final = (
    "The id is the short name of several blocked nodes (`type` ends in `ambiguous-node`): `blockedNodes`."
)


Prefer = Annotated[
    list[str] | None,
    Header(
        description="`wait=N`: respond when all live listeners have applied or refused it, or after N seconds"
        " (maximum 60). With `applied-by=95%` as well, when that share of them has applied it; with"
        " `applied-by=managers`, when the ResourceManagers have, and only they are counted."
    ),
]


class Wait(NamedTuple):
    """How long the response to a change may wait, and for whom."""

    seconds: int
    by: AppliedBy = ALL_LISTENERS


async def requested_wait(request: Request, prefer: list[str] | None) -> Wait | None:
    """What `Prefer` asks, or None. Raises UnavailableError if the client has too many waiting requests."""
    seconds = wait_seconds(prefer or [])
    if seconds is None:
        return None
    await slots_of(request)  # reject before anything is changed
    return Wait(seconds, applied_by(prefer or []))


async def wait_until_applied(
    request: Request, outcome: Outcome[Any], nodes: Collection[BlockedNode], wait: Wait | None
) -> list[tuple[bytes, bytes]]:
    """Wait until the live listeners that `wait` asks for have applied the change of these nodes, or none is pending.

    `nodes` are as the change left them, or found them.

    Returns headers with the result. Raises UnavailableError if a new history begins: the change may be lost.
    """
    if wait is None:
        return []
    service, revision = service_of(request), outcome.revision
    directory, feed = service.directory, service.feed
    history, node_ids = feed.history, {node.id for node in nodes}
    with suppress(UnavailableError):
        await service.registry.refresh()

    def settled() -> bool:
        return feed.closed or feed.history != history or directory.is_applied(revision, node_ids, wait.by)

    with await slots_of(request):
        await run_until_disconnect(request.receive, directory.acks.wait_for(settled, wait.seconds))
    current = await _is_current(service)
    if feed.history != history:
        raise UnavailableError(
            "The database has begun a new history, after a failover or a restore: the change may be lost. Read the"
            " node, and send the change again if it is missing.",
            retry_after=1,
        )
    by = wait.by
    progress = directory.progress(revision, node_ids, by) if current else directory.unknown_progress(by)
    later, blocked = await _changes_since(service, revision), service.view.tracker.blocked(service.clock())
    superseded = superseded_nodes(nodes, outcome.changes, later, blocked)
    named = {
        b"blocklist-refused": progress.refused,
        b"blocklist-not-applied": progress.pending,
        b"blocklist-not-here": progress.not_here,
        b"blocklist-superseded": superseded,
    }
    waited_for = "" if by == ALL_LISTENERS else f", applied-by={by}"
    return [
        (b"preference-applied", b"wait=%d%b" % (wait.seconds, waited_for.encode())),
        # A listener that has acknowledged a later change that reverses this one does not have it in force.
        (b"blocklist-applied", b"%d/%d" % (0 if superseded else progress.applied, progress.total)),
        *((header, _named(ids)) for header, ids in named.items() if ids),
    ]


def _named(ids: Sequence[str]) -> bytes:
    """The ids in a header: the first ones, and how many more there are."""
    more = [f"and {len(ids) - MAX_NAMED} more"] if len(ids) > MAX_NAMED else []
    return ", ".join([*ids[:MAX_NAMED], *more]).encode()


class _Strength(IntEnum):
    """How a node is blocked, the weakest first."""

    FREE = 0
    CANARY = 1
    MARKED = 2
    EVACUATED = 3


def superseded_nodes(
    nodes: Collection[BlockedNode],
    changes: Collection[Change],
    later: Collection[Change],
    blocked: Mapping[str, BlockedNode],
) -> Sequence[str]:
    """The nodes that are not as a request left them, at present or at any time since, sorted.

    `nodes` are those of the request, `changes` what it changed of them, `later` what came after it, `blocked` are the
    blocks at present. A block that is stronger than the requested one has it in force; where a request weakened or
    removed a block, a stronger one is not what was requested.
    """
    # Where it changed nothing, it found the node as it was requested.
    made = {node.id: _strength(node) for node in nodes} | {it.node.id: _after(it) for it in changes}
    lessened = {it.node.id for it in changes if it.type.frees or it.type is ChangeType.NARROWED}
    since = [(it.node.id, _after(it)) for it in later if it.node.id in made]
    since += [(name, _strength(blocked.get(name))) for name in made]
    return sorted({name for name, it in since if it < made[name] or (name in lessened and it > made[name])})


def _after(change: Change) -> _Strength:
    return _strength(None if change.type.frees else change.node)


def _strength(node: BlockedNode | None) -> _Strength:
    if node is None:
        return _Strength.FREE
    if node.canary:
        return _Strength.CANARY
    return _Strength.EVACUATED if node.evacuates else _Strength.MARKED


async def _changes_since(service: Service, revision: int) -> Sequence[Change]:
    """The changes after a revision; none if they are no longer known."""
    feed = service.feed
    with suppress(UnavailableError):
        return await feed.changes(revision, feed.revision) or ()
    return ()


async def _is_current(service: Service) -> bool:
    """Read the registrations at other replicas; False if the database is unavailable.

    Another session of a listener may have taken over there: what the earlier one acknowledged here does not count.
    """
    try:
        await service.registry.refresh()
    except UnavailableError:
        return False
    return True


@router.head("/blocklist/nodes/{node_id}/status", dependencies=[MinRevision], include_in_schema=False)
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
        "of": sum(not listener.not_here for listener in progress),
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
