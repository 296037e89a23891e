"""The change log: as JSON pages, as JSON lines, and as a stream of server-sent events."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import structlog
from fastapi import Depends, Header, Query, Request, Response
from starlette.types import Receive, Send

from app.api.parameters import (
    KNOWN_PARAMETERS,
    REQUIRE_READER,
    ApiRouter,
    AuthorName,
    From,
    MinRevision,
    Page,
    PageRequest,
    Revision,
    Until,
    end_with_credential,
    slots_of,
)
from app.api.responses import CompactedProblem, JsonResponse, problem_responses
from app.service import service_of
from app.store.queries import ChangeFilter
from app.store.store import ChangePage, Store
from app.watch import DIRECT, ChangeFeed, EventStream, StreamResponse, parse_cursor, run_until_disconnect
from blocklist.model.changes import Change, ChangeType
from blocklist.model.errors import CompactedError, InvalidError, UnavailableError
from blocklist.model.node import check_node_id
from blocklist.wire.body import ID_SCHEMA, dump_json
from blocklist.wire.changes import ChangesPage, change_body

log = structlog.get_logger(__name__)

router = ApiRouter(tags=["Changes"], dependencies=[REQUIRE_READER, KNOWN_PARAMETERS])

_WATCH_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events: `snapshot`, `blocked`, `merged`, `narrowed`, `unblocked`, `expired`; `bye` when the"
        " service stops; `ping`, without an id, every 15 s. A change of another type leaves the node as it is in the"
        " change.",
        "content": {
            "text/event-stream": {
                "schema": {"type": "string"},
                "example": 'id: 7-8ad3c09f\nevent: blocked\ndata: {"revision":7,"type":"blocked",…}\n\n',
            }
        },
    },
    **problem_responses(400, 503, _503="The client has too many open watches; retry after `Retry-After` seconds."),
}


_NDJSON: Final = "application/x-ndjson"
_CHANGES_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A page of changes; with `Accept: application/x-ndjson`, JSON lines to the end of the log.",
        "content": {
            _NDJSON: {"schema": {"type": "string"}, "example": '{"revision":1,"type":"blocked",…}\n{"revision":2,…}\n'}
        },
    },
    **problem_responses(400, 503),
    **problem_responses(410, model=CompactedProblem),
}


async def _change_filter(
    node: Annotated[
        str | None,
        Query(
            description="Only changes of this node, under any name of its machine.",
            json_schema_extra=dict(ID_SCHEMA),
        ),
    ] = None,
    created_by: Annotated[
        AuthorName | None, Query(alias="createdBy", description="Only changes by this author.")
    ] = None,
    types: Annotated[
        list[ChangeType] | None, Query(alias="type", description="Only changes of this type; may be repeated.")
    ] = None,
    begin: From = None,
    end: Until = None,
) -> ChangeFilter:
    node_id = None if node is None else check_node_id(node)
    return ChangeFilter(node_id=node_id, created_by=created_by, kinds=tuple(types or ()), begin=begin, end=end)


@router.get(
    "/blocklist/changes",
    summary="The change log",
    operation_id="listChanges",
    dependencies=[MinRevision],
    response_model=ChangesPage,
    responses=_CHANGES_RESPONSES,
)
async def get_changes(
    request: Request,
    page: Page,
    change_filter: Annotated[ChangeFilter, Depends(_change_filter)],
    since: Annotated[Revision, Query(description="Only changes after this revision.")] = 0,
    newest: Annotated[
        Literal["true", "false"],
        Query(description="`true`: the newest first; always pages of JSON, and never 410."),
    ] = "false",
) -> Response:
    """The changes after a revision, in order. 410 if they have been compacted."""
    service = service_of(request)
    revision = service.view.tracker.revision
    after = page.number("another revision in decimal digits")
    ndjson = _accepts_ndjson(request.headers.getlist("accept"))
    if newest == "true":
        # One that is committed but not yet published is left out, as below.
        before = revision + 1 if after is None else min(after, revision + 1)
        latest = await service.store.latest_changes(page.limit + 1, change_filter, before=before)
        return _page_response(request, page, [it for it in latest if it.revision > since], revision)
    begin = max(since, after or 0)
    found = await service.store.changes_page(begin, PAGE_CHANGES if ndjson else page.limit + 1, change_filter)
    if begin < found.compacted:
        raise CompactedError(
            f"The changes after {begin} have been compacted: the log begins at revision {found.compacted + 1}.",
            oldest=found.compacted + 1,
        )
    # A change that is committed but not yet published belongs to the next page.
    changes = [change for change in found.changes if change.revision <= revision]
    if ndjson and request.method == "GET":
        first = ChangePage(changes=changes, compacted=found.compacted)
        export = NdjsonExport(service.store, service.feed, change_filter, first, until=revision)
        end_with_credential(request, export)
        return StreamResponse(export)
    return _page_response(request, page, changes, revision)


def _accepts_ndjson(accept: list[str]) -> bool:
    """Whether an Accept header names JSON lines; without a header, or with `*/*`, a page is returned."""
    types = [item.partition(";") for item in ",".join(accept).lower().split(",")]
    return any(media_type.strip() == _NDJSON and weight.replace(" ", "") != "q=0" for media_type, _, weight in types)


def _page_response(request: Request, page: PageRequest, found: list[Change], revision: int) -> Response:
    changes, following = page.cut(found, lambda change: change.revision)
    body = {"changes": [change_body(change) for change in changes], "revision": revision, "next": following}
    response = JsonResponse(request, dump_json(body), revision=revision)
    response.raw_headers.append((b"vary", b"Accept"))
    return response


@router.api_route(
    "/blocklist/watch",
    methods=["GET"],
    summary="Watch changes",
    operation_id="watchChanges",
    response_class=Response,
    responses=_WATCH_RESPONSES,
)
async def watch(
    request: Request,
    since: Annotated[
        str | None, Query(description="Start after this revision: `<revision>-<history>` or a revision.")
    ] = None,
    last_event_id: Annotated[
        str | None, Header(description="The id of the last received event; takes precedence over `since`.")
    ] = None,
) -> Response:
    """Stream every change after a revision exactly once and in order. Without a revision, a snapshot comes first."""
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
    stream = EventStream(service.view, service.feed, cursor, write, await slots_of(request))
    end_with_credential(request, stream)
    return StreamResponse(stream)


# NdjsonExport: the change log, filtered, as JSON lines up to its current end, with one page in memory.

PAGE_CHANGES: Final = 500
"""Number of changes read and sent at once."""


class NdjsonExport:
    """Starts with `page`, of PAGE_CHANGES changes, and ends at revision `until`; reads on as fast as the client does.

    If the rest cannot be sent (compacted meanwhile, database unavailable, credential ended, service stopping), the
    response ends without the end of its body, so that the client does not take a part for the whole.
    """

    def __init__(self, store: Store, feed: ChangeFeed, criteria: ChangeFilter, page: ChangePage, *, until: int) -> None:
        self._store = store
        self._feed = feed
        self._criteria = criteria
        self._page = page
        self._until = until
        self._ended = False

    def close(self) -> None:
        """Send no more: the credential of the request has ended."""
        self._ended = True

    async def run(self, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self._headers()})
        await run_until_disconnect(receive, self._lines(send))

    async def _lines(self, send: Send) -> None:
        page = self._page
        while True:
            sent = [change for change in page.changes if change.revision <= self._until]
            more = len(sent) == PAGE_CHANGES
            body = b"".join(map(_line, sent))
            await send({"type": "http.response.body", "body": body, "more_body": more})
            if not more:
                return
            since = sent[-1].revision
            try:
                page = await self._store.changes_page(since, PAGE_CHANGES, self._criteria)
            except UnavailableError as error:
                log.warning("export aborted", reason=error.detail)
                return
            if page.compacted > since or self._feed.closed or self._ended:
                log.warning("export aborted", compacted=page.compacted > since, stopping=self._feed.closed)
                return

    def _headers(self) -> list[tuple[bytes, bytes]]:
        return [
            (b"content-type", b"application/x-ndjson"),
            (b"cache-control", b"no-cache"),
            (b"vary", b"Accept"),
            (b"blocklist-revision", b"%d" % self._until),
            (b"blocklist-history", self._feed.history.encode()),
        ]


def _line(change: Change) -> bytes:
    return dump_json(change_body(change)) + b"\n"
