"""GET /blocklist: the list. The plain request is answered by app.http.fast_get, the rest here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from app.api.authorization import READS
from app.api.client_quota import place_of
from app.api.parameters import MinRevision, Moment, wait_seconds
from app.api.problems import documented
from app.api.responses import age
from app.components import Service, service_of
from app.engine.list_details import detailed, past_list
from app.engine.list_view import Answer, Rendering
from app.watch.disconnect import until_disconnect
from blocklist.model.errors import InvalidError
from blocklist.wire.nodes import CompactedProblem, Flag, ListedNode

router = APIRouter(tags=["The list"], dependencies=[READS])

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
        **documented(400, 503),
        **documented(410, model=CompactedProblem, _410="The log no longer reaches back to `at`."),
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
        Moment | None,
        Query(description="The list as it was then (Unix ms), with its revision, without TaskManagers."),
    ] = None,
) -> Response:
    """The whole list, id to node, sorted by id. An ended block is absent from the moment of its end."""
    service = service_of(request)
    view = service.view
    view.route_reads += 1
    known = ",".join(if_none_match).encode("latin-1") if if_none_match is not None else None
    accepted = ",".join(request.headers.getlist("accept-encoding")).encode("latin-1") or None
    if at is not None:
        return _Ready((await _past(service, at, details=details)).answer(known, accepted), [])
    render: Callable[[], Rendering] = view.rendering
    if details:
        render = partial(detailed, view, service.origins)
    seconds = wait_seconds(prefer or [])
    applied = seconds is not None and known is not None and render().matches(known)
    if applied:
        with await place_of(request):
            await until_disconnect(request.receive, _changed(service, render, known or b"", seconds or 0))
    extra = age(request) + ([(b"preference-applied", b"wait=%d" % (seconds or 0))] if applied else [])
    return _Ready(render().answer(known, accepted), extra)


async def _past(service: Service, moment: int, *, details: bool) -> Rendering:
    """The list as it was. Raises InvalidError, CompactedError, UnavailableError."""
    if moment > (now := service.clock()):
        raise InvalidError(f"at: {moment} is after the present {now}.")
    past = await service.store.list_at(moment)
    # In a thread, for the list may be long: others are answered meanwhile.
    return await asyncio.to_thread(past_list, past, service.view, details=details)


async def _changed(service: Service, render: Callable[[], Rendering], known: bytes, seconds: int) -> None:
    """Return when the list is no longer `known`, the time is up, or the service stops."""
    view = service.view
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not service.feed.closed and (rendering := render()).matches(known):
        left = deadline - loop.time()
        if left <= 0:
            return
        to_end = (rendering.valid_until - view.clock()) / 1000
        await view.changed.wait(min(left, max(to_end, 0.001)))


class _Ready(Response):
    """A ready answer, with nothing computed again."""

    def __init__(self, answer: Answer, extra: list[tuple[bytes, bytes]]) -> None:
        self.status_code = answer.status
        self.body = answer.body
        self.background = None
        self.raw_headers = [*answer.headers, *extra]
