"""Which role a route needs. Every route says so; a test fails on one that does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from starlette.routing import BaseRoute

from app.api.authentication import authenticate
from app.auth.principal import ANONYMOUS, Principal
from blocklist.model.changes import Author, Source
from blocklist.model.errors import ForbiddenError
from blocklist.model.roles import Role


class RequireRole:
    """The dependency of a route that needs a role (None: it is open to all): who asks, when they have it.

    Raises UnauthorizedError, ForbiddenError.
    """

    def __init__(self, role: Role | None) -> None:
        self.role = role

    async def __call__(self, request: Request) -> Principal:
        if self.role is None:
            return ANONYMOUS
        principal = await authenticate(request)
        if not principal.role.allows(self.role):
            raise ForbiddenError(f"This needs the role {self.role.value}; yours is {principal.role.value}.")
        return principal


PUBLIC: Any = Depends(RequireRole(None))
"""For routes that anybody may call, with credentials or without."""
REQUIRE_READER: Any = Depends(RequireRole(Role.READER))
"""For routers that show what the service knows; a route that does more takes one of the following as well."""
Reader = Annotated[Principal, Depends(RequireRole(Role.READER))]
REQUIRE_LISTENER: Any = Depends(RequireRole(Role.LISTENER))
Operator = Annotated[Principal, Depends(RequireRole(Role.OPERATOR))]
Admin = Annotated[Principal, Depends(RequireRole(Role.ADMIN))]

_UNDECLARED: Final = "The route {path} does not say which role it needs."


def author(
    principal: Principal, source: Source = Source.REQUEST, *, forced: str | None = None, request_id: str | None = None
) -> Author:
    """The author of the changes that this request makes."""
    return Author(principal.name, source, forced, request_id)


def required_role(route: BaseRoute) -> Role | None:
    """The role that a route needs, None for an open one. Raises LookupError if it does not say."""
    dependant = getattr(route, "dependant", None)
    requirements = list(_requirements(dependant)) if isinstance(dependant, Dependant) else []
    if not requirements:
        raise LookupError(_UNDECLARED.format(path=getattr(route, "path", route)))
    return max(
        (requirement.role for requirement in requirements if requirement.role), key=lambda role: role.rank, default=None
    )


def _requirements(dependant: Dependant) -> Iterator[RequireRole]:
    if isinstance(dependant.call, RequireRole):
        yield dependant.call
    for dependency in dependant.dependencies:
        yield from _requirements(dependency)
