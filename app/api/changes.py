"""The change log: as JSON, page by page, and as a stream of server-sent events."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response

from app.api.access import READS
from app.api.answers import JsonAnswer
from app.api.errors import documented
from app.api.parameters import NODE_ID_PATTERN, Limit, MinRevision, Revision
from app.notify.streaming import StreamResponse
from app.notify.watch import DIRECT, Watch, parse_cursor
from app.service import service_of
from blocklist.changes import Change
from blocklist.errors import CompactedError, InvalidError
from blocklist.node import check_node_id
from blocklist.wire import ChangesPage, CompactedProblem, change_body, dump_json

router = APIRouter(tags=["Changes"], dependencies=[READS])

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "`snapshot`, `blocked`, `merged`, `unblocked`, `expired` and, when the service stops, `bye`.",
        "content": {
            "text/event-stream": {
                "schema": {"type": "string"},
                "example": 'id: 7-8ad3c09f\nevent: blocked\ndata: {"revision":7,"type":"blocked",…}\n\n',
            }
        },
    },
    **documented(400),
}


@router.head("/blocklist/changes", dependencies=[MinRevision], include_in_schema=False)
@router.get(
    "/blocklist/changes",
    summary="The change log",
    dependencies=[MinRevision],
    response_model=ChangesPage,
    responses={**documented(400, 503), **documented(410, model=CompactedProblem)},
)
async def get_changes(
    request: Request,
    since: Annotated[Revision, Query(description="Changes after this revision.")] = 0,
    limit: Annotated[Limit, Query(description="At most so many.")] = 100,
    node: Annotated[
        str | None,
        Query(description="Only changes of this node.", json_schema_extra={"pattern": NODE_ID_PATTERN}),
    ] = None,
) -> Response:
    """Who blocked what, when and until when, in the order of revisions. 410 if `since` is compacted."""
    service = service_of(request)
    if node is not None:
        check_node_id(node)
    revision = service.view.tracker.revision
    page = await service.store.page(since, limit + 1, node)
    if since < page.compacted:
        raise CompactedError(
            f"The changes after {since} are gone: the log begins at revision {page.compacted + 1}.",
            oldest=page.compacted + 1,
        )
    # A commit that is being published right now belongs to the next answer.
    changes = [change for change in page.changes if change.revision <= revision]
    return JsonAnswer(request, dump_json(_page(changes, limit, revision)), revision=revision)


def _page(changes: list[Change], limit: int, revision: int) -> dict[str, Any]:
    shown = changes[:limit]
    return {
        "changes": [change_body(change) for change in shown],
        "revision": revision,
        "next": shown[-1].revision if len(changes) > limit else None,
    }


@router.get("/blocklist/watch", summary="Changes as they happen", response_class=Response, responses=_STREAM)
async def watch(
    request: Request,
    since: Annotated[str | None, Query(description="`<revision>-<history>`, or a bare revision.")] = None,
    last_event_id: Annotated[str | None, Header(description="The id of the last event; wins over `since`.")] = None,
) -> Response:
    """Every change after a revision, in order, none twice and none missing; without one a snapshot first."""
    service = service_of(request)
    history = service.view.tracker.history
    cursor = None
    if last_event_id is not None:
        try:
            cursor = parse_cursor(last_event_id, history)
        except InvalidError:
            cursor = None
    elif since is not None:
        cursor = parse_cursor(since, history)
    write = request.scope.get("extensions", {}).get(DIRECT, {}).get("write")
    return StreamResponse(Watch(service.view, service.feed, cursor, write))
