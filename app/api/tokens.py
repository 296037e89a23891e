"""Tokens: create, list and revoke them; whose a token is, and where people log in."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import Request, Response

from app.api.parameters import (
    KNOWN_PARAMETERS,
    PUBLIC,
    REQUIRE_ADMIN,
    Admin,
    ApiRouter,
    Reader,
    ResourceId,
    body_schema,
    origin_of,
    read_body,
)
from app.api.responses import FROM_MEMORY, JsonResponse, problem_responses, revision_headers
from app.auth.credential import Principal
from app.requests import MAX_NODE_BODY, TokenRequest
from app.service import Service, service_of
from app.store.audit import Origin
from blocklist import __version__
from blocklist.model.claims import NewToken, Role, default_owner
from blocklist.model.errors import ForbiddenError, InvalidError
from blocklist.wire.body import dump_json, parse_json
from blocklist.wire.tokens import (
    CreatedTokenBody,
    IdentityBody,
    IssuersBody,
    TokensBody,
    new_token_body,
    token_body,
)

router = ApiRouter(tags=["Tokens"], dependencies=[KNOWN_PARAMETERS])


@router.get(
    "/whoami",
    summary="The name and role of your credentials",
    operation_id="getIdentity",
    dependencies=[FROM_MEMORY],
    response_model=IdentityBody,
)
async def get_whoami(request: Request, principal: Reader) -> Response:
    """Your role, the name recorded as the author of your changes (null if unknown), and whose claims you may change.

    Also what the service recommends to its clients, and its version.
    """
    service = service_of(request)
    body = {
        "name": principal.name,
        "role": principal.role.value,
        "owner": default_owner(principal.name),
        "owners": None if principal.owners is None else list(principal.owners),
        "version": __version__,
        "defaultDuration": service.settings.default_end,
        "askAbove": service.ask_above,
    }
    return JsonResponse(request, dump_json(body))


@router.get(
    "/issuers",
    summary="Where people log in with the command",
    operation_id="listIssuers",
    dependencies=[PUBLIC, FROM_MEMORY],
    response_model=IssuersBody,
)
async def get_issuers(request: Request) -> Response:
    """The OpenID Connect issuers at which `blocklist login` works, by the device flow; none if there are none."""
    settings = service_of(request).settings
    found = [
        {
            "issuer": issuer.url,
            "clientId": issuer.command_client_id,
            "audience": issuer.audience,
            "scope": settings.oidc_scope,
        }
        for issuer in settings.oidc_issuers
        if issuer.command_client_id and settings.auth != "off"
    ]
    return JsonResponse(request, dump_json({"issuers": found}))


@router.post(
    "/tokens",
    summary="Create a token",
    operation_id="createToken",
    status_code=201,
    response_model=CreatedTokenBody,
    responses=problem_responses(
        400,
        403,
        413,
        503,
        _403="The role is not admin, authentication is off, or the name is that of an automatic owner.",
    ),
    openapi_extra=body_schema("TokenRequest"),
)
async def post_token(request: Request, principal: Admin) -> Response:
    """Create a bearer token with a name, a role and an optional end. `token` is returned only here."""
    require_authentication(service_of(request))
    token_request = TokenRequest.parse(parse_json(await read_body(request, MAX_NODE_BODY)))
    new_token = await create_token(service_of(request), token_request, origin_of(request, principal))
    response = JsonResponse(request, dump_json(new_token_body(new_token)), HTTPStatus.CREATED)
    response.raw_headers.append((b"cache-control", b"no-store"))
    return response


def require_authentication(service: Service) -> None:
    """Raises ForbiddenError while authentication is off."""
    if not service.authenticator.enabled:
        # Whoever may send requests now would keep the access of an admin after authentication is switched on.
        raise ForbiddenError(
            "Without authentication no token can be created: set BLOCKLIST_AUTH=tokens and BLOCKLIST_ADMIN_TOKEN_FILE,"
            " and create tokens with the token in that file."
        )


async def create_token(service: Service, wanted: TokenRequest, origin: Origin) -> NewToken:
    """Create this token.

    Raises InvalidError for an end that is not in the future, ForbiddenError for a reserved name, UnavailableError.
    """
    end, now = wanted.end_timestamp, service.clock()
    if end <= now:
        raise InvalidError(f"endTimestamp: {end} is not in the future; the current time is {now}.")
    role, owners = Role(wanted.role), None if wanted.owners is None else tuple(wanted.owners)
    Principal(wanted.name, role, owners=owners).check_name()
    return await service.authenticator.create(
        wanted.name,
        role,
        end,
        origin,
        owners=owners,
        listeners=None if wanted.listeners is None else tuple(wanted.listeners),
    )


@router.get(
    "/tokens",
    summary="All tokens",
    operation_id="listTokens",
    dependencies=[REQUIRE_ADMIN],
    response_model=TokensBody,
    responses=problem_responses(503),
)
async def get_tokens(request: Request) -> Response:
    """All tokens, including expired and revoked ones, oldest first; without the secret values."""
    tokens = await service_of(request).authenticator.tokens()
    return JsonResponse(request, dump_json({"tokens": [token_body(token) for token in tokens]}))


@router.delete(
    "/tokens/{id}",
    summary="Revoke a token",
    operation_id="revokeToken",
    status_code=204,
    responses=problem_responses(
        400,
        404,
        409,
        503,
        _404="There is no such token.",
        _409="It is the last valid token of an admin; nothing was changed.",
    ),
)
async def delete_token(request: Request, token_id: ResourceId, principal: Admin) -> Response:
    """Revoke the token immediately; sessions and watches that use it are closed."""
    await service_of(request).authenticator.revoke(token_id, origin_of(request, principal))
    response = Response(status_code=HTTPStatus.NO_CONTENT)
    response.raw_headers.extend(revision_headers(request))
    return response
