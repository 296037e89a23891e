"""Writes: changes of the list that wait until they are applied, bypass limits, or are dry runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import quote

from blocklist.client.response import ApiResponse, Requester, parse_body, parse_node, parse_object
from blocklist.model.errors import InvalidError
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode, check_node_id, check_text
from blocklist.wire.json import Json

if TYPE_CHECKING:
    from blocklist.client.results import AppliedCount, BlockNodesResult, UnblockResult, UnblockSelectedResult
    from blocklist.wire.dry_run import DryRunBody

_NODES_PATH = "/blocklist/nodes"


class Writes(Requester):
    """The part of BlocklistClient that changes the list. All methods also raise the errors of BlocklistClient."""

    def block_nodes(
        self,
        nodes: Iterable[BlockedNode],
        *,
        allow_merge: bool = False,
        force: str | None = None,
        strict: bool = False,
        wait: int | None = None,
    ) -> BlockNodesResult:
        """Block several nodes, all or none, in one revision each.

        Their `start` and `canary` are ignored: blocks start now, and only put_claim leaves a canary.

        `force` is the reason for bypassing limits, which requires the role admin. `wait` is the maximum number of
        seconds (at most 60) to wait until all live listeners have applied the change. Raises ConflictError with every
        conflict, LimitError, and InvalidError for a duplicate node or a value that the service rejects; if `strict`,
        UnknownNodeError for a node that no listener knows.
        """
        params = _block_params(force, strict=strict)
        return _block_result(
            self._request("PUT", _NODES_PATH, params=params, json=_block_bodies(nodes, allow_merge), wait=wait)
        )

    def block_selected(
        self,
        selector: str,
        block: BlockedNode,
        *,
        allow_merge: bool = False,
        force: str | None = None,
        strict: bool = False,
        wait: int | None = None,
    ) -> BlockNodesResult:
        """Block all nodes that a selector in kubectl's syntax selects in the service, as `block` says, but for its id.

        The other parameters are as in block_nodes; if `strict`, every label in the selector must exist. Raises
        NotFoundError if no node is selected, InvalidError for an invalid selector, and the errors of block_nodes.
        """
        params = {"selector": selector} | _block_params(force, strict=strict)
        body = block_body(block.action, block.cause, block.end, allow_merge)
        return _block_result(self._request("PUT", _NODES_PATH, params=params, json=body, wait=wait))

    def unblock_selected(self, selector: str, *, wait: int | None = None) -> UnblockSelectedResult:
        """Unblock those of the selected nodes that are blocked, all or none; `wait` is as in block_nodes.

        Raises NotFoundError if no node is selected, or none of them is blocked, InvalidError for an invalid selector.
        """
        from blocklist.client.results import UnblockSelectedResult

        response = self._request("DELETE", _NODES_PATH, params={"selector": selector}, wait=wait)
        names = {node_id: parse_object(body).get("id") for node_id, body in response.object().items()}
        return UnblockSelectedResult(
            unblocked={node_id: str(name) for node_id, name in names.items() if name is not None},
            not_blocked=frozenset(node_id for node_id, name in names.items() if name is None),
            applied=response.applied,
            warnings=response.warnings,
        )

    def unblock(self, node_id: str, *, wait: int | None = None) -> AppliedCount | None:
        """Unblock a node before its end; with `wait`, see block_nodes, return how many listeners have applied it.

        Raises NotFoundError if it is not blocked.
        """
        return self.unblock_node(node_id, wait=wait).applied

    def unblock_node(self, node_id: str, *, wait: int | None = None) -> UnblockResult:
        """As unblock, and return the name under which the node was blocked: `node_id`, if a proxy has removed it."""
        from blocklist.client.results import UnblockResult

        response = self._request("DELETE", node_path(node_id), wait=wait)
        return UnblockResult(id=response.node_id or node_id, applied=response.applied)

    def put_claim(
        self,
        node_id: str,
        owner: str,
        cause: str,
        *,
        action: BlockAction = BlockAction.MARK_BLOCKED,
        end: int = PERMANENT,
        canary: bool = False,
        last_evidence: int | None = None,
        force: str | None = None,
        wait: int | None = None,
    ) -> BlockedNode:
        """Create or replace the claim of an owner on a node; return the node as all claims together have it.

        `end` is in Unix milliseconds, as is `last_evidence`: when what the claim rests on was last observed. A `canary`
        leaves one executor of each Spark application on the node. `force` and `wait` are as in block_nodes. Raises
        LimitError, DismissedError if the owner was dismissed on the node since the last evidence, and InvalidError for
        what is not an owner and for a canary that evacuates.
        """
        body: Json = {"action": action.name, "cause": cause, "endTimestamp": str(end)}
        if canary:
            body["canary"] = True
        if last_evidence is not None:
            body["lastEvidenceTimestamp"] = str(last_evidence)
        params = _block_params(force, strict=False)
        response = self._request("PUT", _claim_path(node_id, owner), params=params, json=body, wait=wait)
        return parse_node(response.object().get("node"))

    def remove_claim(self, node_id: str, owner: str, *, wait: int | None = None) -> BlockedNode | None:
        """Remove the claim of an owner; return the node as the other claims have it, None if it is unblocked.

        Raises NotFoundError if the owner has no claim on it.
        """
        from blocklist.wire.claims import RemovedClaimBody

        body = parse_body(RemovedClaimBody, self._request("DELETE", _claim_path(node_id, owner), wait=wait).object())
        return body.node.value() if body.blocked else None

    def dry_run_block(
        self,
        nodes: Iterable[BlockedNode],
        *,
        allow_merge: bool = False,
        force: str | None = None,
        strict: bool = False,
    ) -> DryRunBody:
        """The effect that block_nodes would have. Raises the same errors, but `refused` names a limit."""
        params = {"dryRun": "true"} | _block_params(force, strict=strict)
        response = self._request("PUT", _NODES_PATH, params=params, json=_block_bodies(nodes, allow_merge))
        return _dry_run(response)

    def dry_run_block_selected(
        self,
        selector: str,
        block: BlockedNode,
        *,
        allow_merge: bool = False,
        force: str | None = None,
        strict: bool = False,
    ) -> DryRunBody:
        """The effect that block_selected would have. Raises the same errors, but `refused` names a limit."""
        params = {"dryRun": "true", "selector": selector} | _block_params(force, strict=strict)
        body = block_body(block.action, block.cause, block.end, allow_merge)
        return _dry_run(self._request("PUT", _NODES_PATH, params=params, json=body))

    def dry_run_unblock(self, node_id: str) -> DryRunBody:
        """The effect that unblock would have. Raises NotFoundError if the node is not blocked."""
        return _dry_run(self._request("DELETE", node_path(node_id), params={"dryRun": "true"}))


def node_path(node_id: str) -> str:
    """The path of a node. Raises InvalidError for an invalid id."""
    return f"{_NODES_PATH}/{check_node_id(node_id)}"


def _claim_path(node_id: str, owner: str) -> str:
    """The path of a claim. Raises InvalidError for an invalid id or owner."""
    from blocklist.model.claims import check_owner

    return f"{node_path(node_id)}/claims/{quote(check_owner(owner), safe='')}"


def block_body(action: BlockAction, cause: str, end: int, allow_merge: bool) -> Json:
    """The body of a request to block a node."""
    return {"action": action.name, "cause": check_text(cause), "endTimestamp": str(end), "allowMerge": allow_merge}


def _block_params(force: str | None, *, strict: bool) -> dict[str, str]:
    return ({} if force is None else {"force": force}) | ({"strict": "true"} if strict else {})


def _dry_run(response: ApiResponse) -> DryRunBody:
    from blocklist.wire.dry_run import DryRunBody

    return parse_body(DryRunBody, response.object())


def _block_result(response: ApiResponse) -> BlockNodesResult:
    from blocklist.client.results import BlockNodesResult

    bodies = {node_id: parse_object(body) for node_id, body in response.object().items()}
    unknown = {node_id: body for node_id, body in bodies.items() if body.get("known") is False}
    return BlockNodesResult(
        nodes={node_id: parse_node(body) for node_id, body in bodies.items()},
        merged=frozenset(node_id for node_id, body in bodies.items() if body.get("status") == 202),
        applied=response.applied,
        unknown={node_id: body.get("didYouMean") for node_id, body in unknown.items() if not body.get("ambiguous")},
        ambiguous={node_id: body["ambiguous"] for node_id, body in unknown.items() if body.get("ambiguous")},
        warnings=response.warnings,
    )


def _block_bodies(nodes: Iterable[BlockedNode], allow_merge: bool) -> Json:
    body: Json = {}
    for node in nodes:
        if node.id in body:
            raise InvalidError(f"Node {node.id} is given more than once.")
        body[node.id] = block_body(node.action, node.cause, node.end, allow_merge)
    return body
