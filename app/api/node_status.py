"""Proof: who has applied a change. And the preference to be answered when all have."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Header, Request, Response

from app.api.applied import ListenerProgress, applied_by_live_listeners
from app.api.authorization import REQUIRE_READER
from app.api.client_quota import slots_of
from app.api.parameters import MinRevision, NodeId, wait_seconds
from app.api.problems import problem_responses
from app.api.responses import JsonResponse
from app.components import Components, components_of
from app.watch.disconnect import run_until_disconnect
from blocklist.model.changes import Change
from blocklist.model.errors import NotFoundError, UnavailableError
from blocklist.wire.listeners import NodeStatusBody
from blocklist.wire.nodes import Json, dump_json

router = APIRouter(tags=["Nodes"], dependencies=[REQUIRE_READER])

MAX_NAMED: Final = 20
"""At most so many listeners are named in a header."""


async def _wait(
    request: Request,
    prefer: Annotated[
        list[str] | None,
        Header(description="`wait=N`: answer when all live listeners have applied it, or after N (60) seconds."),
    ] = None,
) -> int | None:
    seconds = wait_seconds(prefer or [])
    if seconds is not None:
        await slots_of(request)  # before anything is changed
    return seconds


Wait = Annotated[int | None, Depends(_wait)]
"""Seconds of `Prefer: wait=N`, None without. Raises UnavailableError if the client has too many requests waiting."""


async def wait_until_applied(request: Request, revision: int, seconds: int | None) -> list[tuple[bytes, bytes]]:
    """Wait until all live listeners have applied `revision`, at most so long; the headers that say how it went."""
    if seconds is None:
        return []
    service = components_of(request)
    directory, feed = service.listeners, service.feed
    with suppress(UnavailableError):
        await service.registry.refresh()
    waiting = directory.acks.wait_for(lambda: feed.closed or not directory.not_applied(revision)[0], seconds)
    with await slots_of(request):
        await run_until_disconnect(request.receive, waiting)
    missing, live = directory.not_applied(revision)
    headers = [
        (b"preference-applied", b"wait=%d" % seconds),
        (b"blocklist-applied", b"%d/%d" % (live - len(missing), live)),
    ]
    if missing:
        headers.append((b"blocklist-not-applied", ", ".join(missing[:MAX_NAMED]).encode()))
    return headers


@router.head("/blocklist/nodes/{node_id}/status", dependencies=[MinRevision], include_in_schema=False)
@router.get(
    "/blocklist/nodes/{node_id}/status",
    summary="Who has applied a node's last change",
    dependencies=[MinRevision],
    response_model=NodeStatusBody,
    responses=problem_responses(400, 404, 503, _404="The log knows nothing of the node."),
)
async def get_status(request: Request, node_id: NodeId) -> Response:
    """For each live listener whether it has applied the node's last change, when, and what of it is still there."""
    service = components_of(request)
    change = await service.store.last_change(node_id)
    if change is None:
        raise NotFoundError(f"The log knows nothing of node {node_id}.")
    await service.registry.refresh()
    return JsonResponse(request, dump_json(_status(service, change)))


def _status(service: Components, change: Change) -> Json:
    listeners = [_progress_body(progress) for progress in applied_by_live_listeners(service, change)]
    return {
        "id": change.node.id,
        "blocked": service.view.get(change.node.id) is not None,
        "revision": change.revision,
        "at": str(change.at),
        "applied": sum(listener["applied"] for listener in listeners),
        "of": len(listeners),
        "listeners": listeners,
    }


def _progress_body(progress: ListenerProgress) -> Json:
    return {
        "id": progress.id,
        "role": progress.role,
        "applied": progress.applied,
        "appliedAt": None if progress.applied_at is None else str(progress.applied_at),
        "lateMs": progress.delay_ms,
        "refused": progress.refused,
        "taskManagers": [
            {"id": task_manager.id, "runningTasks": task_manager.running_tasks}
            for task_manager in progress.task_managers
        ],
    }
