"""Proof: who has applied a change. And the preference to be answered when all have."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Header, Request, Response

from app.api.applied import Applied, applied_by_live
from app.api.authorization import READS
from app.api.client_quota import place_of
from app.api.parameters import MinRevision, NodeId, wait_seconds
from app.api.problems import documented
from app.api.responses import JsonAnswer
from app.components import Service, service_of
from app.watch.disconnect import until_disconnect
from blocklist.model.changes import Change
from blocklist.model.errors import NotFoundError, UnavailableError
from blocklist.wire.listeners import StatusBody
from blocklist.wire.nodes import Json, dump_json

router = APIRouter(tags=["Nodes"], dependencies=[READS])

NAMED: Final = 20
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
        await place_of(request)  # before anything is changed
    return seconds


Wait = Annotated[int | None, Depends(_wait)]
"""Seconds of `Prefer: wait=N`, None without. Raises UnavailableError if the client has too many requests waiting."""


async def applied(request: Request, revision: int, seconds: int | None) -> list[tuple[bytes, bytes]]:
    """Wait until all live listeners have applied `revision`, at most so long; the headers that say how it went."""
    if seconds is None:
        return []
    service = service_of(request)
    roll, feed = service.roll, service.feed
    with suppress(UnavailableError):
        await service.registry.refresh()
    waiting = roll.acks.until(lambda: feed.closed or not roll.not_applied(revision)[0], seconds)
    with await place_of(request):
        await until_disconnect(request.receive, waiting)
    missing, live = roll.not_applied(revision)
    headers = [
        (b"preference-applied", b"wait=%d" % seconds),
        (b"blocklist-applied", b"%d/%d" % (live - len(missing), live)),
    ]
    if missing:
        headers.append((b"blocklist-not-applied", ", ".join(missing[:NAMED]).encode()))
    return headers


@router.head("/blocklist/nodes/{node_id}/status", dependencies=[MinRevision], include_in_schema=False)
@router.get(
    "/blocklist/nodes/{node_id}/status",
    summary="Who has applied a node's last change",
    dependencies=[MinRevision],
    response_model=StatusBody,
    responses=documented(400, 404, 503, _404="The log knows nothing of the node."),
)
async def get_status(request: Request, node_id: NodeId) -> Response:
    """For each live listener whether it has applied the node's last change, when, and what of it is still there."""
    service = service_of(request)
    change = await service.store.last_change(node_id)
    if change is None:
        raise NotFoundError(f"The log knows nothing of node {node_id}.")
    await service.registry.refresh()
    return JsonAnswer(request, dump_json(_status(service, change)))


def _status(service: Service, change: Change) -> Json:
    listeners = [_applied(own) for own in applied_by_live(service, change)]
    return {
        "id": change.node.id,
        "blocked": service.view.get(change.node.id) is not None,
        "revision": change.revision,
        "at": str(change.at),
        "applied": sum(listener["applied"] for listener in listeners),
        "of": len(listeners),
        "listeners": listeners,
    }


def _applied(own: Applied) -> Json:
    return {
        "id": own.id,
        "role": own.role,
        "applied": own.applied,
        "appliedAt": None if own.at is None else str(own.at),
        "lateMs": own.late,
        "refused": own.refused,
        "taskManagers": [{"id": there.id, "runningTasks": there.tasks} for there in own.task_managers],
    }
