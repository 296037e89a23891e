"""Who looks at the page, and what it shows to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from app.api.authentication import session_of
from app.api.authorization import Needs
from app.auth.principal import Principal
from app.components import service_of
from blocklist.model.changes import Author, Source
from blocklist.model.roles import Access


@dataclass(frozen=True, kw_only=True, slots=True)
class Visitor:
    """`csrf` goes into every form; `logged_in` offers to log out."""

    principal: Principal
    csrf: str = ""
    logged_in: bool = False

    def author(self, *, forced: str | None = None) -> Author:
        """The author of what they change."""
        return Author(self.principal.name, Source.PAGE, forced)

    @property
    def may_change(self) -> bool:
        return self.principal.access.allows(Access.OPERATOR)

    @property
    def may_force(self) -> bool:
        return self.principal.access.allows(Access.ADMIN)


async def _reader(request: Request, who: Annotated[Principal, Depends(Needs(Access.READER))]) -> Visitor:
    return await _visitor(request, who)


async def _operator(request: Request, who: Annotated[Principal, Depends(Needs(Access.OPERATOR))]) -> Visitor:
    return await _visitor(request, who)


async def _visitor(request: Request, who: Principal) -> Visitor:
    """Who has a token in a header, as scripts have, has no session, and no forms."""
    if not service_of(request).auth.enabled or "authorization" in request.headers:
        return Visitor(principal=who)
    session = await session_of(request)
    return Visitor(principal=who, csrf="" if session is None else session.csrf, logged_in=session is not None)


Reading = Annotated[Visitor, Depends(_reader)]
Changing = Annotated[Visitor, Depends(_operator)]
