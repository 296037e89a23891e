"""The list at /, and its table, which the page reloads after a change."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response

from app.components import components_of
from app.page.errors import HtmlRoute
from app.page.forms import int_param
from app.page.list_model import SORTS, ListFilter, list_page
from app.page.render import render_page
from app.page.visitor import ReaderVisitor
from blocklist.model.node import ACTION_BY_NAME

router = APIRouter(route_class=HtmlRoute, include_in_schema=False)

_MAX_TEXT: Final = 300


def _filter(request: Request) -> ListFilter:
    """The filter in the query; invalid values are ignored, so that every link works."""
    params = request.query_params
    action, sort = params.get("action", ""), params.get("sort", "")
    return ListFilter(
        q=params.get("q", "").strip()[:_MAX_TEXT],
        action=action if action in ACTION_BY_NAME else "",
        by=params.get("by", "")[:_MAX_TEXT],
        sort=sort if sort in SORTS else "since",
        page=max(1, int_param(request, "page") or 1),
    )


@router.get("/")
async def get_list(request: Request, visitor: ReaderVisitor) -> Response:
    """The whole page."""
    listing = list_page(components_of(request), _filter(request))
    return render_page(request, "list.html.j2", visitor, listing=listing, base=str(request.base_url).rstrip("/"))


@router.get("/page/list")
async def get_table(request: Request, visitor: ReaderVisitor) -> Response:
    """The table only."""
    listing = list_page(components_of(request), _filter(request))
    return render_page(request, "_list.html.j2", visitor, listing=listing, base=str(request.base_url).rstrip("/"))
