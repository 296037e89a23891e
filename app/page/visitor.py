"""Who looks at the page, and what it shows to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from app.api.authentication import session_of
from app.api.authorization import RequireRole
from app.auth.principal import Principal
from app.components import components_of
from blocklist.model.changes import Author, Source
from blocklist.model.roles import Role


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
        return self.principal.role.allows(Role.OPERATOR)

    @property
    def may_force(self) -> bool:
        return self.principal.role.allows(Role.ADMIN)


async def _reader(request: Request, principal: Annotated[Principal, Depends(RequireRole(Role.READER))]) -> Visitor:
    return await _visitor(request, principal)


async def _operator(request: Request, principal: Annotated[Principal, Depends(RequireRole(Role.OPERATOR))]) -> Visitor:
    return await _visitor(request, principal)


async def _visitor(request: Request, principal: Principal) -> Visitor:
    """Who has a token in a header, as scripts have, has no session, and no forms."""
    if not components_of(request).authenticator.enabled or "authorization" in request.headers:
        return Visitor(principal=principal)
    session = await session_of(request)
    return Visitor(principal=principal, csrf="" if session is None else session.csrf, logged_in=session is not None)


ReaderVisitor = Annotated[Visitor, Depends(_reader)]
OperatorVisitor = Annotated[Visitor, Depends(_operator)]
