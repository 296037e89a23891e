"""Block, read and unblock nodes (FLIP-224: Add and Remove)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

from fastapi import Depends, Query, Request, Response

from app.api.change import Blocking, Freeing, Replace, RequestedChange, node_etag, remove_claim, require_known
from app.api.node_status import AMBIGUOUS
from app.api.parameters import (
    EMPTY_BODY,
    KNOWN_PARAMETERS,
    REQUIRE_READER,
    ApiRouter,
    MinRevision,
    NodeId,
    body_schema,
    nodes_body_schema,
    parse_by_node,
    read_body,
    require_empty_body,
)
from app.api.responses import (
    FROM_MEMORY,
    ConflictProblem,
    ConflictsProblem,
    JsonResponse,
    Problem,
    problem_responses,
    revision_headers,
)
from app.engine.handler import Command, Outcome
from app.requests import MAX_NODE_BODY, MAX_NODES_BODY, BlockRequest
from app.service import Service, service_of
from blocklist.model.changes import ChangeType
from blocklist.model.claims import claim_of, default_owner
from blocklist.model.draft import Draft, not_blocked_message
from blocklist.model.errors import InvalidError, NotFoundError
from blocklist.model.inventory import label_hints, select_nodes, selects
from blocklist.model.names import several_message
from blocklist.model.node import MAX_NODES, BlockedNode
from blocklist.model.selector import MAX_LENGTH, Selector, parse_selector
from blocklist.wire.body import ID_SCHEMA, parse_json
from blocklist.wire.nodes import DryRunBody, NodeBody, NodeResult, UnblockedNode

# `?selector=`: the nodes with these labels, and the changes of all of them at once.

# The syntax of blocklist.model.selector, for JSON Schema.
_WS: Final = r"[ \t\r\n]*"
_NAME: Final = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY: Final = f"([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?{_NAME}"
_LIST: Final = f"[(]{_WS}({_NAME})?{_WS}(,{_WS}({_NAME})?{_WS})*[)]"
_PART: Final = f"(!{_WS}{_KEY}|{_KEY}({_WS}(=|==|!=){_WS}({_NAME})?)?|{_KEY}[ \\t\\r\\n]{_WS}(in|notin){_WS}{_LIST})"
_PARTS: Final = f"{_WS}{_PART}{_WS}(,{_WS}{_PART}{_WS}){{0,31}}"


def _parameter(pattern: str) -> Any:
    return Query(
        max_length=MAX_LENGTH,
        description="Only nodes with these labels, in kubectl's syntax: `=`, `==`, `!=`, `in`, `notin`, `key`, `!key`,"
        " joined by commas that mean and.",
        examples=["rack=r12,pool in (batch, gpu)"],
        # Not `pattern`: the parser's error has the position.
        json_schema_extra={"pattern": pattern},
    )


_PARAMETER: Final = _parameter(f"^{_PARTS}$")
# A read may have an empty selector, which selects every node; a change may not.
_PARAMETER_OF_READS: Final = _parameter(f"^({_PARTS}|{_WS})$")


async def _required(request: Request, selector: Annotated[str, _PARAMETER]) -> Selector:
    if len(request.query_params.getlist("selector")) > 1:
        raise InvalidError("selector: give it once; a comma joins its parts.")
    return parse_selector(selector)


async def _optional(request: Request, selector: Annotated[str | None, _PARAMETER] = None) -> Selector | None:
    return None if selector is None else await _required(request, selector)


async def _of_read(request: Request, selector: Annotated[str | None, _PARAMETER_OF_READS] = None) -> Selector | None:
    return await _optional(request, selector)


RequiredSelector = Annotated[Selector, Depends(_required)]
"""The selector in the query. Raises InvalidError."""
OptionalSelector = Annotated[Selector | None, Depends(_optional)]
"""The selector in the query, or None. Raises InvalidError."""
ReadSelector = Annotated[Selector | None, Depends(_of_read)]
"""The selector in the query of a read, or None; an empty one selects every node. Raises InvalidError."""


def block_selected(
    service: Service, selector: Selector, block: BlockRequest, *, strict: bool, replace: bool = False
) -> Command[dict[str, BlockedNode]]:
    """The command that blocks all nodes that are selected when it runs; if `strict`, only by labels that exist.

    Raises InvalidError for an empty selector. The command also raises NotFoundError, UnknownNodeError.
    """
    now = service.clock()
    block.node("any", now)  # Raises what is wrong with the request, before it is queued.
    _require_labels(selector)

    def run(draft: Draft) -> dict[str, BlockedNode]:
        selection = select_nodes(selector, service.inventory)
        if strict:
            selection.require_known_labels()
        selected = selection.require_nodes(MAX_NODES)
        nodes = {node_id: (block.node(node_id, now), block.allow_merge) for node_id in selected}
        return draft.block_many(nodes, replace_own=replace)

    return run


@dataclass(frozen=True, kw_only=True, slots=True)
class UnblockedSelection:
    """The nodes that were selected, and those of them that were blocked, as they were."""

    selected: Sequence[str]
    unblocked: dict[str, BlockedNode]


def unblock_selected(service: Service, selector: Selector, owner: str | None = None) -> Command[UnblockedSelection]:
    """The command that unblocks those of the selected nodes that are blocked, or removes the claims of `owner` on them.

    Raises InvalidError for an empty selector. The command raises NotFoundError if no node is selected or none of them
    is blocked, InvalidError for too many.
    """
    _require_labels(selector)

    def run(draft: Draft) -> UnblockedSelection:
        selected = select_nodes(selector, service.inventory).require_nodes()
        blocked = [node_id for node_id in selected if _is_blocked(draft, node_id, owner)]
        if not blocked:
            by_whom = "is blocked" if owner is None else f"is blocked by {owner}"
            raise NotFoundError(f"None of the {len(selected):,} nodes that {selector} selects {by_whom}.")
        if len(blocked) > MAX_NODES:
            raise InvalidError(
                f"{len(blocked):,} of the nodes that {selector} selects are blocked; at most {MAX_NODES:,} can be"
                " changed at once. Nothing was changed."
            )
        # Two known nodes may be one block, under their short name.
        unblocked = {
            node_id: draft.unblock(node_id) if owner is None else draft.remove_claim(node_id, owner)
            for node_id in blocked
            if _is_blocked(draft, node_id, owner)
        }
        return UnblockedSelection(selected=selected, unblocked=unblocked)

    return run


def _is_blocked(draft: Draft, node_id: str, owner: str | None) -> bool:
    """Whether a node is blocked, by this owner if one is given."""
    node = draft.get_blocked(node_id)
    return node is not None and (owner is None or claim_of(draft.live_claims(node), owner) is not None)


def _require_labels(selector: Selector) -> None:
    if not selector:
        raise InvalidError("selector: it is empty, and would select every node. Name a label. Nothing was changed.")


def selected_by(service: Service, selector: Selector | None) -> Callable[[str], bool] | None:
    """Whether a node id is selected, by the labels at the moment of the call; None if there is no selector."""
    if not selector:
        return None
    return partial(selects, selector, service.inventory)


def warnings_of(service: Service, selector: Selector | None) -> list[tuple[bytes, bytes]]:
    """A Warning header, as Kubernetes sends it, for each label in the selector that no known node has."""
    hints = [] if selector is None else label_hints(selector, service.inventory)
    return [(b"warning", b'299 - "%b"' % hint.encode()) for hint in hints]


router = ApiRouter(tags=["Nodes"], dependencies=[REQUIRE_READER, KNOWN_PARAMETERS])

# Access to an enum member is a Python call, so do it once.
_CREATED, _MERGED = HTTPStatus.CREATED, HTTPStatus.ACCEPTED
OnlyOwn = Annotated[
    Literal["me"] | None,
    Query(alias="owner", description="`me`: remove the caller's own claims only; claims of other owners stay."),
]
_CONFLICT = (
    "The node is already blocked, or a limit was reached (then `type` ends in `limit`), or with `strict=true` it"
    " is not known (`unknown-node`); nothing was changed."
)
_ONE_NODE_BODY = body_schema("BlockRequest")
# With a selector the body is one BlockRequest; a choice of both would be nothing that generators of clients compile.
_NODES_BODY = body_schema(nodes_body_schema("BlockRequest"))
# Generated clients read every answer as the one with the lowest code, so this one is also a node.
_DRY_RUN_RESPONSE: Final[dict[str, Any]] = {
    "model": NodeBody | DryRunBody,
    "description": "With `dryRun=true` what it would do: a DryRunBody; nothing was changed.",
}
# Without a schema, because a schema would forbid the empty body.
_UNBLOCKED: Final[dict[str, Any]] = {
    "headers": {
        "Blocklist-Node": {
            "schema": {"type": "string", **ID_SCHEMA},
            "description": "The name under which the node was blocked. Not with `dryRun=true`.",
        }
    },
    "description": "The node is unblocked; no body. With `dryRun=true` what it would do: a DryRunBody, as for PUT.",
}


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
    view = service_of(request).view
    node = view.get(node_id)
    if node is None:
        raise NotFoundError(not_blocked_message(node_id))
    response = JsonResponse(request, view.node_json(node))
    response.headers["ETag"] = node_etag(view.tracker, node, view.clock())
    return response


@router.put("/blocklist/node/{node_id}", include_in_schema=False)
@router.put(
    "/blocklist/nodes/{node_id}",
    summary="Block a node",
    operation_id="blockNode",
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
async def put_node(request: Request, node_id: NodeId, change: Blocking, replace: Replace = "false") -> Response:
    """Block a node (201). If it is already blocked: with `allowMerge`, merge the two blocks (202); without it, 409.

    With `replace=true` the caller's own claim becomes this block, also a shorter or weaker one (202).
    """
    change.principal.check_may_block()
    service = change.service
    body = await read_body(request, MAX_NODE_BODY)
    command = block_command(node_id, body, service.clock(), replace=replace == "true")

    def respond(outcome: Outcome[BlockedNode]) -> Response:
        status, body = block_response(service, outcome)
        response = JsonResponse(request, body, status, outcome.revision)
        response.raw_headers.extend(several_warning(service, outcome.value.id))
        return response

    return await change.answer(
        require_known(service, [node_id], command, strict=change.strict), lambda node: [node], respond
    )


def block_command(node_id: str, body: bytes, now: int, *, replace: bool = False) -> Command[BlockedNode]:
    """The command for a PUT of one node; with `replace`, of the caller's own claim on it. Raises InvalidError."""
    block = BlockRequest.parse(parse_json(body))
    node = block.node(node_id, now)
    return lambda draft: draft.block(node, allow_merge=block.allow_merge, replace_own=replace)


