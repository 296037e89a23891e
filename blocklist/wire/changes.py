"""The bodies of changes and snapshots: the change log and the watch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from blocklist.model.changes import Change, ChangeType, Snapshot
from blocklist.wire.body import Body, MillisOut
from blocklist.wire.json import Json, dump_json
from blocklist.wire.nodes import NodeBody, node_fields


class ChangeBody(Body):
    """A change of the list."""

    revision: Annotated[int, Field(ge=1, le=2**53)]
    type: Literal["blocked", "merged", "unblocked", "expired"]
    at: MillisOut
    created_by: str | None
    forced: Annotated[str | None, Field(description="Reason for bypassing the limits, if they were bypassed.")] = None
    node: NodeBody

    def value(self) -> Change:
        return Change(
            revision=self.revision,
            type=ChangeType(self.type),
            at=self.at,
            created_by=self.created_by,
            forced=self.forced,
            node=self.node.value(),
        )


class SnapshotBody(Body):
    """The whole list at a revision."""

    revision: Annotated[int, Field(ge=0, le=2**53)]
    history: Annotated[str, Field(pattern="^[0-9a-f]{8}$")]
    nodes: dict[str, NodeBody]

    def value(self) -> Snapshot:
        nodes = {node_id: node.value() for node_id, node in self.nodes.items()}
        return Snapshot(revision=self.revision, history=self.history, nodes=nodes)


class ChangesPage(Body):
    """A page of the change log."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "changes": [
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
                    "revision": 1,
                    "next": None,
                }
            ]
        }
    )

    changes: list[ChangeBody]
    revision: Annotated[int, Field(description="The current revision.")]
    next: Annotated[int | None, Field(description="`since` of the next page; null on the last page.")]


def change_body(change: Change) -> Json:
    """A change in the change log and the watch."""
    return {
        "revision": change.revision,
        "type": change.type.value,
        "at": str(change.at),
        "createdBy": change.created_by,
        **({} if change.forced is None else {"forced": change.forced}),
        "node": {"id": change.node.id, **node_fields(change.node)},
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
