"""PUT, GET and DELETE of nodes (FLIP-224, Add and Remove)."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from app.api.authorization import REQUIRE_READER, Operator, author
from app.api.dry_run import DryRun, Force, author_with_force, dry_run_response
from app.api.node_status import Wait, wait_until_applied
from app.api.parameters import NODE_ID_PATTERN, AllowedParameters, MinRevision, NodeId
from app.api.problems import problem_responses
from app.api.responses import MAX_NODE_BODY, MAX_NODES_BODY, JsonResponse, age_header, read_body, revision_headers
from app.components import Components, components_of
from app.engine.handler import Command, Outcome
from blocklist.model.changes import ChangeType
from blocklist.model.draft import Draft, not_blocked_message
from blocklist.model.errors import InvalidError, NotFoundError
from blocklist.model.node import BlockedNode, check_node_id
from blocklist.wire.dry_run import DryRunBody
from blocklist.wire.nodes import (
    BlockRequest,
    ConflictProblem,
    ConflictsProblem,
    NodeBody,
    NodeResult,
    Problem,
    dump_json,
    parse_json,
)

router = APIRouter(tags=["Nodes"], dependencies=[REQUIRE_READER])

# Not looked up for each answer: a member of an enum is a Python call away.
_CREATED, _MERGED = HTTPStatus.CREATED, HTTPStatus.ACCEPTED
MAX_NODES = 1000
"""Nodes in one request."""


def _request_body(schema: dict[str, Any], *, required: bool = True) -> dict[str, Any]:
    """OpenAPI of a body that the endpoint reads itself: strictly, and whatever its content type says."""
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


_BLOCK_PARAMETERS = Depends(AllowedParameters("dryRun", "force"))
_UNBLOCK_PARAMETERS = Depends(AllowedParameters("dryRun"))
_CONFLICT = "The node is blocked already, or a limit forbids it (then `type` ends in `limit`); nothing was changed."
_REQUEST = {"$ref": "#/components/schemas/BlockRequest"}
_ONE_NODE_BODY = _request_body(_REQUEST)
_NODES_BODY = _request_body(
    {
        "type": "object",
        "propertyNames": {"pattern": NODE_ID_PATTERN},
        "additionalProperties": _REQUEST,
        "minProperties": 1,
        "maxProperties": MAX_NODES,
    }
)
_DRY_RUN_RESPONSE = {"model": DryRunBody, "description": "What it would do; nothing was done (`dryRun`)."}
# No schema: it would forbid the empty body.
_UNBLOCKED = {
    "description": "The node is free; no body. With `dryRun=true` what it would do: a DryRunBody, as a PUT's."
}
_EMPTY_BODY = _request_body({"type": "object", "maxProperties": 0}, required=False)


@router.head("/blocklist/nodes/{node_id}", dependencies=[MinRevision], include_in_schema=False)
@router.head("/blocklist/node/{node_id}", dependencies=[MinRevision], include_in_schema=False)
@router.get("/blocklist/node/{node_id}", dependencies=[MinRevision], include_in_schema=False)
@router.get(
    "/blocklist/nodes/{node_id}",
    summary="One blocked node",
    dependencies=[MinRevision],
    response_model=NodeBody,
    responses=problem_responses(400, 404, 503),
)
async def get_node(request: Request, node_id: NodeId) -> Response:
    """The node, or 404 if it is not blocked."""
    view = components_of(request).view
    node = view.get(node_id)
    if node is None:
        raise NotFoundError(not_blocked_message(node_id))
    answer = JsonResponse(request, view.node_json(node))
    answer.raw_headers.extend(age_header(request))
    return answer


@router.put("/blocklist/node/{node_id}", dependencies=[_BLOCK_PARAMETERS], include_in_schema=False)
@router.put(
    "/blocklist/nodes/{node_id}",
    summary="Block a node",
    dependencies=[_BLOCK_PARAMETERS],
    status_code=201,
    response_model=NodeBody,
    responses={
        200: _DRY_RUN_RESPONSE,
        202: {"model": NodeBody, "description": "Merged with the present block."},
        **problem_responses(400, 403, 413, 503),
        **problem_responses(409, model=ConflictProblem, or_else=Problem, _409=_CONFLICT),
    },
    openapi_extra=_ONE_NODE_BODY,
)
async def put_node(
    request: Request,
    node_id: NodeId,
    principal: Operator,
    wait: Wait = None,
    dry_run: DryRun = False,
    force: Force = None,
) -> Response:
    """Block a node: 201. If it is blocked already: with `allowMerge` join the two blocks, 202; without it 409."""
    service, changed_by = components_of(request), author_with_force(principal, force)
    command = block_command(node_id, await read_body(request, MAX_NODE_BODY), service.clock())
    if dry_run:
        return await dry_run_response(request, command, principal, changed_by)
    outcome = await service.handler.submit(service.limit_guard.enforce(command, principal.role), changed_by)
    status, body = block_response(service, outcome)
    answer = JsonResponse(request, body, status, outcome.revision)
    answer.raw_headers.extend(await wait_until_applied(request, outcome.revision, wait))
    return answer


def block_command(node_id: str, body: bytes, now: int) -> Command[BlockedNode]:
    """The command that a PUT of one node asks for. Raises InvalidError."""
    block = BlockRequest.parse(parse_json(body))
    node = block.node(node_id, now)
    return lambda draft: draft.block(node, allow_merge=block.allow_merge)


def block_response(service: Components, outcome: Outcome[BlockedNode]) -> tuple[HTTPStatus, bytes]:
    """Status and body of the answer to a PUT of one node."""
    created = outcome.changes and outcome.changes[-1].type is ChangeType.BLOCKED
    return _CREATED if created else _MERGED, service.view.node_json(outcome.value)


@router.put(
    "/blocklist/nodes",
    summary="Block several nodes",
    dependencies=[_BLOCK_PARAMETERS],
    response_model=dict[str, NodeResult] | DryRunBody,
    responses={
        200: {"description": "All of them are blocked: id to `status` (201 or 202) and the node. Or a dry run."},
        **problem_responses(400, 403, 413, 503),
        **problem_responses(409, model=ConflictsProblem, or_else=Problem, _409=_CONFLICT),
    },
    openapi_extra=_NODES_BODY,
)
async def put_nodes(
    request: Request, principal: Operator, wait: Wait = None, dry_run: DryRun = False, force: Force = None
) -> Response:
    """Block up to 1,000 nodes in one transaction, all or none, one revision each in the order of the body."""
    service, changed_by = components_of(request), author_with_force(principal, force)
    nodes = _parse_nodes(parse_json(await read_body(request, MAX_NODES_BODY)), service.clock())

    def command(draft: Draft) -> dict[str, BlockedNode]:
        return draft.block_many(nodes)

    if dry_run:
        return await dry_run_response(request, command, principal, changed_by)
    outcome = await service.handler.submit(service.limit_guard.enforce(command, principal.role), changed_by)
    answer = JsonResponse(request, dump_json(_nodes_body(service, outcome)), revision=outcome.revision)
    answer.raw_headers.extend(await wait_until_applied(request, outcome.revision, wait))
    return answer


@router.delete("/blocklist/node/{node_id}", dependencies=[_UNBLOCK_PARAMETERS], include_in_schema=False)
@router.delete(
    "/blocklist/nodes/{node_id}",
    summary="Free a node",
    dependencies=[_UNBLOCK_PARAMETERS],
    response_class=Response,
    responses={200: _UNBLOCKED, **problem_responses(400, 404, 413, 503)},
    openapi_extra=_EMPTY_BODY,
)
async def delete_node(
    request: Request, node_id: NodeId, principal: Operator, wait: Wait = None, dry_run: DryRun = False
) -> Response:
    """Free a node before its end; 404 if it is not blocked."""
    body = await read_body(request, MAX_NODE_BODY)
    if body and parse_json(body) != {}:
        raise InvalidError("The body of a DELETE is empty or {}.")

    def command(draft: Draft) -> BlockedNode:
        return draft.unblock(node_id)

    if dry_run:
        return await dry_run_response(request, command, principal, author(principal))
    outcome = await components_of(request).handler.submit(command, author(principal))
    response = Response()
    response.raw_headers.extend(revision_headers(request, outcome.revision))
    response.raw_headers.extend(await wait_until_applied(request, outcome.revision, wait))
    return response


def _parse_nodes(body: object, now: int) -> dict[str, tuple[BlockedNode, bool]]:
    if not isinstance(body, dict) or not 1 <= len(body) <= MAX_NODES:
        raise InvalidError(f"The body: send an object of 1 to {MAX_NODES} nodes, id to action and cause.")
    nodes: dict[str, tuple[BlockedNode, bool]] = {}
    lines: list[str] = []
    for node_id, fields in body.items():
        try:
            block = BlockRequest.parse(fields)
            nodes[node_id] = block.node(check_node_id(node_id), now), block.allow_merge
        except InvalidError as error:
            lines += [f"{node_id[:253]!a}: {line}" for line in error.lines]
    if lines:
        raise InvalidError("Nothing was changed: " + lines[0], lines)
    return nodes


def _nodes_body(service: Components, outcome: Outcome[dict[str, BlockedNode]]) -> dict[str, Any]:
    created = {change.node.id for change in outcome.changes if change.type is ChangeType.BLOCKED}
    return {
        node_id: {"status": 201 if node_id in created else 202, **service.view.node_body(node)}
        for node_id, node in outcome.value.items()
    }