def several_warning(service: Service, node_id: str) -> list[tuple[bytes, bytes]]:
    """A Warning header if the name of a block means several nodes."""
    several = service.known_nodes.several([node_id])
    return [(b"warning", b'299 - "%b"' % several_message(*item).encode()) for item in several.items()]


def block_response(service: Service, outcome: Outcome[BlockedNode]) -> tuple[HTTPStatus, bytes]:
    """Status and body of the response to a PUT of one node."""
    created = outcome.changes and outcome.changes[-1].type is ChangeType.BLOCKED
    return _CREATED if created else _MERGED, service.view.node_json(outcome.value)


@router.put(
    "/blocklist/nodes",
    summary="Block several nodes",
    operation_id="blockNodes",
    response_model=dict[str, NodeResult] | DryRunBody,
    responses={
        200: {"description": "All nodes are blocked: by id the `status` (201 or 202) and the node. Or a dry run."},
        **problem_responses(400, 403, 404, 413, 414, 503, _404="The selector selects no node; nothing was changed."),
        **problem_responses(409, model=ConflictsProblem, or_else=Problem, _409=_CONFLICT),
    },
    openapi_extra=_NODES_BODY,
)
async def put_nodes(change: Blocking, selector: OptionalSelector = None, replace: Replace = "false") -> Response:
    """Block up to 1,000 nodes in one transaction: all or none. Each gets a revision, in the order of the body.

    With `selector` the body is that of one node, and blocks all nodes that are selected at the moment of the change.
    """
    change.principal.check_may_block()
    service, command = change.service, await _block_many_command(change, selector, replace == "true")
    response = await change.answer_with(command, dict.values, lambda outcome: _nodes_body(service, outcome))
    response.raw_headers.extend(warnings_of(service, selector))
    return response


