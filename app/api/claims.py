"""Claims: several owners of one block, each of which changes and removes only what is its own."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from itertools import chain
from typing import Annotated, Final, NamedTuple

from fastapi import Depends, Path, Query, Request, Response
from starlette.convertors import PathConvertor, register_url_convertor

from app.api.change import (
    Blocking,
    Freeing,
    RequestedChange,
    node_etag,
    remove_claim,
    removed_claim_body,
    require_known,
)
from app.api.node_status import AMBIGUOUS
from app.api.parameters import (
    EMPTY_BODY,
    KNOWN_PARAMETERS,
    REQUIRE_READER,
    ApiRouter,
    MinRevision,
    NodeId,
    Page,
    Timestamp,
    body_schema,
    list_at,
    nodes_body_schema,
    parse_by_node,
    read_body,
    require_empty_body,
)
from app.api.responses import FROM_MEMORY, CompactedProblem, JsonResponse, problem_responses
from app.engine.handler import Command, Outcome
from app.requests import MAX_NODE_BODY, MAX_NODES_BODY, ClaimRequest
from app.service import Service, service_of
from blocklist.model.claims import (
    MAX_OWNER_LENGTH,
    Claims,
    check_owner,
    live_claims,
    owner_matches,
)
from blocklist.model.draft import BlocklistTracker, Draft, PutClaim, claims_on, not_blocked_message
from blocklist.model.errors import NotFoundError
from blocklist.model.evidence import Dismissal, Dismissals
from blocklist.model.node import MAX_NODES, BlockedNode, check_node_id
from blocklist.wire.body import ID_SCHEMA, Json, dump_json, parse_json
from blocklist.wire.nodes import (
    ClaimsPage,
    DryRunBody,
    NodeClaims,
    PutClaimBody,
    PutClaimResult,
    RemovedClaimBody,
    claim_body,
    dismissal_body,
)

# The claims on the current list, and the dismissals, by node and owner.


class NodeOwners(NamedTuple):
    """The claims of owners on a node, and their dismissals, the oldest first."""

    id: str
    claims: Claims
    dismissals: Sequence[Dismissal]


class ClaimedNodes(NamedTuple):
    """The nodes that are blocked at one time, their claims, and the dismissals by node: a copy for another thread."""

    nodes: Mapping[str, BlockedNode]
    claims: Mapping[str, Claims]
    dismissals: Mapping[str, Mapping[str, Dismissal]]
    now: int

    @classmethod
    def of(cls, tracker: BlocklistTracker, dismissals: Dismissals, now: int) -> ClaimedNodes:
        """Those of the list at `now`."""
        return cls(tracker.blocked(now), tracker.known_claims(), dismissals.by_node(), now)

    def page(self, pattern: str, *, after: str, limit: int) -> list[NodeOwners]:
        """The first `limit` nodes after the id `after` with claims or dismissals of matching owners, sorted by id."""
        ids = (node_id for node_id in self._ids() if node_id > after and self._matches(node_id, pattern))
        return [
            NodeOwners(node_id, self._matching(node_id, pattern), self._dismissed(node_id, pattern))
            for node_id in heapq.nsmallest(limit, ids)
        ]

    def _ids(self) -> Iterator[str]:
        return chain(self.nodes, (node_id for node_id in self.dismissals if node_id not in self.nodes))

    def _matches(self, node_id: str, pattern: str) -> bool:
        return bool(self._matching(node_id, pattern) or self._dismissed(node_id, pattern))

    def _matching(self, node_id: str, pattern: str) -> Claims:
        claims = live_claims(self.claims[node_id], self.now) if node_id in self.nodes else ()
        return tuple(claim for claim in claims if owner_matches(claim.owner, pattern))

    def _dismissed(self, node_id: str, pattern: str) -> Sequence[Dismissal]:
        found = self.dismissals.get(node_id, {}).values()
        return sorted(
            (it for it in found if it.counts(self.now) and owner_matches(it.owner, pattern)),
            key=lambda dismissal: (dismissal.at, dismissal.owner),
        )


router = ApiRouter(tags=["Claims"], dependencies=[REQUIRE_READER, KNOWN_PARAMETERS])

_ANY: Final = r"[^*/\x00-\x1f\x7f-\x9f\ufffd]"
_EDGE: Final = r"[^\s*/.\x00-\x1f\x7f-\x9f\ufffd]"
# No white space at the edges, and neither `.` nor `..`.
_PART: Final = rf"(?:{_EDGE}(?:{_ANY}*(?:{_EDGE}|\.))?|\.{_ANY}*{_EDGE}|\.{_ANY}+\.)"
OWNER_PATTERN: Final = rf"^{_PART}(?:/{_PART})*$"
"""The rule of check_owner, for JSON Schema."""
_REFUSED: Final = (
    "A limit was reached, or the node has 32 claims (`type` ends in `limit`); with `strict=true` it is not known"
    " (`unknown-node`); the owner was dismissed after `lastEvidenceTimestamp` (`dismissed`). Nothing was changed."
)


class _RequestedClaim(NamedTuple):
    """What an owner wants of a node, and when what it rests on was last observed (Unix ms)."""

    node: BlockedNode
    last_evidence: int


class _OwnerConvertor(PathConvertor):
    """The rest of a path, line ends included, which `path` does not match: a control character is a 400, no 404."""

    regex = "(?s:.*)"


register_url_convertor("owner", _OwnerConvertor())


async def _owner(
    owner: Annotated[
        str,
        Path(
            description=f"Whose claim: 1 to {MAX_OWNER_LENGTH} characters. A slash may be sent as it is, or as `%2F`.",
            examples=["kernel-upgrade"],
            json_schema_extra={"pattern": OWNER_PATTERN, "minLength": 1, "maxLength": MAX_OWNER_LENGTH},
        ),
    ],
) -> str:
    return check_owner(owner)


Owner = Annotated[str, Depends(_owner)]
"""An owner from the path, validated. Raises InvalidError."""


@router.get(
    "/blocklist/nodes/{node_id}/claims",
    summary="The claims on a node",
    operation_id="listNodeClaims",
    dependencies=[MinRevision, FROM_MEMORY],
    response_model=NodeClaims,
    responses=problem_responses(400, 404, 409, 503, _409=AMBIGUOUS),
)
async def get_node_claims(request: Request, node_id: NodeId) -> Response:
    """The claims that keep the node blocked, in the order in which they were made, and which owners were overruled.

    404 if there is neither.
    """
    service = service_of(request)
    node = service.view.get(node_id)
    dismissed = service.dismissals.of_node(node_id)
    if node is None and not dismissed:
        raise NotFoundError(not_blocked_message(node_id))
    claims = () if node is None else claims_on(service.view.tracker, node, service.view.clock())
    body = {
        "id": node_id if node is None else node.id,
        "claims": [claim_body(claim) for claim in claims],
        "dismissed": [_dismissal_body(each) for each in dismissed],
    }
    response = JsonResponse(request, dump_json(body))
    if node is not None:
        response.headers["ETag"] = node_etag(service.view.tracker, node, service.view.clock())
    return response


@router.put(
    "/blocklist/nodes/{node_id}/claims/{owner:owner}",
    summary="Create or replace a claim",
    operation_id="putClaim",
    response_model=PutClaimBody | DryRunBody,
    responses={
        200: {"description": "The claim is replaced. Or with `dryRun=true` what it would do; nothing was changed."},
        201: {"model": PutClaimBody, "description": "The claim is created."},
        **problem_responses(400, 403, 409, 413, 414, 503, _409=_REFUSED),
    },
    openapi_extra=body_schema("ClaimRequest"),
)
async def put_claim(request: Request, node_id: NodeId, owner: Owner, change: Blocking) -> Response:
    """Claim a node for an owner, or replace his claim, which may make it shorter or weaker. It keeps its start."""
    change.principal.check_may_claim_for(owner)
    service = change.service
    claim = _parse_claim(node_id, parse_json(await read_body(request, MAX_NODE_BODY)), service.clock())

    def respond(outcome: Outcome[dict[str, PutClaim]]) -> Response:
        result = outcome.value[node_id]
        status = HTTPStatus.CREATED if result.created else HTTPStatus.OK
        return JsonResponse(request, dump_json(_put_body(service, result)), status, outcome.revision)

    return await change.answer(_put(change, {node_id: claim}, owner), _nodes_after, respond)


@router.delete(
    "/blocklist/nodes/{node_id}/claims/{owner:owner}",
    summary="Remove a claim",
    operation_id="removeClaim",
    response_model=RemovedClaimBody | DryRunBody,
    responses={
        200: {"description": "The claim is removed. Or with `dryRun=true` what it would do; nothing was changed."},
        **problem_responses(
            400, 404, 409, 413, 503, _404="The node is not blocked, or the owner has no claim on it.", _409=AMBIGUOUS
        ),
    },
    openapi_extra=EMPTY_BODY,
)
async def delete_claim(request: Request, node_id: NodeId, owner: Owner, change: Freeing) -> Response:
    """Remove an owner's claim. The node is unblocked if it was the only one, else it is as the others have it."""
    return await remove_claim(request, node_id, owner, change)


