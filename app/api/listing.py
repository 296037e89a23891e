"""GET /blocklist: the list. The plain request is answered by app.http.fast_get, the rest here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from app.api.authorization import REQUIRE_READER
from app.api.client_quota import slots_of
from app.api.parameters import MinRevision, Timestamp, wait_seconds
from app.api.problems import problem_responses
from app.api.responses import age_header
from app.components import Components, components_of
from app.engine.list_details import list_with_details, past_list
from app.engine.list_view import CachedList, CachedResponse
from app.watch.disconnect import run_until_disconnect
from blocklist.model.errors import InvalidError
from blocklist.wire.nodes import CompactedProblem, Flag, ListedNode

router = APIRouter(tags=["The list"], dependencies=[REQUIRE_READER])

_EXAMPLE = {
    "worker-17": {
        "action": "MARK_BLOCKED_AND_EVACUATE_TASKS",
        "startTimestamp": "1652315400000",
        "endTimestamp": "1652319000000",
        "cause": "No space left on device",
        "taskManagers": [],
    }
}
_HEADERS = {
    "ETag": {"schema": {"type": "string"}, "description": "Of the body; each encoding has its own."},
    "Blocklist-Revision": {"schema": {"type": "string", "pattern": "^[0-9]+$"}},
    "Blocklist-History": {"schema": {"type": "string", "pattern": "^[0-9a-f]{8}$"}},
}


@router.head("/blocklist", dependencies=[MinRevision], include_in_schema=False)
@router.get(
    "/blocklist",
    summary="The blocked nodes",
    dependencies=[MinRevision],
    response_model=dict[str, ListedNode],
    responses={
        200: {"headers": _HEADERS, "content": {"application/json": {"example": _EXAMPLE}}},
        304: {"description": "The list is still what `If-None-Match` names.", "headers": _HEADERS},
        **problem_responses(400, 503),
        **problem_responses(410, model=CompactedProblem, _410="The log no longer reaches back to `at`."),
    },
)
async def get_blocklist(
    request: Request,
    if_none_match: Annotated[list[str] | None, Header(description="ETags that the client has.")] = None,
    prefer: Annotated[
        list[str] | None,
        Header(description="`wait=N`: with a matching If-None-Match wait for a change, at most N (60) seconds."),
    ] = None,
    details: Annotated[Flag, Query(description="Each node also says by whom and when it was changed last.")] = False,
    at: Annotated[
        Timestamp | None,
        Query(description="The list as it was then (Unix ms), with its revision, without TaskManagers."),
    ] = None,
) -> Response:
    """The whole list, id to node, sorted by id. An ended block is absent from the moment of its end."""
    service = components_of(request)
    view = service.view
    view.route_reads += 1
    etags = ",".join(if_none_match).encode("latin-1") if if_none_match is not None else None
    accepted = ",".join(request.headers.getlist("accept-encoding")).encode("latin-1") or None
    if at is not None:
        return _PreparedResponse((await _list_at(service, at, details=details)).response_for(etags, accepted), [])
    render: Callable[[], CachedList] = view.current_list
    if details:
        render = partial(list_with_details, view, service.last_changes)
    seconds = wait_seconds(prefer or [])
    applied = seconds is not None and etags is not None and render().matches(etags)
    if applied:
        with await slots_of(request):
            await run_until_disconnect(request.receive, _until_changed(service, render, etags or b"", seconds or 0))
    extra = age_header(request) + ([(b"preference-applied", b"wait=%d" % (seconds or 0))] if applied else [])
    return _PreparedResponse(render().response_for(etags, accepted), extra)


async def _list_at(service: Components, timestamp: int, *, details: bool) -> CachedList:
    """The list as it was. Raises InvalidError, CompactedError, UnavailableError."""
    if timestamp > (now := service.clock()):
        raise InvalidError(f"at: {timestamp} is after the present {now}.")
    past = await service.store.list_at(timestamp)
    # In a thread, for the list may be long: others are answered meanwhile.
    return await asyncio.to_thread(past_list, past, service.view, details=details)


async def _until_changed(service: Components, render: Callable[[], CachedList], etags: bytes, seconds: int) -> None:
    """Return when the list is no longer `known`, the time is up, or the service stops."""
    view = service.view
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not service.feed.closed and (rendering := render()).matches(etags):
        left = deadline - loop.time()
        if left <= 0:
            return
        to_end = (rendering.valid_until - view.clock()) / 1000
        await view.changed.wait(min(left, max(to_end, 0.001)))


class _PreparedResponse(Response):
    """A ready answer, with nothing computed again."""

    def __init__(self, answer: CachedResponse, extra: list[tuple[bytes, bytes]]) -> None:
        self.status_code = answer.status
        self.body = answer.body
        self.background = None
        self.raw_headers = [*answer.headers, *extra]
