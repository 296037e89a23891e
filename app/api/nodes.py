"""Block, read and unblock nodes (FLIP-224: Add and Remove)."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from fastapi import APIRouter, Depends, Request, Response

from app.api.authorization import REQUIRE_READER, Operator, author
from app.api.dry_run import (
    DryRun,
    Force,
    Strict,
    author_with_force,
    dry_run_response,
    known_nodes,
    require_known,
)
from app.api.node_status import AMBIGUOUS, Wait, wait_until_applied
from app.api.parameters import NODE_ID_PATTERN, AllowedParameters, MinRevision, NodeId
from app.api.problems import problem_responses
from app.api.request_body import MAX_NODE_BODY, MAX_NODES_BODY, body_schema, read_body
from app.api.responses import FROM_MEMORY, JsonResponse, revision_headers
from app.components import Components, components_of
from app.engine.handler import Command, Outcome
from blocklist.model.changes import ChangeType
from blocklist.model.draft import Draft, not_blocked_message
from blocklist.model.errors import InvalidError, NotFoundError
from blocklist.model.node import BlockedNode, check_node_id
from blocklist.model.node_ranges import MAX_NODES
from blocklist.wire.dry_run import DryRunBody
from blocklist.wire.json import dump_json, parse_json
from blocklist.wire.nodes import BlockRequest, NodeBody, NodeResult
from blocklist.wire.problems import ConflictProblem, ConflictsProblem, Problem

router = APIRouter(tags=["Nodes"], dependencies=[REQUIRE_READER])

# Access to an enum member is a Python call, so do it once.
_CREATED, _MERGED = HTTPStatus.CREATED, HTTPStatus.ACCEPTED
_BLOCK_PARAMETERS = Depends(AllowedParameters("dryRun", "force", "strict"))
_UNBLOCK_PARAMETERS = Depends(AllowedParameters("dryRun"))
_CONFLICT = (
    "The node is already blocked, or a limit was reached (then `type` ends in `limit`), or with `strict=true` no"
    " listener knows it (`unknown-node`); nothing was changed."
)
_ONE_NODE_BODY = body_schema("BlockRequest")
_NODES_BODY = body_schema(
    {
        "type": "object",
        "propertyNames": {"pattern": NODE_ID_PATTERN},
        "additionalProperties": {"$ref": "#/components/schemas/BlockRequest"},
        "minProperties": 1,
        "maxProperties": MAX_NODES,
    }
)
_DRY_RUN_RESPONSE = {"model": DryRunBody, "description": "With `dryRun=true` what it would do; nothing was changed."}
# Without a schema, because a schema would forbid the empty body.
_UNBLOCKED: Final[dict[str, Any]] = {
    "headers": {
        "Blocklist-Node": {
            "schema": {"type": "string", "pattern": NODE_ID_PATTERN},
            "description": "The name under which the node was blocked. Not with `dryRun=true`.",
        }
    },
    "description": "The node is unblocked; no body. With `dryRun=true` what it would do: a DryRunBody, as for PUT.",
}
_EMPTY_BODY = body_schema({"type": "object", "maxProperties": 0}, required=False)


@router.head("/blocklist/nodes/{node_id}", dependencies=[MinRevision, FROM_MEMORY], include_in_schema=False)
@router.head("/blocklist/node/{node_id}", dependencies=[MinRevision, FROM_MEMORY], include_in_schema=False)
@router.get("/blocklist/node/{node_id}", dependencies=[MinRevision, FROM_MEMORY], include_in_schema=False)
@router.get(
    "/blocklist/nodes/{node_id}",
    summary="One blocked node",
    operation_id="getBlockedNode",
    dependencies=[MinRevision, FROM_MEMORY],
    response_model=NodeBody,
    responses=problem_responses(400, 404, 409, 503, _409=AMBIGUOUS),
)
async def get_node(request: Request, node_id: NodeId) -> Response:
    """The node under any name of its machine, or 404 if it is not blocked."""
    view = components_of(request).engine.view
    node = view.get(node_id)
    if node is None:
        raise NotFoundError(not_blocked_message(node_id))
    return JsonResponse(request, view.node_json(node))


@router.put("/blocklist/node/{node_id}", dependencies=[_BLOCK_PARAMETERS], include_in_schema=False)
@router.put(
    "/blocklist/nodes/{node_id}",
    summary="Block a node",
    operation_id="blockNode",
    dependencies=[_BLOCK_PARAMETERS],
    status_code=201,
    response_model=NodeBody,
    responses={
        200: _DRY_RUN_RESPONSE,
        202: {"model": NodeBody, "description": "Merged with the existing block."},
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
    strict: Strict = False,
) -> Response:
    """Block a node (201). If it is already blocked: with `allowMerge`, merge the two blocks (202); without it, 409."""
    components, changed_by = components_of(request), author_with_force(principal, force)
    command = require_known(
        components,
        [node_id],
        block_command(node_id, await read_body(request, MAX_NODE_BODY), components.clock()),
        strict=strict,
    )
    if dry_run:
        return await dry_run_response(request, command, principal, changed_by)
    outcome = await components.engine.handler.submit(
        components.engine.limit_guard.enforce(command, principal.role), changed_by
    )
    status, body = block_response(components, outcome)
    response = JsonResponse(request, body, status, outcome.revision)
    response.raw_headers.extend(await wait_until_applied(request, outcome.revision, [outcome.value.id], wait))
    return response


def block_command(node_id: str, body: bytes, now: int) -> Command[BlockedNode]:
    """The command for a PUT of one node. Raises InvalidError."""
    block = BlockRequest.parse(parse_json(body))
    node = block.node(node_id, now)
    return lambda draft: draft.block(node, allow_merge=block.allow_merge)


def block_response(components: Components, outcome: Outcome[BlockedNode]) -> tuple[HTTPStatus, bytes]:
    """Status and body of the response to a PUT of one node."""
    created = outcome.changes and outcome.changes[-1].type is ChangeType.BLOCKED
    return _CREATED if created else _MERGED, components.engine.view.node_json(outcome.value)


@router.put(
    "/blocklist/nodes",
    summary="Block several nodes",
    operation_id="blockNodes",
    dependencies=[_BLOCK_PARAMETERS],
    response_model=dict[str, NodeResult] | DryRunBody,
    responses={
        200: {"description": "All nodes are blocked: by id the `status` (201 or 202) and the node. Or a dry run."},
        **problem_responses(400, 403, 413, 503),
        **problem_responses(409, model=ConflictsProblem, or_else=Problem, _409=_CONFLICT),
    },
    openapi_extra=_NODES_BODY,
)
async def put_nodes(
    request: Request,
    principal: Operator,
    wait: Wait = None,
    dry_run: DryRun = False,
    force: Force = None,
    strict: Strict = False,
) -> Response:
    """Block up to 1,000 nodes in one transaction: all or none. Each gets a revision, in the order of the body."""
    components, changed_by = components_of(request), author_with_force(principal, force)
    nodes = _parse_nodes(parse_json(await read_body(request, MAX_NODES_BODY)), components.clock())

    def block_all(draft: Draft) -> dict[str, BlockedNode]:
        return draft.block_many(nodes)

    command = require_known(components, nodes.keys(), block_all, strict=strict)
    if dry_run:
        return await dry_run_response(request, command, principal, changed_by)
    outcome = await components.engine.handler.submit(
        components.engine.limit_guard.enforce(command, principal.role), changed_by
    )
    response = JsonResponse(request, dump_json(_nodes_body(components, outcome)), revision=outcome.revision)
    changed = {node.id for node in outcome.value.values()}
    response.raw_headers.extend(await wait_until_applied(request, outcome.revision, changed, wait))
    return response


@router.delete("/blocklist/node/{node_id}", dependencies=[_UNBLOCK_PARAMETERS], include_in_schema=False)
@router.delete(
    "/blocklist/nodes/{node_id}",
    summary="Unblock a node",
    operation_id="unblockNode",
    dependencies=[_UNBLOCK_PARAMETERS],
    response_class=Response,
    responses={200: _UNBLOCKED, **problem_responses(400, 404, 409, 413, 503, _409=AMBIGUOUS)},
    openapi_extra=_EMPTY_BODY,
)
async def delete_node(
    request: Request, node_id: NodeId, principal: Operator, wait: Wait = None, dry_run: DryRun = False
) -> Response:
    """Unblock a node before its block expires; 404 if it is not blocked."""
    body = await read_body(request, MAX_NODE_BODY)
    if body and parse_json(body) != {}:
        raise InvalidError("The body of a DELETE must be empty or {}.")

    def command(draft: Draft) -> BlockedNode:
        return draft.unblock(node_id)

    if dry_run:
        return await dry_run_response(request, command, principal, author(principal))
    outcome = await components_of(request).engine.handler.submit(command, author(principal))
    response = Response()
    response.raw_headers.extend(revision_headers(request, outcome.revision))
    # Not on the path of FLIP-224, whose response is fixed.
    if request.scope["path"].startswith("/blocklist/nodes/"):
        response.headers["Blocklist-Node"] = outcome.value.id
    response.raw_headers.extend(await wait_until_applied(request, outcome.revision, [outcome.value.id], wait))
    return response


def _parse_nodes(body: object, now: int) -> dict[str, tuple[BlockedNode, bool]]:
    if not isinstance(body, dict) or not 1 <= len(body) <= MAX_NODES:
        raise InvalidError(f"The body must be an object of 1 to {MAX_NODES} nodes: for each id an action and a cause.")
    nodes: dict[str, tuple[BlockedNode, bool]] = {}
    errors: list[str] = []
    for node_id, fields in body.items():
        try:
            block = BlockRequest.parse(fields)
            nodes[node_id] = block.node(check_node_id(node_id), now), block.allow_merge
        except InvalidError as error:
            errors += [f"{node_id[:253]!a}: {line}" for line in error.lines]
    if errors:
        raise InvalidError("Nothing was changed: " + errors[0], errors)
    return nodes


def _nodes_body(components: Components, outcome: Outcome[dict[str, BlockedNode]]) -> dict[str, Any]:
    created = {change.node.id for change in outcome.changes if change.type is ChangeType.BLOCKED}
    unknown = known_nodes(components).unknown(sorted(created))
    return {
        node_id: {
            "status": 201 if node_id in created else 202,
            **components.engine.view.node_body(node),
            **({"known": False, "didYouMean": unknown[node_id]} if node_id in unknown else {}),
        }
        for node_id, node in outcome.value.items()
    }