@router.get(
    "/claims",
    summary="Claims and dismissals on all nodes",
    operation_id="listClaims",
    dependencies=[MinRevision, FROM_MEMORY],
    response_model=ClaimsPage,
    responses={
        **problem_responses(400, 503),
        **problem_responses(410, model=CompactedProblem, _410="The changes since `at` have been compacted."),
    },
)
async def get_claims(
    request: Request,
    page: Page,
    owner: Annotated[
        str | None,
        Query(
            min_length=1, max_length=256, description="Only of this owner; with a final `*`, of those that begin so."
        ),
    ] = None,
    at: Annotated[
        Timestamp | None, Query(description="The claims as they were at this time (Unix ms), without dismissals.")
    ] = None,
) -> Response:
    """Claims and dismissals of the last 30 days by node id: all, or those of some owners."""
    claimed, revision = await _claimed_at(service_of(request), at)
    # In a thread, because a long list would block the event loop.
    found = await asyncio.to_thread(claimed.page, owner or "*", after=page.after or "", limit=page.limit + 1)
    nodes, following = page.cut(found, lambda node: node.id)
    dismissed = [{"node": node.id, **_dismissal_body(each)} for node in nodes for each in node.dismissals]
    body = {
        "claims": [{"node": node.id, **claim_body(claim)} for node in nodes for claim in node.claims],
        **({"dismissed": dismissed} if at is None else {}),
        "next": following,
    }
    return JsonResponse(request, dump_json(body), revision=revision)


