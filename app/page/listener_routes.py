"""The pages of listeners, of one listener and of evidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from fastapi import APIRouter, Request, Response

from app.api.parameters import ResourceId
from app.listeners.replication import FORGET_AFTER_MS
from app.listeners.state import ListenerEntry
from app.page.errors import HtmlRoute
from app.page.forms import int_param
from app.page.listener_model import ListenerState, listener_state
from app.page.render import render_page
from app.page.shared import shared_of
from app.page.visitor import ReaderVisitor, Visitor
from app.service import Service, service_of
from blocklist.model.errors import NotFoundError
from blocklist.model.evidence import TTL_MS

router = APIRouter(route_class=HtmlRoute, include_in_schema=False)

MAX_ROWS = 500
"""Maximum number of rows on a page."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListenerRow:
    """A listener; `lag` in milliseconds, `behind` in revisions (None: it has not yet received the list)."""

    id: str
    role: str
    pushed: bool
    live: bool
    behind: int | None
    lag: int
    lease_end: int
    error: str | None
    refused: int
    usable: int | None
    minimum: int

    @classmethod
    def of(cls, service: Service, entry: ListenerEntry, usable: Callable[[ListenerEntry], int | None]) -> ListenerRow:
        listener = entry.listener
        now = service.clock()
        live = entry.is_live(service.directory.lease_time())
        acked, revision = listener.acked, service.view.tracker.revision
        return cls(
            id=listener.id,
            role=listener.role.value,
            pushed=listener.callback_url is not None,
            live=live,
            behind=None if acked is None else max(0, revision - acked),
            lag=entry.lag_ms(service.feed, now),
            lease_end=listener.lease_end,
            error=entry.error,
            refused=len(entry.refused),
            usable=usable(entry) if live else None,
            minimum=listener.min_nodes,
        )


@router.get("/page/listeners")
async def get_listeners(request: Request, visitor: ReaderVisitor) -> Response:
    """Lapsed listeners first, then those with the largest lag."""
    service = service_of(request)
    feed, now = service.feed, service.clock()
    lease_time = service.directory.lease_time()
    entries = sorted(
        service.directory.entries,
        key=lambda entry: (entry.is_live(lease_time), -entry.lag_ms(feed, now), entry.id),
    )
    usable = service.usable_nodes.counter()
    shown = [ListenerRow.of(service, entry, usable) for entry in entries[:MAX_ROWS]]
    return render_page(request, "listeners.html.j2", visitor, listeners=shown, total=len(entries))


@router.get("/page/evidence")
async def get_evidence(request: Request, visitor: ReaderVisitor) -> Response:
    """The same evidence as GET /evidence."""
    service = service_of(request)
    assessed = service.evidence.assess(service.clock())
    settings = service.settings
    return render_page(
        request,
        "evidence.html.j2",
        visitor,
        assessed=assessed[:MAX_ROWS],
        total=len(assessed),
        required=settings.evidence_applications,
        window=TTL_MS,
    )


# The page of one listener, and its state, which the page reloads after a change.


@router.get("/page/listeners/{id}")
async def get_listener(request: Request, visitor: ReaderVisitor, listener_id: ResourceId) -> Response:
    """The whole page; with status 404 if there is no such listener."""
    state = await _state(request, listener_id)
    status = HTTPStatus.NOT_FOUND if state is None else HTTPStatus.OK
    return _render(request, visitor, "listener.html.j2", listener_id, state, status)


@router.get("/page/listeners/{id}/state")
async def get_state(request: Request, visitor: ReaderVisitor, listener_id: ResourceId) -> Response:
    """The state only; with status 200 also if the listener has left, as the page does not show errors."""
    return _render(request, visitor, "_listener.html.j2", listener_id, await _state(request, listener_id))


async def _state(request: Request, listener_id: str) -> ListenerState | None:
    service = service_of(request)
    try:
        entry = await service.registry.get(listener_id)
    except NotFoundError:
        return None
    page = max(1, int_param(request, "page") or 1)
    return await listener_state(service, shared_of(request), entry, page)


def _render(
    request: Request,
    visitor: Visitor,
    template: str,
    listener_id: str,
    state: ListenerState | None,
    status: HTTPStatus = HTTPStatus.OK,
) -> Response:
    service = service_of(request)
    return render_page(
        request,
        template,
        visitor,
        status,
        id=listener_id,
        state=state,
        authenticated=service.authenticator.enabled,
        forget_ms=FORGET_AFTER_MS,
    )
