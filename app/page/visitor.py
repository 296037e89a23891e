"""The visitor of the page, and what the page offers to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from app.api.authentication import session_of
from app.api.authorization import RequireRole
from app.auth.principal import Principal
from app.service import service_of
from blocklist.model.changes import Author, Source
from blocklist.model.roles import Role


@dataclass(frozen=True, kw_only=True, slots=True)
class Visitor:
    """`csrf` is sent with every form; `logged_in` shows the button to log out."""

    principal: Principal
    csrf: str = ""
    logged_in: bool = False

    def author(self, *, forced: str | None = None) -> Author:
        """The author of the visitor's changes."""
        return Author(self.principal.name, Source.PAGE, forced)

    @property
    def may_change(self) -> bool:
        return self.principal.role.allows(Role.OPERATOR) and self.principal.owners is None

    @property
    def may_force(self) -> bool:
        return self.principal.role.allows(Role.ADMIN)


async def _reader(request: Request, principal: Annotated[Principal, Depends(RequireRole(Role.READER))]) -> Visitor:
    return await _visitor(request, principal)


async def _operator(request: Request, principal: Annotated[Principal, Depends(RequireRole(Role.OPERATOR))]) -> Visitor:
    # The page blocks and unblocks for all owners.
    principal.check_may_unblock()
    return await _visitor(request, principal)


async def _visitor(request: Request, principal: Principal) -> Visitor:
    """A request with an Authorization header has no session and needs no CSRF token."""
    if not service_of(request).authenticator.enabled or "authorization" in request.headers:
        return Visitor(principal=principal)
    session = await session_of(request)
    return Visitor(principal=principal, csrf="" if session is None else session.csrf, logged_in=session is not None)


ReaderVisitor = Annotated[Visitor, Depends(_reader)]
OperatorVisitor = Annotated[Visitor, Depends(_operator)]
