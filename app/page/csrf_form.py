"""Sent: the fields of a form that was sent from a page of ours, and from nowhere else."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from app.page.forms import Form, read_form
from app.page.visitor import OperatorVisitor


async def _submitted_form(request: Request, _: OperatorVisitor) -> Form:
    # Where it came from was seen to when it was found out who asks.
    return await read_form(request)


SubmittedForm = Annotated[Form, Depends(_submitted_form)]
"""Raises ForbiddenError for a form of another site, InvalidError, TooLargeError."""
