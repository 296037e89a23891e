"""The listeners, and what running applications say of nodes."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, Request, Response

from app.api.listeners import lag_of
from app.components import Components, components_of
from app.listeners.entry import ListenerEntry
from app.page.errors import HtmlRoute
from app.page.render import render_page
from app.page.visitor import ReaderVisitor
from blocklist.model.time import to_millis

router = APIRouter(route_class=HtmlRoute, include_in_schema=False)

MAX_ROWS = 500
"""Listeners, or pieces of evidence, on a page."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListenerRow:
    """A listener; `lag` in milliseconds, `behind` in revisions (None: it has yet to get the whole list)."""

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
    def of(cls, service: Components, entry: ListenerEntry) -> ListenerRow:
        listener = entry.listener
        live = listener.is_live(service.clock())
        acked, revision = listener.acked, service.view.tracker.revision
        return cls(
            id=listener.id,
            role=listener.role.value,
            pushed=listener.callback_url is not None,
            live=live,
            behind=None if acked is None else max(0, revision - acked),
            lag=lag_of(service, entry),
            lease_end=listener.lease_end,
            error=entry.error,
            refused=len(entry.refused),
            usable=service.usable_nodes.usable_count(entry) if live else None,
            minimum=listener.min_nodes,
        )

    @property
    def troubled(self) -> bool:
        """Whether somebody should look at it."""
        return not self.live or self.behind != 0 or self.error is not None or self.refused > 0


@router.get("/page/listeners")
async def get_listeners(request: Request, visitor: ReaderVisitor) -> Response:
    """First those that are behind or in trouble."""
    service = components_of(request)
    entries = sorted(
        service.listeners.entries,
        key=lambda each: (each.listener.is_live(service.clock()), -lag_of(service, each), each.id),
    )
    shown = [ListenerRow.of(service, entry) for entry in entries[:MAX_ROWS]]
    return render_page(request, "listeners.html.j2", visitor, listeners=shown, total=len(entries))


@router.get("/page/evidence")
async def get_evidence(request: Request, visitor: ReaderVisitor) -> Response:
    """As GET /evidence has it."""
    service = components_of(request)
    judged = service.evidence_book.assess(service.clock())
    settings = service.settings
    return render_page(
        request,
        "evidence.html.j2",
        visitor,
        judged=judged[:MAX_ROWS],
        total=len(judged),
        enough=settings.evidence_applications,
        window=to_millis(settings.evidence_window),
    )
