"""/docs: the API document, by Swagger UI from our own files, as operators' networks are often closed."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from app.api.authorization import RequireRole
from app.auth.principal import Principal
from app.page.errors import HtmlRoute
from app.page.render import render_page
from app.page.visitor import Visitor

router = APIRouter(route_class=HtmlRoute, include_in_schema=False)


@router.get("/docs")
async def get_docs(request: Request, principal: Annotated[Principal, Depends(RequireRole(None))]) -> Response:
    """Open to all, as the document itself is."""
    return render_page(request, "docs.html.j2", Visitor(principal=principal))
