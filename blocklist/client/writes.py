"""Writes: changes of the list that wait until they are applied, bypass limits, or are dry runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from blocklist.client.response import AppliedCount, Requester, parse_body, parse_node, parse_object
from blocklist.model.errors import InvalidError
from blocklist.model.node import BlockAction, BlockedNode, check_node_id, check_text
from blocklist.wire.dry_run import DryRunBody
from blocklist.wire.json import Json

_NODES_PATH = "/blocklist/nodes"


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockNodesResult:
    """The blocked nodes, which of them were merged, and how many listeners have applied it (None without `wait`).

    `unknown` are those that no listener knows, with a similar node that one knows, or None.
    """

    nodes: Mapping[str, BlockedNode]
    merged: frozenset[str]
    applied: AppliedCount | None
    unknown: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class UnblockResult:
    """The name under which the node was blocked, and how many listeners have applied it (None without `wait`)."""

    id: str
    applied: AppliedCount | None


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
        """Block several nodes, all or none, in one revision each. Their `start` is ignored: blocks start now.

        `force` is the reason for bypassing limits, which requires the role admin. `wait` is the maximum number of
        seconds (at most 60) to wait until all live listeners have applied the change. Raises ConflictError with every
        conflict, LimitError, and InvalidError for a duplicate node or a value that the service rejects; if `strict`,
        UnknownNodeError for a node that no listener knows.
        """
        params = _block_params(force, strict=strict)
        response = self._request("PUT", _NODES_PATH, params=params, json=_block_bodies(nodes, allow_merge), wait=wait)
        bodies = {node_id: parse_object(body) for node_id, body in response.object().items()}
        return BlockNodesResult(
            nodes={node_id: parse_node(body) for node_id, body in bodies.items()},
            merged=frozenset(node_id for node_id, body in bodies.items() if body.get("status") == 202),
            applied=response.applied,
            unknown={node_id: body.get("didYouMean") for node_id, body in bodies.items() if body.get("known") is False},
        )

    def unblock(self, node_id: str, *, wait: int | None = None) -> AppliedCount | None:
        """Unblock a node before its end; with `wait`, see block_nodes, return how many listeners have applied it.

        Raises NotFoundError if it is not blocked.
        """
        return self.unblock_node(node_id, wait=wait).applied

    def unblock_node(self, node_id: str, *, wait: int | None = None) -> UnblockResult:
        """As unblock, and return the name under which the node was blocked. An older service returns `node_id`."""
        response = self._request("DELETE", node_path(node_id), wait=wait)
        return UnblockResult(id=response.node_id or node_id, applied=response.applied)

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
        return parse_body(DryRunBody, response.object())

    def dry_run_unblock(self, node_id: str) -> DryRunBody:
        """The effect that unblock would have. Raises NotFoundError if the node is not blocked."""
        return parse_body(DryRunBody, self._request("DELETE", node_path(node_id), params={"dryRun": "true"}).object())


def node_path(node_id: str) -> str:
    """The path of a node. Raises InvalidError for an invalid id."""
    return f"{_NODES_PATH}/{check_node_id(node_id)}"


def block_body(action: BlockAction, cause: str, end: int, allow_merge: bool) -> Json:
    """The body of a request to block a node."""
    return {"action": action.name, "cause": check_text(cause), "endTimestamp": str(end), "allowMerge": allow_merge}


def _block_params(force: str | None, *, strict: bool) -> dict[str, str]:
    return ({} if force is None else {"force": force}) | ({"strict": "true"} if strict else {})


def _block_bodies(nodes: Iterable[BlockedNode], allow_merge: bool) -> Json:
    body: Json = {}
    for node in nodes:
        if node.id in body:
            raise InvalidError(f"Node {node.id} is given more than once.")
        body[node.id] = block_body(node.action, node.cause, node.end, allow_merge)
    return body
