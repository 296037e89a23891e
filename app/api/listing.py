"""GET /blocklist. Plain requests are answered by app.http.fast_path, all others here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Annotated

from fastapi import Header, Query, Request, Response

from app.api.nodes import ReadSelector, selected_by, warnings_of
from app.api.parameters import (
    KNOWN_PARAMETERS,
    REQUIRE_READER,
    ApiRouter,
    MinRevision,
    Timestamp,
    check_after_wait,
    list_at,
    slots_of,
)
from app.api.responses import FROM_MEMORY, CompactedProblem, age_header, problem_responses
from app.engine.cached_list import CachedList, CachedResponse
from app.engine.list_view import past_list
from app.requests import Flag
from app.service import Service, service_of
from app.watch import run_until_disconnect, wait_seconds
from blocklist.model.node import BlockedNode
from blocklist.model.selector import Selector
from blocklist.wire.nodes import ListedNode

router = ApiRouter(tags=["The list"], dependencies=[REQUIRE_READER, KNOWN_PARAMETERS])

_NODES_PER_TURN = 500
_EXAMPLE = {
    "worker-17": {
        "action": "MARK_BLOCKED_AND_EVACUATE_TASKS",
        "startTimestamp": "1652315400000",
        "endTimestamp": "1652319000000",
        "cause": "No space left on device",
        "taskManagers": [],
    }
}
LIST_HEADERS = {
    "ETag": {"schema": {"type": "string"}, "description": "The tag of the body; each encoding has its own."},
    "Blocklist-Revision": {"schema": {"type": "string", "pattern": "^[0-9]+$"}},
    "Blocklist-History": {"schema": {"type": "string", "pattern": "^[0-9a-f]{8}$"}},
}


@router.get(
    "/blocklist",
    summary="The blocked nodes",
    operation_id="listBlockedNodes",
    dependencies=[MinRevision, FROM_MEMORY],
    response_model=dict[str, ListedNode],
    responses={
        200: {"headers": LIST_HEADERS, "content": {"application/json": {"example": _EXAMPLE}}},
        304: {"description": "The list still matches `If-None-Match`.", "headers": LIST_HEADERS},
        **problem_responses(400, 503),
        **problem_responses(410, model=CompactedProblem, _410="The changes since `at` have been compacted."),
    },
)
async def get_blocklist(
    request: Request,
    if_none_match: Annotated[list[str] | None, Header(description="ETags that the client has stored.")] = None,
    prefer: Annotated[
        list[str] | None,
        Header(
            description="`wait=N`: if `If-None-Match` matches, wait for a change for at most N seconds (maximum 60)."
        ),
    ] = None,
    details: Annotated[
        Flag, Query(description="Include the author and the revision of each node's last change.")
    ] = False,
    at: Annotated[
        Timestamp | None,
        Query(description="Return the list as it was at this time (Unix ms), with its revision, without TaskManagers."),
    ] = None,
    selector: ReadSelector = None,
) -> Response:
    """All blocked nodes by id, sorted by id. A block is absent from the moment it expires."""
    service = service_of(request)
    view = service.view
    selected = selected_by(service, selector)
    view.route_reads += 1
    etags = ",".join(if_none_match).encode("latin-1") if if_none_match is not None else None
    accepted = ",".join(request.headers.getlist("accept-encoding")).encode("latin-1") or None
    if at is not None:
        past = await _list_at(service, at, selected, details=details)
        return PreparedResponse(past.response_for(etags, accepted), warnings_of(service, selector))
    render: Callable[[], CachedList] = view.current_list
    if details or selected is not None:
        render = partial(service.selected_lists.get, selector or Selector(), details=details)
    seconds = wait_seconds(prefer or [])
    applied = seconds is not None and etags is not None and render().matches(etags)
    if applied:
        with await slots_of(request):
            await run_until_disconnect(request.receive, _until_changed(service, render, etags or b"", seconds or 0))
        check_after_wait(request)
    extra = age_header(request) + warnings_of(service, selector)
    extra += [(b"preference-applied", b"wait=%d" % (seconds or 0))] if applied else []
    return PreparedResponse(render().response_for(etags, accepted), extra)


async def _list_at(
    service: Service, timestamp: int, selected: Callable[[str], bool] | None, *, details: bool
) -> CachedList:
    """The list at a past time. Raises InvalidError, CompactedError, UnavailableError."""
    past = await list_at(service, timestamp)
    if selected is not None:
        past = replace(past, nodes={node.id: node async for node in _only_selected(past.nodes.values(), selected)})
    # In a thread, because a long list would block the event loop.
    return await asyncio.to_thread(past_list, past, service.view, details=details)


async def _only_selected(nodes: Iterable[BlockedNode], selected: Callable[[str], bool]) -> AsyncIterator[BlockedNode]:
    """In the event loop, to which the labels belong; other requests run in between."""
    for number, node in enumerate(nodes):
        if selected(node.id):
            yield node
        if number % _NODES_PER_TURN == 0:
            await asyncio.sleep(0)


async def _until_changed(service: Service, render: Callable[[], CachedList], etags: bytes, seconds: int) -> None:
    """Return when the list no longer matches `etags`, after `seconds`, or when the service stops."""
    view = service.view
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds

    def is_due() -> bool:
        return service.feed.closed or not render().matches(etags)

    while (remaining := deadline - loop.time()) > 0:
        until_expiry = (render().valid_until - view.clock()) / 1000
        if await view.changed.wait_for(is_due, min(remaining, max(until_expiry, 0.001))):
            return


class PreparedResponse(Response):
    """A response from a cached list: nothing is computed again."""

    def __init__(self, cached: CachedResponse, extra: list[tuple[bytes, bytes]]) -> None:
        self.status_code = cached.status
        self.body = cached.body
        self.background = None
        self.raw_headers = [*cached.headers, *extra]
