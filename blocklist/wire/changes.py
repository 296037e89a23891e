"""The bodies of changes and snapshots: the change log and the watch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from blocklist.model.changes import Change, ChangeType, Snapshot
from blocklist.model.claims import Claims, author_claim, is_author_claim
from blocklist.model.node import BlockedNode
from blocklist.wire.body import Body, Doc, Json, Millis, Page, Rule, between, dump_json, matching, with_example
from blocklist.wire.nodes import ClaimBody, NodeBody, claim_body, node_fields


def _known_type(name: object) -> str:
    """A type of a later version: whatever it is called, the node in the change is the node after it."""
    if not isinstance(name, str):
        raise ValueError("give the type of a change")
    return name if name in set(ChangeType) else ChangeType.MERGED.value


ChangeTypeName = Annotated[Literal["blocked", "merged", "narrowed", "unblocked", "expired"], Rule(_known_type, {})]


@dataclass(kw_only=True)
class ChangeBody(Body):
    """A change of the list."""

    revision: Annotated[int, between(1, 2**53)]
    type: ChangeTypeName
    at: Millis
    created_by: str | None
    forced: Annotated[str | None, Doc("Reason for bypassing the limits, if they were bypassed.")] = None
    node: NodeBody
    claims: Annotated[
        list[ClaimBody] | None,
        Doc("The claims after the change. Absent if none are left, or one, of `createdBy`: the node."),
    ] = None

    dismissed: Annotated[
        list[ClaimBody] | None,
        Doc("The claims of automatic owners that unblocking removed. Absent if there were none."),
    ] = None

    def value(self) -> Change:
        node = self.node.value()
        return Change(
            revision=self.revision,
            type=ChangeType(self.type),
            at=self.at,
            created_by=self.created_by,
            forced=self.forced,
            node=node,
            claims=self._claims(node),
            dismissed=_claims(self.dismissed or (), node.id),
        )

    def _claims(self, node: BlockedNode) -> Claims:
        if ChangeType(self.type).frees:
            return ()
        return author_claim(self.created_by, node) if self.claims is None else _claims(self.claims, node.id)


def _claims(bodies: Sequence[ClaimBody], node_id: str) -> Claims:
    return tuple(body.value(node_id) for body in bodies)


@dataclass(kw_only=True)
class SnapshotBody(Body):
    """The whole list at a revision."""

    revision: Annotated[int, between(0, 2**53)]
    history: Annotated[str, matching("^[0-9a-f]{8}$")]
    nodes: dict[str, NodeBody]

    def value(self) -> Snapshot:
        nodes = {node_id: node.value() for node_id, node in self.nodes.items()}
        return Snapshot(revision=self.revision, history=self.history, nodes=nodes)


@dataclass(kw_only=True)
class ChangesPage(Page):
    """A page of the change log."""

    __pydantic_config__ = with_example(
        changes=[
            {
                "revision": 1,
                "type": "blocked",
                "at": "1652313600000",
                "createdBy": None,
                "node": {
                    "id": "worker-17",
                    "action": "MARK_BLOCKED",
                    "startTimestamp": "1652313600000",
                    "endTimestamp": "1652317200000",
                    "cause": "Hot machine",
                },
            }
        ],
        revision=1,
        next=None,
    )

    changes: list[ChangeBody]
    revision: Annotated[int, Doc("The current revision.")]


def change_body(change: Change) -> Json:
    """A change in the change log and the watch."""
    implied = change.type.frees or is_author_claim(change.claims, change.created_by, change.node)
    return {
        "revision": change.revision,
        "type": change.type.value,
        "at": str(change.at),
        "createdBy": change.created_by,
        **({} if change.forced is None else {"forced": change.forced}),
        "node": {"id": change.node.id, **node_fields(change.node)},
        **({} if implied else {"claims": [claim_body(claim) for claim in change.claims]}),
        **({"dismissed": [claim_body(claim) for claim in change.dismissed]} if change.dismissed else {}),
    }


def dump_snapshot(snapshot: Snapshot) -> Iterator[bytes]:
    """The JSON of a snapshot in chunks, so that thousands of nodes are never in memory as dicts."""
    yield b'{"revision":%d,"history":"%b","nodes":{' % (snapshot.revision, snapshot.history.encode())
    separator = b""
    for node_id in sorted(snapshot.nodes):
        body = {"id": node_id, **node_fields(snapshot.nodes[node_id])}
        yield b'%b"%b":%b' % (separator, node_id.encode(), dump_json(body))
        separator = b","
    yield b"}}"


# The bodies of pushes to listeners.


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
