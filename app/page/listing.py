"""The list at /, and its table alone, which the page fetches anew when something changes."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response

from app.components import service_of
from app.page.errors import HtmlRoute
from app.page.list_model import SORTS, Filter, listing
from app.page.query_params import number_in
from app.page.render import page
from app.page.visitor import Reading
from blocklist.model.node import ACTIONS

router = APIRouter(route_class=HtmlRoute, include_in_schema=False)

_LONGEST: Final = 300


def _filter(request: Request) -> Filter:
    """What the address asks for; what nobody could mean is passed over: a filter never fails."""
    given = request.query_params
    action, sort = given.get("action", ""), given.get("sort", "")
    return Filter(
        q=given.get("q", "").strip()[:_LONGEST],
        action=action if action in ACTIONS else "",
        by=given.get("by", "")[:_LONGEST],
        sort=sort if sort in SORTS else "since",
        page=max(1, number_in(request, "page") or 1),
    )


@router.get("/")
async def get_list(request: Request, visitor: Reading) -> Response:
    """The list."""
    model = listing(service_of(request), _filter(request))
    return page(request, "list.html.j2", visitor, listing=model, base=str(request.base_url).rstrip("/"))


@router.get("/page/list")
async def get_table(request: Request, visitor: Reading) -> Response:
    """What of it changes."""
    model = listing(service_of(request), _filter(request))
    return page(request, "_list.html.j2", visitor, listing=model, base=str(request.base_url).rstrip("/"))
