"""The bodies of claims: the reasons of several owners for one node to be blocked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from blocklist.model.claims import Claim
from blocklist.model.node import BlockAction, BlockedNode
from blocklist.wire.body import Body, Doc, Millis
from blocklist.wire.json import Json
from blocklist.wire.nodes import ActionName, CanaryOut, NodeBody, node_fields
from blocklist.wire.repeats import RepeatBody, repeat_body


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
class ClaimsPage(Body):
    """Claims and dismissals on several nodes, by node id; those of a node are on one page."""

    claims: list[OwnedClaim]
    dismissed: Annotated[list[OwnedDismissal] | None, Doc("The dismissals of the last 30 days; absent with `at`.")] = (
        None
    )
    next: Annotated[str | None, Doc("`after` of the next page; null on the last page.")]


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
