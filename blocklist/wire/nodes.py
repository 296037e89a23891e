"""The bodies of blocked nodes and of requests to block them."""

from __future__ import annotations

from dataclasses import dataclass, field
from json.encoder import encode_basestring
from typing import Annotated, Literal

from blocklist.model.listing import NodeDetails
from blocklist.model.node import BlockAction, BlockedNode
from blocklist.wire.body import Body, Doc, Millis, between, with_example
from blocklist.wire.json import Json, dump_json

ActionName = Literal["MARK_BLOCKED", "MARK_BLOCKED_AND_EVACUATE_TASKS"]
CanaryOut = Annotated[bool, Doc("Whether one executor of each Spark application may stay there. Absent if not.")]


@dataclass(kw_only=True)
class ListedNode(Body):
    """A blocked node in the list, under its id."""

    action: ActionName
    start_timestamp: Millis
    end_timestamp: Millis
    cause: str
    canary: CanaryOut = False
    task_managers: Annotated[list[str], Doc("Ids of the TaskManagers on the node, sorted.")]
    created_by: Annotated[str | None, Doc("With `details`: author of its last change.")] = None
    revision: Annotated[int, between(0), Doc("With `details`: revision of its last change; 0 if unknown.")] = 0
    owners: Annotated[list[str] | None, Doc("With `details`: owners of its claims.")] = None

    def value(self, node_id: str) -> NodeDetails:
        """The node with its details. Raises InvalidError for an invalid one."""
        return NodeDetails(
            node=_block(self, node_id),
            created_by=self.created_by,
            revision=self.revision or None,
            task_managers=tuple(self.task_managers),
            owners=tuple(self.owners or ()),
        )


@dataclass(kw_only=True)
class NodeBody(Body):
    """A blocked node with its id."""

    __pydantic_config__ = with_example(
        id="worker-17",
        action="MARK_BLOCKED",
        startTimestamp="1652313600000",
        endTimestamp="1652317200000",
        cause="Hot machine",
        taskManagers=[],
    )

    id: str
    action: ActionName
    start_timestamp: Millis
    end_timestamp: Millis
    cause: str
    canary: CanaryOut = False
    task_managers: list[str] | None = None

    def value(self) -> BlockedNode:
        """The node. Raises InvalidError for an invalid one."""
        return _block(self, self.id)


def _block(body: ListedNode | NodeBody, node_id: str) -> BlockedNode:
    return BlockedNode(
        id=node_id,
        action=BlockAction[body.action],
        start=body.start_timestamp,
        end=body.end_timestamp,
        cause=body.cause,
        canary=body.canary,
    )


@dataclass(kw_only=True)
class NodeResult(NodeBody):
    """One of several blocked nodes: 201 blocked, 202 merged with its existing block."""

    status: Literal[201, 202]
    known: Annotated[bool, Doc("False if listeners report nodes, but not this one.")] = True
    did_you_mean: Annotated[str | None, Doc("If not: a similar node that a listener knows.")] = None
    ambiguous: Annotated[
        list[str], Doc("If not: the nodes that claim this name or address; it means none of them.")
    ] = field(default_factory=list)


@dataclass(kw_only=True)
class UnblockedNode(Body):
    """One of several selected nodes: 200 it was unblocked, 404 it was not blocked."""

    status: Literal[200, 404]
    id: Annotated[str | None, Doc("The name under which it was blocked; null if it was not.")]


def node_fields(node: BlockedNode) -> Json:
    """The fields of a node without its id, in the order of FLIP-224's example; then `canary` if it is one."""
    fields: Json = {
        "action": node.action.name,
        "startTimestamp": str(node.start),
        "endTimestamp": str(node.end),
        "cause": node.cause,
    }
    if node.canary:
        fields["canary"] = True
    return fields


def node_body(node: BlockedNode, task_managers: list[str]) -> Json:
    """A node in a response of /blocklist/nodes."""
    return {"id": node.id, **node_fields(node), "taskManagers": task_managers}


def dump_node(node: BlockedNode, task_managers: list[str]) -> bytes:
    """The JSON of node_body, formatted directly: this halves the time of a PUT."""
    return f'{{"id":"{node.id}",{_dump_fields(node, task_managers)}}}'.encode()


def dump_list_entry(node: BlockedNode, task_managers: list[str]) -> bytes:
    """The node as a member of the list of GET /blocklist, under its id."""
    return f'"{node.id}":{{{_dump_fields(node, task_managers)}}}'.encode()


def _dump_fields(node: BlockedNode, task_managers: list[str]) -> str:
    canary = '"canary":true,' if node.canary else ""
    return (
        f'"action":"{node.action.name}","startTimestamp":"{node.start}","endTimestamp":"{node.end}",'
        f'"cause":{encode_basestring(node.cause)},{canary}"taskManagers":{dump_json(task_managers).decode()}'
    )
