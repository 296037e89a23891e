"""The page of incidents, and its table, which the page reloads after a change."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.page.errors import HtmlRoute
from app.page.forms import int_param
from app.page.incident_rows import PAGE_SIZE, incident_cache_of
from app.page.incidents import MAX_GAP_MS
from app.page.render import render_page
from app.page.visitor import ReaderVisitor, Visitor

router = APIRouter(route_class=HtmlRoute, include_in_schema=False)


@router.get("/page/incidents")
async def get_incidents(request: Request, visitor: ReaderVisitor) -> Response:
    """The whole page."""
    return await _render(request, visitor, "incidents.html.j2")


@router.get("/page/incidents/table")
async def get_table(request: Request, visitor: ReaderVisitor) -> Response:
    """The table only."""
    return await _render(request, visitor, "_incidents.html.j2")


async def _render(request: Request, visitor: Visitor, template: str) -> Response:
    incidents, page, rows = await incident_cache_of(request).page(max(1, int_param(request, "page") or 1))
    return render_page(
        request,
        template,
        visitor,
        rows=rows,
        page=page,
        pages=max(1, -(-len(incidents.all) // PAGE_SIZE)),
        total=len(incidents.all),
        blocked=sum(len(incident.nodes) for incident in incidents.all),
        revision=incidents.revision,
        gap=MAX_GAP_MS,
    )
