"""All routes of the page, and the API document at /docs."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response

from app.api.authorization import PUBLIC
from app.auth.principal import ANONYMOUS
from app.page import (
    block_routes,
    history,
    listener_routes,
    listing,
    login,
    map_routes,
    node,
    selection_routes,
    static_files,
)
from app.page.errors import HtmlRoute
from app.page.render import render_page
from app.page.visitor import Visitor

router: Final = APIRouter(route_class=HtmlRoute, include_in_schema=False)
for part in (
    listing,
    block_routes,
    node,
    listener_routes,
    history,
    map_routes,
    login,
    selection_routes,
    static_files,
):
    router.routes.extend(part.router.routes)


@router.get("/docs", dependencies=[PUBLIC])
async def get_docs(request: Request) -> Response:
    """The API document in Swagger UI, served from vendored files, because many networks are closed."""
    return render_page(request, "docs.html.j2", Visitor(principal=ANONYMOUS))
