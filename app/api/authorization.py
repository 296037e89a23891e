"""Which role a route needs. Every route says so; a test fails on one that does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from starlette.routing import BaseRoute

from app.api.authentication import identify
from app.auth.principal import STRANGER, Principal
from blocklist.model.changes import Author, Source
from blocklist.model.errors import ForbiddenError
from blocklist.model.roles import Access


class Needs:
    """The dependency of a route that needs a role (None: it is open to all): who asks, when they have it.

    Raises UnauthorizedError, ForbiddenError.
    """

    def __init__(self, access: Access | None) -> None:
        self.access = access

    async def __call__(self, request: Request) -> Principal:
        if self.access is None:
            return STRANGER
        who = await identify(request)
        if not who.access.allows(self.access):
            raise ForbiddenError(f"This needs the role {self.access.value}; yours is {who.access.value}.")
        return who


OPEN: Any = Depends(Needs(None))
"""For routes that anybody may call, with credentials or without."""
READS: Any = Depends(Needs(Access.READER))
"""For routers that show what the service knows; a route that does more takes one of the following as well."""
Reader = Annotated[Principal, Depends(Needs(Access.READER))]
LISTENS: Any = Depends(Needs(Access.LISTENER))
Operator = Annotated[Principal, Depends(Needs(Access.OPERATOR))]
Admin = Annotated[Principal, Depends(Needs(Access.ADMIN))]

_UNDECLARED: Final = "The route {path} does not say which role it needs."


def author(
    who: Principal, source: Source = Source.REQUEST, *, forced: str | None = None, request_id: str | None = None
) -> Author:
    """The author of the changes that this request makes."""
    return Author(who.name, source, forced, request_id)


def needed(route: BaseRoute) -> Access | None:
    """The role that a route needs, None for an open one. Raises LookupError if it does not say."""
    dependant = getattr(route, "dependant", None)
    found = list(_needs(dependant)) if isinstance(dependant, Dependant) else []
    if not found:
        raise LookupError(_UNDECLARED.format(path=getattr(route, "path", route)))
    return max((need.access for need in found if need.access), key=lambda access: access.rank, default=None)


def _needs(dependant: Dependant) -> Iterator[Needs]:
    if isinstance(dependant.call, Needs):
        yield dependant.call
    for dependency in dependant.dependencies:
        yield from _needs(dependency)
