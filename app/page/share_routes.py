"""The share of the cluster in the header, which the page reloads after a change."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.page.errors import HtmlRoute
from app.page.render import render_page
from app.page.visitor import ReaderVisitor

router = APIRouter(route_class=HtmlRoute, include_in_schema=False)


@router.get("/page/share")
async def get_share(request: Request, visitor: ReaderVisitor) -> Response:
    """The element of the header only."""
    return render_page(request, "_share.html.j2", visitor)