async def _block_many_command(
    change: RequestedChange, selector: Selector | None, replace: bool
) -> Command[dict[str, BlockedNode]]:
    service = change.service
    if selector is not None:
        block = BlockRequest.parse(parse_json(await read_body(change.request, MAX_NODE_BODY)))
        return block_selected(service, selector, block, strict=change.strict, replace=replace)
    nodes = parse_nodes(await read_body(change.request, MAX_NODES_BODY), service.clock())
    return require_known(
        service, nodes.keys(), lambda draft: draft.block_many(nodes, replace_own=replace), strict=change.strict
    )


@router.delete(
    "/blocklist/nodes",
    summary="Unblock the selected nodes",
    operation_id="unblockNodes",
    response_model=dict[str, UnblockedNode] | DryRunBody,
    responses={
        200: {
            "description": "The selected nodes by id: 200 was unblocked, 404 was not blocked, or with `owner=me` not by"
            " the caller. Or a dry run."
        },
        **problem_responses(
            400, 404, 413, 503, _404="The selector selects no node, or none that is blocked; nothing was changed."
        ),
    },
    openapi_extra=EMPTY_BODY,
)
async def delete_nodes(
    request: Request, change: Freeing, selector: RequiredSelector, only_own: OnlyOwn = None
) -> Response:
    """Unblock those of the selected nodes that are blocked, up to 1,000 in one transaction: all or none.

    With `owner=me` only the caller's claims on them are removed: 200 of a node says that one was.
    """
    owner = None if only_own is None else default_owner(change.author.name)
    if owner is None:
        change.principal.check_may_unblock()
    else:
        change.principal.check_may_claim_for(owner)
    await require_empty_body(request)
    response = await change.answer_with(
        unblock_selected(change.service, selector, owner),
        lambda selection: selection.unblocked.values(),
        lambda outcome: _unblocked_body(outcome.value),
    )
    response.raw_headers.extend(warnings_of(change.service, selector))
    return response


