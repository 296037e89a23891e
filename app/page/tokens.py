"""The page of the tokens, for admins: create one, which is shown once; who has which, when it was used; revoke it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse

from app.api.parameters import ResourceId, origin_of
from app.api.tokens import create_token, require_authentication
from app.page.forms import Form, HtmlRoute, read_form
from app.page.shared import AdminVisitor, Excerpt, Visitor, render_page
from app.requests import TokenRequest
from app.service import service_of
from blocklist.model.claims import NewToken, Role, Token
from blocklist.model.errors import ForbiddenError, InvalidError, NotFoundError
from blocklist.model.node import PERMANENT, parse_duration
from blocklist.wire.audit import Way

router = APIRouter(route_class=HtmlRoute, include_in_schema=False)

MAX_SHOWN: Final = 500
"""Maximum number of valid tokens in the table; a search finds the others."""
_INITIAL: Final = {
    "name": "",
    "role": Role.OPERATOR.value,
    "ends": "for",
    "for": "90d",
    "owners": "",
    "listeners": "",
}
_SEPARATORS: Final = re.compile(r"[\s,;]+")


async def _submitted(request: Request, _: AdminVisitor) -> Form:
    # The admin's authentication has checked the origin and the CSRF token.
    return await read_form(request)


AdminForm = Annotated[Form, Depends(_submitted)]


@router.get("/page/tokens")
async def get_tokens(request: Request, visitor: AdminVisitor) -> Response:
    """The valid tokens, the newest first, and the form for another one; those that have ended are folded."""
    require_authentication(service_of(request))
    return await _page(request, visitor, _INITIAL)


@router.post("/page/tokens")
async def post_token(request: Request, visitor: AdminVisitor, form: AdminForm) -> Response:
    """Create a token. Its text is in this response only, which no cache keeps."""
    service = service_of(request)
    require_authentication(service)
    filled = {**_INITIAL, **form}
    try:
        wanted = _parse(filled, service.clock())
        made = await create_token(service, wanted, origin_of(request, visitor.principal, Way.PAGE))
    except (InvalidError, ForbiddenError) as error:
        return await _page(request, visitor, filled, errors=error.lines)
    return await _page(request, visitor, _INITIAL, made=made)


@router.get("/page/tokens/{id}/revoke")
async def get_revocation(request: Request, token_id: ResourceId, visitor: AdminVisitor) -> Response:
    """Ask before a token is revoked."""
    found = next((it for it in await service_of(request).authenticator.tokens() if it.id == token_id), None)
    if found is None:
        raise NotFoundError(f"There is no token {token_id}.")
    return render_page(request, "token_revoke.html.j2", visitor, token=found)


@router.post("/page/tokens/{id}/revoke")
async def post_revocation(request: Request, token_id: ResourceId, visitor: AdminVisitor, _: AdminForm) -> Response:
    """Revoke a token."""
    origin = origin_of(request, visitor.principal, Way.PAGE)
    await service_of(request).authenticator.revoke(token_id, origin)
    return RedirectResponse("/page/tokens", HTTPStatus.SEE_OTHER)


def _parse(form: Form, now: int) -> TokenRequest:
    """The token that a form asks for. Raises InvalidError with a line for each fault."""
    patterns = {name: [it for it in _SEPARATORS.split(form[name]) if it] for name in ("owners", "listeners")}
    end = PERMANENT
    if form["ends"] != "never":
        try:
            end = min(now + parse_duration("".join(form["for"].split())), PERMANENT)
        except ValueError as error:
            raise InvalidError(str(error)) from None
    body = {"name": form["name"].strip(), "role": form["role"], "endTimestamp": str(end)}
    return TokenRequest.parse({**body, **{name: given for name, given in patterns.items() if given}})


async def _page(
    request: Request, visitor: Visitor, form: Form, *, errors: Sequence[str] = (), made: NewToken | None = None
) -> Response:
    service = service_of(request)
    now, search = service.clock(), request.query_params.get("search", "").strip()
    found = [it for it in reversed(await service.authenticator.tokens()) if _matches(it, search.casefold())]
    valid = [token for token in found if token.is_valid(now)]
    return render_page(
        request,
        "tokens.html.j2",
        visitor,
        HTTPStatus.BAD_REQUEST if errors else HTTPStatus.OK,
        form=form,
        errors=errors,
        made=made,
        roles=[role.value for role in Role],
        search=search,
        tokens=valid[:MAX_SHOWN],
        total=len(valid),
        ended=Excerpt.of(token for token in found if not token.is_valid(now)),
    )


def _matches(token: Token, search: str) -> bool:
    return any(search in text.casefold() for text in (token.id, token.name, token.role.value, token.created_by or ""))
