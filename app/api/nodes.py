"""PUT, GET and DELETE of nodes (FLIP-224, Add and Remove)."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from app.api.authorization import READS, Operator, author
from app.api.dry_run import DryRun, Force, forcing, rehearse
from app.api.node_status import Wait, applied
from app.api.parameters import NODE_ID_PATTERN, MinRevision, NodeId, Only
from app.api.problems import documented
from app.api.responses import MANY_NODES, ONE_NODE, JsonAnswer, age, read_body, stamp
from app.components import Service, service_of
from app.engine.handler import Command, Outcome
from blocklist.model.changes import ChangeType
from blocklist.model.draft import Draft, not_blocked
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

router = APIRouter(tags=["Nodes"], dependencies=[READS])

# Not looked up for each answer: a member of an enum is a Python call away.
_CREATED, _MERGED = HTTPStatus.CREATED, HTTPStatus.ACCEPTED
MAX_NODES = 1000
"""Nodes in one request."""


def _takes(schema: dict[str, Any], *, required: bool = True) -> dict[str, Any]:
    """OpenAPI of a body that the endpoint reads itself: strictly, and whatever its content type says."""
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


_BLOCKS = Depends(Only("dryRun", "force"))
_FREES = Depends(Only("dryRun"))
_CONFLICT = "The node is blocked already, or a limit forbids it (then `type` ends in `limit`); nothing was changed."
_REQUEST = {"$ref": "#/components/schemas/BlockRequest"}
_ONE = _takes(_REQUEST)
_MANY = _takes(
    {
        "type": "object",
        "propertyNames": {"pattern": NODE_ID_PATTERN},
        "additionalProperties": _REQUEST,
        "minProperties": 1,
        "maxProperties": MAX_NODES,
    }
)
_DRY_RUN = {"model": DryRunBody, "description": "What it would do; nothing was done (`dryRun`)."}
# No schema: it would forbid the empty body.
_FREED = {"description": "The node is free; no body. With `dryRun=true` what it would do: a DryRunBody, as a PUT's."}
_NOTHING = _takes({"type": "object", "maxProperties": 0}, required=False)


@router.head("/blocklist/nodes/{node_id}", dependencies=[MinRevision], include_in_schema=False)
@router.head("/blocklist/node/{node_id}", dependencies=[MinRevision], include_in_schema=False)
@router.get("/blocklist/node/{node_id}", dependencies=[MinRevision], include_in_schema=False)
@router.get(
    "/blocklist/nodes/{node_id}",
    summary="One blocked node",
    dependencies=[MinRevision],
    response_model=NodeBody,
    responses=documented(400, 404, 503),
)
async def get_node(request: Request, node_id: NodeId) -> Response:
    """The node, or 404 if it is not blocked."""
    view = service_of(request).view
    node = view.get(node_id)
    if node is None:
        raise NotFoundError(not_blocked(node_id))
    answer = JsonAnswer(request, view.rendered(node))
    answer.raw_headers.extend(age(request))
    return answer


@router.put("/blocklist/node/{node_id}", dependencies=[_BLOCKS], include_in_schema=False)
@router.put(
    "/blocklist/nodes/{node_id}",
    summary="Block a node",
    dependencies=[_BLOCKS],
    status_code=201,
    response_model=NodeBody,
    responses={
        200: _DRY_RUN,
        202: {"model": NodeBody, "description": "Merged with the present block."},
        **documented(400, 403, 413, 503),
        **documented(409, model=ConflictProblem, or_else=Problem, _409=_CONFLICT),
    },
    openapi_extra=_ONE,
)
async def put_node(
    request: Request, node_id: NodeId, who: Operator, wait: Wait = None, dry_run: DryRun = False, force: Force = None
) -> Response:
    """Block a node: 201. If it is blocked already: with `allowMerge` join the two blocks, 202; without it 409."""
    service, by = service_of(request), forcing(who, force)
    command = block_command(node_id, await read_body(request, ONE_NODE), service.clock())
    if dry_run:
        return await rehearse(request, command, who, by)
    outcome = await service.handler.submit(service.guard.guarded(command, who.access), by)
    status, body = block_answer(service, outcome)
    answer = JsonAnswer(request, body, status, outcome.revision)
    answer.raw_headers.extend(await applied(request, outcome.revision, wait))
    return answer


def block_command(node_id: str, body: bytes, now: int) -> Command[BlockedNode]:
    """The command that a PUT of one node asks for. Raises InvalidError."""
    block = BlockRequest.parse(parse_json(body))
    node = block.node(node_id, now)
    return lambda draft: draft.block(node, allow_merge=block.allow_merge)


def block_answer(service: Service, outcome: Outcome[BlockedNode]) -> tuple[HTTPStatus, bytes]:
    """Status and body of the answer to a PUT of one node."""
    created = outcome.changes and outcome.changes[-1].type is ChangeType.BLOCKED
    return _CREATED if created else _MERGED, service.view.rendered(outcome.value)


@router.put(
    "/blocklist/nodes",
    summary="Block several nodes",
    dependencies=[_BLOCKS],
    response_model=dict[str, NodeResult] | DryRunBody,
    responses={
        200: {"description": "All of them are blocked: id to `status` (201 or 202) and the node. Or a dry run."},
        **documented(400, 403, 413, 503),
        **documented(409, model=ConflictsProblem, or_else=Problem, _409=_CONFLICT),
    },
    openapi_extra=_MANY,
)
async def put_nodes(
    request: Request, who: Operator, wait: Wait = None, dry_run: DryRun = False, force: Force = None
) -> Response:
    """Block up to 1,000 nodes in one transaction, all or none, one revision each in the order of the body."""
    service, by = service_of(request), forcing(who, force)
    nodes = _read_many(parse_json(await read_body(request, MANY_NODES)), service.clock())

    def command(draft: Draft) -> dict[str, BlockedNode]:
        return draft.block_many(nodes)

    if dry_run:
        return await rehearse(request, command, who, by)
    outcome = await service.handler.submit(service.guard.guarded(command, who.access), by)
    answer = JsonAnswer(request, dump_json(_many_body(service, outcome)), revision=outcome.revision)
    answer.raw_headers.extend(await applied(request, outcome.revision, wait))
    return answer


@router.delete("/blocklist/node/{node_id}", dependencies=[_FREES], include_in_schema=False)
@router.delete(
    "/blocklist/nodes/{node_id}",
    summary="Free a node",
    dependencies=[_FREES],
    response_class=Response,
    responses={200: _FREED, **documented(400, 404, 413, 503)},
    openapi_extra=_NOTHING,
)
async def delete_node(
    request: Request, node_id: NodeId, who: Operator, wait: Wait = None, dry_run: DryRun = False
) -> Response:
    """Free a node before its end; 404 if it is not blocked."""
    body = await read_body(request, ONE_NODE)
    if body and parse_json(body) != {}:
        raise InvalidError("The body of a DELETE is empty or {}.")

    def command(draft: Draft) -> BlockedNode:
        return draft.unblock(node_id)

    if dry_run:
        return await rehearse(request, command, who, author(who))
    outcome = await service_of(request).handler.submit(command, author(who))
    response = Response()
    response.raw_headers.extend(stamp(request, outcome.revision))
    response.raw_headers.extend(await applied(request, outcome.revision, wait))
    return response


def _read_many(body: object, now: int) -> dict[str, tuple[BlockedNode, bool]]:
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


def _many_body(service: Service, outcome: Outcome[dict[str, BlockedNode]]) -> dict[str, Any]:
    created = {change.node.id for change in outcome.changes if change.type is ChangeType.BLOCKED}
    return {
        node_id: {"status": 201 if node_id in created else 202, **service.view.body(node)}
        for node_id, node in outcome.value.items()
    }
