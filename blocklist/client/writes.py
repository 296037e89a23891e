"""Writes: changes of the list as people on call make them: with proof, beyond a limit, or only rehearsed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from blocklist.client.requester import Requester
from blocklist.client.response import AppliedCount, parse_body, parse_node, parse_object
from blocklist.model.errors import InvalidError
from blocklist.model.node import BlockAction, BlockedNode, check_node_id, check_text
from blocklist.wire.dry_run import DryRunBody
from blocklist.wire.nodes import Json

_NODES_PATH = "/blocklist/nodes"


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockNodesResult:
    """What an order did: the nodes as they are blocked now, and who has applied it, where that was waited for."""

    nodes: Mapping[str, BlockedNode]
    merged: frozenset[str]
    applied: AppliedCount | None


class Writes(Requester):
    """The half of BlocklistClient that changes the list. Errors are those of the client."""

    def block_nodes(
        self,
        nodes: Iterable[BlockedNode],
        *,
        allow_merge: bool = False,
        force: str | None = None,
        wait: int | None = None,
    ) -> BlockNodesResult:
        """Block several nodes, all or none, in one revision each; their `start` is not sent: it is now.

        `force` is the reason for going beyond a limit, which needs the role of an admin. With `wait` the answer comes
        when all live listeners have applied it, or after so many seconds (60 at most). Raises ConflictError with
        every conflict, LimitError, and InvalidError for a node given twice and what the service refuses.
        """
        params = {} if force is None else {"force": force}
        response = self._request("PUT", _NODES_PATH, params=params, json=_block_bodies(nodes, allow_merge), wait=wait)
        bodies = {node_id: parse_object(body) for node_id, body in response.object().items()}
        return BlockNodesResult(
            nodes={node_id: parse_node(body) for node_id, body in bodies.items()},
            merged=frozenset(node_id for node_id, body in bodies.items() if body.get("status") == 202),
            applied=response.applied,
        )

    def unblock(self, node_id: str, *, wait: int | None = None) -> AppliedCount | None:
        """Free a node before its end; with `wait` returns who has applied it by then.

        Raises NotFoundError if it is not blocked.
        """
        return self._request("DELETE", node_path(node_id), wait=wait).applied

    def dry_run_block(
        self, nodes: Iterable[BlockedNode], *, allow_merge: bool = False, force: str | None = None
    ) -> DryRunBody:
        """What `block_nodes` would do, while nothing is done. Raises as it would, but names the limit in `refused`."""
        params = {"dryRun": "true"} | ({} if force is None else {"force": force})
        response = self._request("PUT", _NODES_PATH, params=params, json=_block_bodies(nodes, allow_merge))
        return parse_body(DryRunBody, response.object())

    def dry_run_unblock(self, node_id: str) -> DryRunBody:
        """What `unblock` would do, while nothing is done. Raises NotFoundError if it is not blocked."""
        return parse_body(DryRunBody, self._request("DELETE", node_path(node_id), params={"dryRun": "true"}).object())


def node_path(node_id: str) -> str:
    """The path of a node. Raises InvalidError for what is no node id."""
    return f"{_NODES_PATH}/{check_node_id(node_id)}"


def block_body(action: BlockAction, cause: str, end: int, allow_merge: bool) -> Json:
    """The body that blocks a node."""
    return {"action": action.name, "cause": check_text(cause), "endTimestamp": str(end), "allowMerge": allow_merge}


def _block_bodies(nodes: Iterable[BlockedNode], allow_merge: bool) -> Json:
    body: Json = {}
    for node in nodes:
        if node.id in body:
            raise InvalidError(f"Node {node.id} is given more than once.")
        body[node.id] = block_body(node.action, node.cause, node.end, allow_merge)
    return body
