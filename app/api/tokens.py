"""Tokens: for admins to make, list and revoke."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import APIRouter, Request, Response

from app.api.authorization import Admin, Reader
from app.api.parameters import OwnId
from app.api.problems import documented
from app.api.responses import ONE_NODE, JsonAnswer, read_body, stamp
from app.components import service_of
from blocklist.model.errors import InvalidError
from blocklist.model.roles import Access
from blocklist.wire.nodes import dump_json, parse_json
from blocklist.wire.tokens import (
    NewTokenBody,
    TokenRequest,
    TokensBody,
    WhoBody,
    new_token_body,
    token_body,
)

router = APIRouter(tags=["Tokens"])

_REQUEST = {"application/json": {"schema": {"$ref": "#/components/schemas/TokenRequest"}}}


@router.head("/whoami", include_in_schema=False)
@router.get("/whoami", summary="Who you are, and what you may do", response_model=WhoBody)
async def get_whoami(request: Request, who: Reader) -> Response:
    """The name that is the author of your changes, null where nobody knows it, and your role."""
    return JsonAnswer(request, dump_json({"name": who.name, "role": who.access.value}))


@router.post(
    "/tokens",
    summary="Make a token",
    status_code=201,
    response_model=NewTokenBody,
    responses=documented(400, 413, 503),
    openapi_extra={"requestBody": {"required": True, "content": _REQUEST}},
)
async def post_token(request: Request, who: Admin) -> Response:
    """A bearer token with a name, a role and an optional end. `token` is shown this once: only its hash is kept."""
    service = service_of(request)
    wanted = TokenRequest.parse(parse_json(await read_body(request, ONE_NODE)))
    if wanted.end_timestamp <= (now := service.clock()):
        raise InvalidError(f"endTimestamp: the end {wanted.end_timestamp} is not after the present {now}.")
    made = await service.auth.create(wanted.name, Access(wanted.role), wanted.end_timestamp, who.name)
    answer = JsonAnswer(request, dump_json(new_token_body(made)), HTTPStatus.CREATED)
    answer.raw_headers.append((b"cache-control", b"no-store"))
    return answer


@router.head("/tokens", include_in_schema=False)
@router.get("/tokens", summary="All tokens", response_model=TokensBody, responses=documented(503))
async def get_tokens(request: Request, who: Admin) -> Response:  # noqa: ARG001
    """All tokens, ended and revoked ones too, the oldest first; without what they open."""
    tokens = await service_of(request).auth.tokens()
    return JsonAnswer(request, dump_json({"tokens": [token_body(token) for token in tokens]}))


@router.delete(
    "/tokens/{id}",
    summary="Revoke a token",
    status_code=204,
    responses=documented(
        400, 404, 409, 503, _404="There is no such token.", _409="It is the last valid token of an admin."
    ),
)
async def delete_token(request: Request, token_id: OwnId, who: Admin) -> Response:
    """From now on it opens nothing, and the sessions and watches that began with it end."""
    await service_of(request).auth.revoke(token_id, who.name)
    response = Response(status_code=HTTPStatus.NO_CONTENT)
    response.raw_headers.extend(stamp(request))
    return response
