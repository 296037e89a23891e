"""Tokens: for admins to make, list and revoke."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import APIRouter, Request, Response

from app.api.authorization import Admin, Reader
from app.api.parameters import ResourceId
from app.api.problems import problem_responses
from app.api.responses import MAX_NODE_BODY, JsonResponse, read_body, revision_headers
from app.components import components_of
from blocklist.model.errors import InvalidError
from blocklist.model.roles import Role
from blocklist.wire.nodes import dump_json, parse_json
from blocklist.wire.tokens import (
    IdentityBody,
    NewTokenBody,
    TokenRequest,
    TokensBody,
    new_token_body,
    token_body,
)

router = APIRouter(tags=["Tokens"])

_REQUEST = {"application/json": {"schema": {"$ref": "#/components/schemas/TokenRequest"}}}


@router.head("/whoami", include_in_schema=False)
@router.get("/whoami", summary="Who you are, and what you may do", response_model=IdentityBody)
async def get_whoami(request: Request, principal: Reader) -> Response:
    """The name that is the author of your changes, null where nobody knows it, and your role."""
    return JsonResponse(request, dump_json({"name": principal.name, "role": principal.role.value}))


@router.post(
    "/tokens",
    summary="Make a token",
    status_code=201,
    response_model=NewTokenBody,
    responses=problem_responses(400, 413, 503),
    openapi_extra={"requestBody": {"required": True, "content": _REQUEST}},
)
async def post_token(request: Request, principal: Admin) -> Response:
    """A bearer token with a name, a role and an optional end. `token` is shown this once: only its hash is kept."""
    service = components_of(request)
    token_request = TokenRequest.parse(parse_json(await read_body(request, MAX_NODE_BODY)))
    if token_request.end_timestamp <= (now := service.clock()):
        raise InvalidError(f"endTimestamp: the end {token_request.end_timestamp} is not after the present {now}.")
    new_token = await service.authenticator.create(
        token_request.name, Role(token_request.role), token_request.end_timestamp, principal.name
    )
    response = JsonResponse(request, dump_json(new_token_body(new_token)), HTTPStatus.CREATED)
    response.raw_headers.append((b"cache-control", b"no-store"))
    return response


@router.head("/tokens", include_in_schema=False)
@router.get("/tokens", summary="All tokens", response_model=TokensBody, responses=problem_responses(503))
async def get_tokens(request: Request, principal: Admin) -> Response:  # noqa: ARG001
    """All tokens, ended and revoked ones too, the oldest first; without what they open."""
    tokens = await components_of(request).authenticator.tokens()
    return JsonResponse(request, dump_json({"tokens": [token_body(token) for token in tokens]}))


@router.delete(
    "/tokens/{id}",
    summary="Revoke a token",
    status_code=204,
    responses=problem_responses(
        400, 404, 409, 503, _404="There is no such token.", _409="It is the last valid token of an admin."
    ),
)
async def delete_token(request: Request, token_id: ResourceId, principal: Admin) -> Response:
    """From now on it opens nothing, and the sessions and watches that began with it end."""
    await components_of(request).authenticator.revoke(token_id, principal.name)
    response = Response(status_code=HTTPStatus.NO_CONTENT)
    response.raw_headers.extend(revision_headers(request))
    return response
