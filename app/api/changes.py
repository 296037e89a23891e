"""The change log: as JSON, page by page, and as a stream of server-sent events."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from pydantic import AfterValidator

from app.api.authentication import hold
from app.api.authorization import READS
from app.api.client_quota import place_of
from app.api.parameters import NODE_ID_PATTERN, Limit, MinRevision, Moment, Revision
from app.api.problems import documented
from app.api.responses import JsonAnswer
from app.components import service_of
from app.store.history_queries import Wanted
from app.store.store import Page
from app.watch.event_stream import DIRECT, Watch, parse_cursor
from app.watch.ndjson_export import PAGE, Export
from app.watch.streaming import StreamResponse
from blocklist.model.changes import Change, ChangeType
from blocklist.model.errors import CompactedError, InvalidError
from blocklist.model.node import check_node_id, check_text
from blocklist.wire.nodes import TEXT_PATTERN, ChangesPage, CompactedProblem, change_body, dump_json

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
    **documented(400, 503, _503="The client has too many watches open; `Retry-After` says when to try again."),
}


_LINES: Final = "application/x-ndjson"
_LOG: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A page; as JSON lines all changes to the end, whatever the limit, one on each line.",
        "content": {
            _LINES: {"schema": {"type": "string"}, "example": '{"revision":1,"type":"blocked",…}\n{"revision":2,…}\n'}
        },
    },
    **documented(400, 503),
    **documented(410, model=CompactedProblem),
}


async def _wanted(
    node: Annotated[
        str | None,
        Query(description="Only changes of this node.", json_schema_extra={"pattern": NODE_ID_PATTERN}),
    ] = None,
    created_by: Annotated[
        str | None,
        Query(
            alias="createdBy",
            min_length=1,
            max_length=253,
            description="Only what this author did.",
            json_schema_extra={"pattern": TEXT_PATTERN},
        ),
        AfterValidator(lambda text: text if text is None else check_text(text)),
    ] = None,
    kinds: Annotated[
        list[ChangeType] | None, Query(alias="type", description="Only these kinds; may be given again.")
    ] = None,
    begin: Annotated[Moment | None, Query(alias="from", description="Only from this moment on (Unix ms).")] = None,
    end: Annotated[Moment | None, Query(alias="until", description="Only before this moment (Unix ms).")] = None,
) -> Wanted:
    if node is not None:
        check_node_id(node)
    return Wanted(node_id=node, created_by=created_by, kinds=tuple(kinds or ()), begin=begin, end=end)


@router.head("/blocklist/changes", dependencies=[MinRevision], include_in_schema=False)
@router.get(
    "/blocklist/changes",
    summary="The change log",
    dependencies=[MinRevision],
    response_model=ChangesPage,
    responses=_LOG,
)
async def get_changes(
    request: Request,
    wanted: Annotated[Wanted, Depends(_wanted)],
    since: Annotated[Revision, Query(description="Changes after this revision.")] = 0,
    limit: Annotated[Limit, Query(description="At most so many.")] = 100,
    accept: Annotated[
        list[str] | None, Header(description=f"`{_LINES}`: all changes to the end as JSON lines.")
    ] = None,
) -> Response:
    """Who blocked what, when and until when, in the order of revisions. 410 if `since` is compacted."""
    service = service_of(request)
    revision = service.view.tracker.revision
    lines = _takes_lines(accept or [])
    page = await service.store.page(since, PAGE if lines else limit + 1, wanted)
    if since < page.compacted:
        raise CompactedError(
            f"The changes after {since} are gone: the log begins at revision {page.compacted + 1}.",
            oldest=page.compacted + 1,
        )
    # A commit that is being published right now belongs to the next answer.
    changes = [change for change in page.changes if change.revision <= revision]
    if lines and request.method == "GET":
        page = Page(changes=changes, compacted=page.compacted)
        export = Export(service.store, service.feed, wanted, page, until=revision)
        hold(request, export)
        return StreamResponse(export)
    answer = JsonAnswer(request, dump_json(_page(changes, limit, revision)), revision=revision)
    answer.raw_headers.append((b"vary", b"Accept"))
    return answer


def _takes_lines(accept: list[str]) -> bool:
    """Whether an Accept header names JSON lines: who says nothing, or takes anything, gets a page."""
    kinds = [item.partition(";") for item in ",".join(accept).lower().split(",")]
    return any(kind.strip() == _LINES and weight.replace(" ", "") != "q=0" for kind, _, weight in kinds)


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
    stream = Watch(service.view, service.feed, cursor, write, await place_of(request))
    hold(request, stream)
    return StreamResponse(stream)
