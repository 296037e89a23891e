"""The list at /, and its table, which the page reloads after a change."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.components import components_of
from app.page.errors import HtmlRoute
from app.page.list_model import list_page, parse_filter
from app.page.render import render_page
from app.page.visitor import ReaderVisitor

router = APIRouter(route_class=HtmlRoute, include_in_schema=False)


@router.get("/")
async def get_list(request: Request, visitor: ReaderVisitor) -> Response:
    """The whole page."""
    listing = list_page(components_of(request), parse_filter(request.query_params))
    return render_page(request, "list.html.j2", visitor, listing=listing, base=str(request.base_url).rstrip("/"))


@router.get("/page/list")
async def get_table(request: Request, visitor: ReaderVisitor) -> Response:
    """The table only."""
    listing = list_page(components_of(request), parse_filter(request.query_params))
    return render_page(request, "_list.html.j2", visitor, listing=listing, base=str(request.base_url).rstrip("/"))
