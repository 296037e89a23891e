"""The bodies of blocked nodes, claims and dry runs, and of requests to block nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Annotated, Literal

from blocklist.model.claims import Claim, Repeat
from blocklist.model.listing import NodeDetails
from blocklist.model.node import BlockAction, BlockedNode
from blocklist.wire.body import Body, Doc, Json, Millis, Page, between, dump_json, with_example

if TYPE_CHECKING:
    from blocklist.model.usable_nodes import Shortfall

# The body of a repeat: why an automatic claim lasts longer than usual.


@dataclass(kw_only=True)
class RepeatBody(Body):
    """That an automatic claim lasts longer because its node was blocked before. Durations are in milliseconds."""

    number: Annotated[int, Doc("It is the automatic block of the node with this number in the window.")]
    window_ms: int
    usual_ms: Annotated[int, Doc("Duration of a first block.")]
    duration_ms: Annotated[int, Doc("Duration of this one, from its last renewal.")]

    def value(self) -> Repeat:
        return Repeat(number=self.number, window=self.window_ms, usual=self.usual_ms, duration=self.duration_ms)


def repeat_body(repeat: Repeat) -> Json:
    """Why an automatic claim lasts longer than usual."""
    return {
        "number": repeat.number,
        "windowMs": repeat.window,
        "usualMs": repeat.usual,
        "durationMs": repeat.duration,
    }


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
    known: Annotated[bool, Doc("False if nodes are known, but not this one.")] = True
    did_you_mean: Annotated[str | None, Doc("If not: a similar node that is known.")] = None
    ambiguous: Annotated[
        list[str], Doc("If not: the nodes that claim this name or address; it means none of them.")
    ] = field(default_factory=list)
    means: Annotated[
        list[str], Doc("The nodes that this short name means, if they are several: all of them are blocked.")
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


# The bodies of claims: the reasons of several owners for one node to be blocked.


@dataclass(kw_only=True)
class ClaimBody(Body):
    """A claim on a node: what its owner wants, and who made it."""

    owner: str
    action: ActionName
    start_timestamp: Millis
    end_timestamp: Millis
    cause: str
    canary: CanaryOut = False
    created_by: Annotated[str | None, Doc("Who made it for the owner, null if unknown.")]
    repeat: Annotated[RepeatBody | None, Doc("Absent if its duration is the usual one.")] = None

    def value(self, node_id: str) -> Claim:
        """The claim on a node. Raises InvalidError for an invalid one."""
        action = BlockAction[self.action]
        block = BlockedNode(
            id=node_id,
            action=action,
            start=self.start_timestamp,
            end=self.end_timestamp,
            cause=self.cause,
            canary=self.canary,
        )
        repeat = None if self.repeat is None else self.repeat.value()
        return Claim(owner=self.owner, author=self.created_by, block=block, repeat=repeat)


@dataclass(kw_only=True)
class DismissalBody(Body):
    """An automatic owner that was overruled: what it claimed then does not block the node again."""

    owner: str
    at: Millis
    dismissed_by: Annotated[str | None, Doc("Who unblocked the node, null if unknown.")]


@dataclass(kw_only=True)
class NodeClaims(Body):
    """The claims on a node, in the order in which they were made, and its dismissals of the last 30 days."""

    id: str
    claims: list[ClaimBody]
    dismissed: list[DismissalBody]


@dataclass(kw_only=True)
class OwnedClaim(ClaimBody):
    """A claim in a list of those on several nodes."""

    node: Annotated[str, Doc("The id of the node.")]


@dataclass(kw_only=True)
class OwnedDismissal(DismissalBody):
    """A dismissal in a list of those on several nodes."""

    node: Annotated[str, Doc("The id of the node when it was unblocked.")]


@dataclass(kw_only=True)
class ClaimsPage(Page):
    """Claims and dismissals on several nodes, by node id; those of a node are on one page."""

    claims: list[OwnedClaim]
    dismissed: Annotated[list[OwnedDismissal] | None, Doc("The dismissals of the last 30 days; absent with `at`.")] = (
        None
    )


@dataclass(kw_only=True)
class PutClaimBody(Body):
    """A claim that was put, and the node as all claims together have it."""

    claim: ClaimBody
    node: NodeBody


@dataclass(kw_only=True)
class PutClaimResult(PutClaimBody):
    """One of several claims that were put: 201 created, 200 replaced."""

    status: Literal[200, 201]


@dataclass(kw_only=True)
class RemovedClaimBody(Body):
    """The node after a claim was removed: as the others have it or, if there are none, as it was."""

    blocked: Annotated[bool, Doc("Whether other claims keep it blocked.")]
    node: NodeBody


def claim_body(claim: Claim) -> Json:
    """A claim in the change log, the watch, and in lists of claims."""
    repeat = {} if claim.repeat is None else {"repeat": repeat_body(claim.repeat)}
    return {"owner": claim.owner, **node_fields(claim.block), "createdBy": claim.author, **repeat}


def dismissal_body(owner: str, at: int, dismissed_by: str | None) -> Json:
    """A dismissal on a node."""
    return {"owner": owner, "at": str(at), "dismissedBy": dismissed_by}


# The bodies of dry runs: the effect that a change would have.


@dataclass(kw_only=True)
class AffectedTaskManager(Body):
    """A TaskManager that is currently on the node."""

    id: str
    listener: str
    running_tasks: Annotated[int | None, Doc("Null if its listener does not report it.")]


@dataclass(kw_only=True)
class DryRunNode(Body):
    """The status of the response for one node, the node after the change, and the TaskManagers currently on it."""

    status: Annotated[Literal[200, 201, 202], Doc("201 blocked, 202 merged, 200 unblocked.")]
    node: NodeBody
    task_managers: list[AffectedTaskManager]
    known: Annotated[
        bool | None,
        Doc("Whether it was blocked, or is known; null if no node is known."),
    ] = None
    did_you_mean: Annotated[str | None, Doc("A similar node that is known.")] = None
    ambiguous: Annotated[
        list[str], Doc("The nodes that claim this name or address, if several do: it means none of them.")
    ] = field(default_factory=list)
    means: Annotated[
        list[str], Doc("The nodes that this short name means, if they are several: all of them would be blocked.")
    ] = field(default_factory=list)


@dataclass(kw_only=True)
class ShortfallBody(Body):
    """A listener that would have fewer usable nodes than its minimum."""

    listener: str
    usable: int
    minimum: int


@dataclass(kw_only=True)
class DryRunBody(Body):
    """The effect that the change would have. Nothing was changed."""

    dry_run: Literal[True]
    nodes: list[DryRunNode]
    below_minimum: list[ShortfallBody]
    refused: Annotated[str | None, Doc("The error of the limit that would refuse the change.")]


def shortfall_body(shortfall: Shortfall) -> Json:
    """An entry of `belowMinimum`."""
    return {"listener": shortfall.listener, "usable": shortfall.usable, "minimum": shortfall.minimum}