@router.delete("/blocklist/node/{node_id}", include_in_schema=False)
@router.delete(
    "/blocklist/nodes/{node_id}",
    summary="Unblock a node",
    operation_id="unblockNode",
    response_class=Response,
    responses={200: _UNBLOCKED, **problem_responses(400, 404, 409, 413, 503, _409=AMBIGUOUS)},
    openapi_extra=EMPTY_BODY,
)
async def delete_node(request: Request, node_id: NodeId, change: Freeing, only_own: OnlyOwn = None) -> Response:
    """Unblock a node before its block expires, whoever claims it; 404 if it is not blocked.

    With `owner=me` only the caller's claim is removed: the response has the node as the others have it, and is a 404 if
    the caller has no claim on it.
    """
    if only_own is not None:
        return await remove_claim(request, node_id, default_owner(change.author.name), change)
    change.principal.check_may_unblock()
    await require_empty_body(request)

    def respond(outcome: Outcome[BlockedNode]) -> Response:
        response = Response()
        response.raw_headers.extend(revision_headers(request, outcome.revision))
        # Not on the path of FLIP-224, whose response is fixed.
        if request.scope["path"].startswith("/blocklist/nodes/"):
            response.headers["Blocklist-Node"] = outcome.value.id
        return response

    return await change.answer(lambda draft: draft.unblock(node_id), lambda node: [node], respond)


def _unblocked_body(selection: UnblockedSelection) -> dict[str, Any]:
    return {
        node_id: {"status": 404, "id": None}
        if (node := selection.unblocked.get(node_id)) is None
        else {"status": 200, "id": node.id}
        for node_id in selection.selected
    }


def parse_nodes(body: bytes, now: int) -> dict[str, tuple[BlockedNode, bool]]:
    """The nodes of a PUT of several, and whether each may be merged. Raises InvalidError with all faults."""

    def parse(node_id: str, fields: object) -> tuple[BlockedNode, bool]:
        block = BlockRequest.parse(fields)
        return block.node(node_id, now), block.allow_merge

    return parse_by_node(parse_json(body), parse)


def _nodes_body(service: Service, outcome: Outcome[dict[str, BlockedNode]]) -> dict[str, Any]:
    created = {change.node.id for change in outcome.changes if change.type is ChangeType.BLOCKED}
    known = service.known_nodes
    unknown, ambiguous = known.unknown(sorted(created)), known.ambiguous(created)
    several = known.several(node.id for node in outcome.value.values())
    return {
        node_id: {
            "status": 201 if node_id in created else 202,
            **service.view.node_body(node),
            **({"known": False, "didYouMean": unknown[node_id]} if node_id in unknown else {}),
            **({"known": False, "ambiguous": ambiguous[node_id]} if node_id in ambiguous else {}),
            **({"means": several[node.id]} if node.id in several else {}),
        }
        for node_id, node in outcome.value.items()
    }
