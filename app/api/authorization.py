"""The role that a route requires. A test fails if a route declares none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from starlette.routing import BaseRoute

from app.api.authentication import authenticate
from app.auth.credential import ANONYMOUS, Principal
from blocklist.model.changes import Author, Source
from blocklist.model.errors import ForbiddenError
from blocklist.model.roles import Role


class RequireRole:
    """A dependency that returns the principal if it has the role; None: the route is public.

    Raises UnauthorizedError, ForbiddenError.
    """

    def __init__(self, role: Role | None) -> None:
        self.role = role

    async def __call__(self, request: Request) -> Principal:
        if self.role is None:
            return ANONYMOUS
        principal = await authenticate(request)
        if not principal.role.allows(self.role):
            raise ForbiddenError(f"This requires the role {self.role.value}; yours is {principal.role.value}.")
        return principal


PUBLIC: Any = Depends(RequireRole(None))
"""For routes that need no credentials."""
REQUIRE_READER: Any = Depends(RequireRole(Role.READER))
"""For routers of reads; a route that does more declares a second requirement."""
Reader = Annotated[Principal, Depends(RequireRole(Role.READER))]
REQUIRE_LISTENER: Any = Depends(RequireRole(Role.LISTENER))
ListenerRole = Annotated[Principal, Depends(RequireRole(Role.LISTENER))]
Operator = Annotated[Principal, Depends(RequireRole(Role.OPERATOR))]
Admin = Annotated[Principal, Depends(RequireRole(Role.ADMIN))]


def author(
    principal: Principal, source: Source = Source.REQUEST, *, forced: str | None = None, request_id: str | None = None
) -> Author:
    """The author of the changes that a request makes."""
    return Author(principal.name, source, forced, request_id)


def required_role(route: BaseRoute) -> Role | None:
    """The role that a route requires; None if it is public. Raises LookupError if it declares none."""
    dependant = getattr(route, "dependant", None)
    requirements = list(_requirements(dependant)) if isinstance(dependant, Dependant) else []
    if not requirements:
        raise LookupError(f"The route {getattr(route, 'path', route)} declares no role.")
    roles = [requirement.role for requirement in requirements if requirement.role]
    return max(roles, key=lambda role: role.rank, default=None)


def _requirements(dependant: Dependant) -> Iterator[RequireRole]:
    if isinstance(dependant.call, RequireRole):
        yield dependant.call
    for dependency in dependant.dependencies:
        yield from _requirements(dependency)
