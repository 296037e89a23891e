"""The nodes there are: all that listeners and the file of nodes report; and drift."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import defaultdict
from http import HTTPStatus
from itertools import combinations
from typing import Annotated, Any, Final

from fastapi import Header, Request, Response

from app.api.node_status import task_managers_on
from app.api.nodes import ReadSelector, warnings_of
from app.api.parameters import KNOWN_PARAMETERS, REQUIRE_READER, ApiRouter, NodeId, Page, PageRequest
from app.api.responses import FROM_MEMORY, JsonResponse, age_header, problem_responses, revision_headers
from app.engine.cached_list import matches_etag
from app.service import Service, service_of
from blocklist.model.errors import AmbiguousNodeError, NotFoundError
from blocklist.model.inventory import Inventory, InventoryNode, select_nodes
from blocklist.model.names import ambiguous_message, normalize_name
from blocklist.model.node import BlockedNode, TaskCount
from blocklist.model.reported_node import NodeSource, SourceKind
from blocklist.model.selector import Selector
from blocklist.wire.body import Json, dump_json
from blocklist.wire.listeners import DriftListBody, KnownNodeBody, KnownNodesPage, drift_list_body

router = ApiRouter(tags=["Nodes"], dependencies=[REQUIRE_READER, KNOWN_PARAMETERS])

_KINDS: Final = {
    SourceKind.FILE: "file",
    SourceKind.MANAGER: "RESOURCE_MANAGER",
    SourceKind.AGENT: "JOB_MASTER",
}
_HEADERS: Final[dict[str, Any]] = {
    "ETag": {
        "schema": {"type": "string"},
        "description": "The tag of the body without `lastSeen`, which each heartbeat changes.",
    }
}
_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: {"headers": _HEADERS},
    304: {"description": "The nodes still match `If-None-Match`, but for `lastSeen`.", "headers": _HEADERS},
}
IfNoneMatch = Annotated[list[str] | None, Header(description="ETags that the client has stored.")]


@router.get(
    "/nodes",
    summary="The nodes there are",
    operation_id="listNodes",
    dependencies=[FROM_MEMORY],
    response_model=KnownNodesPage,
    responses={**_RESPONSES, **problem_responses(400)},
)
async def get_nodes(
    request: Request,
    page: Page,
    selector: ReadSelector = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Every node that anybody reports, in order of the id in lower case, blocked or not."""
    service = service_of(request)
    found, total = _nodes_after(service.inventory, selector, page)
    nodes, following = page.cut(found, lambda node: node.id)
    bodies = [known_node_body(service, node) for node in nodes]
    body = {"nodes": bodies, "total": total, "next": following}
    tag = _tag({**body, "nodes": [_without_times(each) for each in bodies]})
    response = _response(request, body, tag, if_none_match)
    response.raw_headers.extend(warnings_of(service, selector))
    return response


def _nodes_after(inventory: Inventory, selector: Selector | None, page: PageRequest) -> tuple[list[InventoryNode], int]:
    """The nodes of a page and one more, and the number of all nodes that are selected."""
    limit = page.limit + 1
    if not selector:
        return inventory.page(page.after, limit), len(inventory)
    selected = select_nodes(selector, inventory).nodes
    begin = 0 if page.after is None else bisect_right(selected, normalize_name(page.after))
    return [inventory.get(node_id) for node_id in selected[begin : begin + limit]], len(selected)


@router.get(
    "/nodes/{node_id}",
    summary="One node",
    operation_id="getNode",
    dependencies=[FROM_MEMORY],
    response_model=KnownNodeBody,
    responses={
        **_RESPONSES,
        **problem_responses(
            400,
            404,
            409,
            _404="Nobody reports this node; the detail names a similar one, if there is any.",
            _409="Several nodes have this name or address (`type` ends in `ambiguous-node`).",
        ),
    },
)
async def get_known_node(request: Request, node_id: NodeId, if_none_match: IfNoneMatch = None) -> Response:
    """A node under any of its names and addresses."""
    service = service_of(request)
    body = known_node_body(service, service.inventory.get(_find(service, node_id)))
    return _response(request, body, _tag(_without_times(body)), if_none_match)


