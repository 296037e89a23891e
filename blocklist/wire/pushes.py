"""The bodies of pushes to listeners."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from blocklist.model.changes import Change
from blocklist.model.node import BlockedNode
from blocklist.wire.body import Body
from blocklist.wire.json import Json
from blocklist.wire.nodes import NodeBody, node_fields


class PushBody(Body):
    """A push: all changes after `fromRevision`, or the whole list."""

    listener_id: str
    session_id: str
    from_revision: int
    to_revision: int
    snapshot: bool
    blocked: list[NodeBody]
    unblocked: list[dict[str, str]]


def changes_batch(changes: Sequence[Change]) -> Json:
    """Changes in a push: each node once, in its last state."""
    last: Mapping[str, Change] = {change.node.id: change for change in changes}
    return {
        "toRevision": changes[-1].revision,
        "snapshot": False,
        "blocked": [_batch_node(change.node) for change in last.values() if not change.type.frees],
        "unblocked": [
            {"id": change.node.id, "type": change.type.value} for change in last.values() if change.type.frees
        ],
    }


def snapshot_batch(revision: int, nodes: Iterable[BlockedNode]) -> Json:
    """The whole list in a push."""
    return {"toRevision": revision, "snapshot": True, "blocked": [_batch_node(node) for node in nodes], "unblocked": []}


def _batch_node(node: BlockedNode) -> Json:
    return {"id": node.id, **node_fields(node)}
