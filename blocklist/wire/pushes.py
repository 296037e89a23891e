"""The bodies of pushes to listeners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blocklist.model.changes import Change, Snapshot
from blocklist.model.node import BlockedNode
from blocklist.wire.body import Body
from blocklist.wire.json import Json
from blocklist.wire.nodes import NodeBody, node_fields


@dataclass(kw_only=True)
class PushBody(Body):
    """A push: all changes after `fromRevision`; or the whole list, which replaces the listener's.

    Revisions of two histories do not compare: the first push of another history is the whole list.
    """

    listener_id: str
    session_id: str
    from_revision: int
    to_revision: int
    history: str
    snapshot: bool
    blocked: list[NodeBody]
    unblocked: list[dict[str, str]]


def changes_batch(changes: Sequence[Change], history: str) -> Json:
    """Changes in a push: each node once, in its last state."""
    last: Mapping[str, Change] = {change.node.id: change for change in changes}
    return {
        "toRevision": changes[-1].revision,
        "history": history,
        "snapshot": False,
        "blocked": [_batch_node(change.node) for change in last.values() if not change.type.frees],
        "unblocked": [
            {"id": change.node.id, "type": change.type.value} for change in last.values() if change.type.frees
        ],
    }


def snapshot_batch(snapshot: Snapshot) -> Json:
    """The whole list in a push, sorted by node id."""
    return {
        "toRevision": snapshot.revision,
        "history": snapshot.history,
        "snapshot": True,
        "blocked": [_batch_node(snapshot.nodes[node_id]) for node_id in sorted(snapshot.nodes)],
        "unblocked": [],
    }


def empty_batch(revision: int, history: str) -> Json:
    """A push without changes."""
    return {"toRevision": revision, "history": history, "snapshot": False, "blocked": [], "unblocked": []}


def _batch_node(node: BlockedNode) -> Json:
    return {"id": node.id, **node_fields(node)}
