"""Sent: the fields of a form that was sent from a page of ours, and from nowhere else."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from app.page.forms import Form, read_form
from app.page.visitor import Changing


async def _sent(request: Request, _: Changing) -> Form:
    # Where it came from was seen to when it was found out who asks.
    return await read_form(request)


Sent = Annotated[Form, Depends(_sent)]
"""Raises ForbiddenError for a form of another site, InvalidError, TooLargeError."""
