"""The list at /, by node or by cause; its table and the header's share, which the page reloads after a change."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.page.errors import HtmlRoute
from app.page.groups import grouped_page
from app.page.list_model import list_page, parse_filter
from app.page.render import render_page
from app.page.shared import shared_of
from app.page.visitor import ReaderVisitor, Visitor
from app.service import service_of

router = APIRouter(route_class=HtmlRoute, include_in_schema=False)


@router.get("/")
async def get_list(request: Request, visitor: ReaderVisitor) -> Response:
    """The whole page."""
    return await _render(request, visitor, "list.html.j2")


@router.get("/page/list")
async def get_table(request: Request, visitor: ReaderVisitor) -> Response:
    return await _render(request, visitor, "_list.html.j2")


async def _render(request: Request, visitor: Visitor, template: str) -> Response:
    service, list_filter = service_of(request), parse_filter(request.query_params)
    listing = (
        await grouped_page(service, shared_of(request), list_filter)
        if list_filter.group
        else list_page(service, list_filter)
    )
    return render_page(request, template, visitor, listing=listing, base=str(request.base_url).rstrip("/"))


# The share of the cluster in the header, which the page reloads after a change.


@router.get("/page/share")
async def get_share(request: Request, visitor: ReaderVisitor) -> Response:
    """The element of the header only."""
    return render_page(request, "_share.html.j2", visitor)