async def _claimed_at(service: Service, at: int | None) -> tuple[ClaimedNodes, int]:
    """The claims at a time (Unix ms), or now, and the revision then."""
    if at is None:
        tracker = service.view.tracker
        return ClaimedNodes.of(tracker, service.dismissals, service.view.clock()), tracker.revision
    past = await list_at(service, at)
    return ClaimedNodes(past.nodes, past.claims, {}, at), past.revision


@router.put(
    "/claims/{owner:owner}",
    summary="Create or replace claims on several nodes",
    operation_id="putClaims",
    response_model=dict[str, PutClaimResult] | DryRunBody,
    responses={
        200: {"description": "By node id the `status` (201 created, 200 replaced), claim and node. Or a dry run."},
        **problem_responses(400, 403, 409, 413, 414, 503, _409=_REFUSED),
    },
    openapi_extra=body_schema(nodes_body_schema("ClaimRequest")),
)
async def put_claims(request: Request, owner: Owner, change: Blocking) -> Response:
    """Claim up to 1,000 nodes for an owner in one transaction: all or none. His other claims stay as they are."""
    change.principal.check_may_claim_for(owner)
    service, now = change.service, change.service.clock()
    claims = parse_by_node(
        parse_json(await read_body(request, MAX_NODES_BODY)),
        lambda node_id, fields: _parse_claim(node_id, fields, now),
    )

    def body(outcome: Outcome[dict[str, PutClaim]]) -> Json:
        return {
            node_id: {"status": 201 if result.created else 200, **_put_body(service, result)}
            for node_id, result in outcome.value.items()
        }

    return await change.answer_with(_put(change, claims, owner), _nodes_after, body)


@router.delete(
    "/claims/{owner:owner}",
    summary="Remove claims on several nodes",
    operation_id="removeClaims",
    response_model=dict[str, RemovedClaimBody] | DryRunBody,
    responses={
        200: {"description": "By node id the node after its claim was removed. Or a dry run."},
        **problem_responses(
            400, 404, 409, 413, 414, 503, _404="On at least one of the nodes the owner has no claim.", _409=AMBIGUOUS
        ),
    },
    openapi_extra=EMPTY_BODY,
)
async def delete_claims(
    request: Request,
    owner: Owner,
    change: Freeing,
    nodes: Annotated[
        list[str],
        Query(
            alias="node",
            min_length=1,
            max_length=MAX_NODES,
            description="The nodes; may be repeated, as often as a URL of 8 KiB has room.",
            json_schema_extra={"items": {"type": "string", **ID_SCHEMA}},
        ),
    ],
) -> Response:
    """Remove an owner's claims on up to 1,000 nodes in one transaction: all or none."""
    change.principal.check_may_claim_for(owner)
    await require_empty_body(request)
    node_ids = [check_node_id(node_id) for node_id in nodes]

    def body(outcome: Outcome[dict[str, BlockedNode]]) -> Json:
        return {node_id: removed_claim_body(change.service, outcome, node) for node_id, node in outcome.value.items()}

    return await change.answer_with(
        lambda draft: draft.remove_claims(owner, node_ids), lambda removed: removed.values(), body
    )


def _parse_claim(node_id: str, fields: object, now: int) -> _RequestedClaim:
    body = ClaimRequest.parse(fields)
    return _RequestedClaim(body.node(node_id, now), body.last_evidence_timestamp)


def _put(change: RequestedChange, claims: Mapping[str, _RequestedClaim], owner: str) -> Command[dict[str, PutClaim]]:
    service = change.service
    nodes = {node_id: claim.node for node_id, claim in claims.items()}
    last_evidence = {node_id: claim.last_evidence for node_id, claim in claims.items()}

    def command(draft: Draft) -> dict[str, PutClaim]:
        service.dismissals.check_evidence(draft, owner, last_evidence)
        return draft.put_claims(owner, nodes)

    return require_known(service, nodes.keys(), command, strict=change.strict)


def _dismissal_body(dismissal: Dismissal) -> Json:
    return dismissal_body(dismissal.owner, dismissal.at, dismissal.dismissed_by)


def _nodes_after(results: dict[str, PutClaim]) -> list[BlockedNode]:
    return [result.node for result in results.values()]


def _put_body(service: Service, result: PutClaim) -> Json:
    return {"claim": claim_body(result.claim), "node": service.view.node_body(result.node)}
