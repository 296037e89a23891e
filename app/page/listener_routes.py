"""The listeners, and what running applications say of nodes."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, Request, Response

from app.api.listeners import lag_of
from app.components import Service, service_of
from app.listeners.member import Member
from app.page.errors import HtmlRoute
from app.page.render import page
from app.page.visitor import Reading
from blocklist.model.time import in_millis

router = APIRouter(route_class=HtmlRoute, include_in_schema=False)

SHOWN = 500
"""Listeners, or pieces of evidence, on a page."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Listening:
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
    def of(cls, service: Service, member: Member) -> Listening:
        listener = member.listener
        live = listener.live(service.clock())
        acked, revision = listener.acked, service.view.tracker.revision
        return cls(
            id=listener.id,
            role=listener.role.value,
            pushed=listener.callback_url is not None,
            live=live,
            behind=None if acked is None else max(0, revision - acked),
            lag=lag_of(service, member),
            lease_end=listener.lease_end,
            error=member.error,
            refused=len(member.refused),
            usable=service.usable.usable(member) if live else None,
            minimum=listener.min_nodes,
        )

    @property
    def troubled(self) -> bool:
        """Whether somebody should look at it."""
        return not self.live or self.behind != 0 or self.error is not None or self.refused > 0


@router.get("/page/listeners")
async def get_listeners(request: Request, visitor: Reading) -> Response:
    """First those that are behind or in trouble."""
    service = service_of(request)
    members = sorted(
        service.roll.members, key=lambda own: (own.listener.live(service.clock()), -lag_of(service, own), own.id)
    )
    shown = [Listening.of(service, member) for member in members[:SHOWN]]
    return page(request, "listeners.html.j2", visitor, listeners=shown, total=len(members))


@router.get("/page/evidence")
async def get_evidence(request: Request, visitor: Reading) -> Response:
    """As GET /evidence has it."""
    service = service_of(request)
    judged = service.evidence.listed(service.clock())
    settings = service.settings
    return page(
        request,
        "evidence.html.j2",
        visitor,
        judged=judged[:SHOWN],
        total=len(judged),
        enough=settings.evidence_applications,
        window=in_millis(settings.evidence_window),
    )
