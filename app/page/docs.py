"""/docs: the API document, by Swagger UI from our own files, as operators' networks are often closed."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from app.api.authorization import Needs
from app.auth.principal import Principal
from app.page.errors import HtmlRoute
from app.page.render import page
from app.page.visitor import Visitor

router = APIRouter(route_class=HtmlRoute, include_in_schema=False)


@router.get("/docs")
async def get_docs(request: Request, who: Annotated[Principal, Depends(Needs(None))]) -> Response:
    """Open to all, as the document itself is."""
    return page(request, "docs.html.j2", Visitor(principal=who))