def _find(service: Service, node_id: str) -> str:
    """The id of the only node with this name. Raises NotFoundError, AmbiguousNodeError."""
    inventory = service.inventory
    found = sorted(inventory.known_as(node_id) or inventory.sharing(node_id))
    if len(found) == 1:
        return found[0]
    if not found:
        suggestion = service.known_nodes.suggestion(node_id)
        hint = "" if suggestion is None else f"; did you mean {suggestion}?"
        raise NotFoundError(f"Nobody reports a node {node_id}{hint or '.'}")
    raise AmbiguousNodeError(ambiguous_message(node_id, [*map(inventory.spelling, found)]), ())


def known_node_body(service: Service, node: InventoryNode) -> Json:
    """A node as responses show it."""
    task_managers = task_managers_on(service, node.id)
    tasks = TaskCount.of(each.running_tasks for each in task_managers)
    blocks = [_block_body(service, block) for block in _blocks(service, node)]
    reporters = [_reporter_body(service, source) for source in node.sources]
    seen = [int(reporter["lastSeen"]) for reporter in reporters if reporter["lastSeen"] is not None]
    return {
        "id": node.id,
        "names": list(node.names),
        "addresses": list(node.addresses),
        "labels": dict(sorted(node.labels.items())),
        "conflicts": {name: list(others) for name, others in node.conflicts.items()},
        **clusters_of(service, node),
        "reportedBy": reporters,
        "taskManagers": [each.body() for each in task_managers],
        "runningTasks": tasks.known if tasks.reported else None,
        "unreportedTasks": tasks.unreported,
        "blocked": bool(blocks),
        "blocks": blocks,
        "lastSeen": str(max(seen)) if seen else None,
    }


def clusters_of(service: Service, node: InventoryNode) -> Json:
    """The clusters whose managers report a node, and whether they may mean different machines."""
    identities = defaultdict[str, set[str]](set)
    for source, names in service.inventory.identities_by_manager(node.id).items():
        if (entry := service.directory.get(source.name)) is not None and entry.listener.cluster is not None:
            identities[entry.listener.cluster] |= names
    conflict = any(first.isdisjoint(second) for first, second in combinations(identities.values(), 2))
    return {"clusters": sorted(identities), "clusterConflict": conflict}


def _blocks(service: Service, node: InventoryNode) -> list[BlockedNode]:
    """The blocks of the machine, under whatever name, sorted by id."""
    view = service.view
    found = (view.tracker.get(node_id) for node_id in view.tracker.matching(node.id))
    blocks = {block.id: block for block in found if block is not None and not block.ended(view.clock())}
    return [blocks[node_id] for node_id in sorted(blocks)]


def _block_body(service: Service, block: BlockedNode) -> Json:
    author = service.last_changes.created_by(block.id)
    return {"id": block.id, **service.view.node_body(block), "createdBy": author}


def _reporter_body(service: Service, source: NodeSource) -> Json:
    seen = last_seen(service, source)
    return {"id": source.name, "kind": _KINDS[source.kind], "lastSeen": None if seen is None else str(seen)}


def last_seen(service: Service, source: NodeSource) -> int | None:
    """The last heartbeat of what reports a node (Unix ms); None of the file, and of a listener that has left."""
    entry = None if source.kind is SourceKind.FILE else service.directory.get(source.name)
    return None if entry is None else entry.listener.last_heartbeat


def _without_times(body: Json) -> Json:
    reporters = [{**reporter, "lastSeen": None} for reporter in body["reportedBy"]]
    return {**body, "reportedBy": reporters, "lastSeen": None}


def _tag(body: Json) -> str:
    """A weak tag: bodies with the same tag may differ in the times of heartbeats."""
    return f'W/"{hashlib.sha256(dump_json(body)).hexdigest()[:24]}"'


def _response(request: Request, body: Json, tag: str, if_none_match: list[str] | None) -> Response:
    if matches_etag(",".join(if_none_match or []).encode("latin-1"), (tag.removeprefix("W/").encode(),)):
        response = Response(status_code=HTTPStatus.NOT_MODIFIED)
        response.raw_headers.extend([*revision_headers(request), *age_header(request)])
    else:
        response = JsonResponse(request, dump_json(body))
    response.raw_headers.extend([(b"etag", tag.encode()), (b"cache-control", b"no-cache")])
    return response


# Drift: nodes that are not as the list says.


@router.get(
    "/drift",
    summary="Nodes that are not as the list says",
    operation_id="listDrift",
    dependencies=[FROM_MEMORY],
    response_model=DriftListBody,
)
async def get_drift(request: Request) -> Response:
    """Where a live listener reports something else than the list says, and since when; observed every 5 s."""
    return JsonResponse(request, dump_json(drift_list_body(service_of(request).drift.latest)))
