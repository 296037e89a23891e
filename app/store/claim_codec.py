"""The claims on a node in a column of the database: JSON with the revision that wrote them.

Versions without canaries ignore the field `canary`. To them, and after a change by one of them, the block is an
ordinary one.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

from blocklist.model.claims import Claim, Claims, merge_claims
from blocklist.model.node import BlockAction, BlockedNode
from blocklist.model.repeats import Repeat
from blocklist.wire.json import dump_json


def dump_claims(claims: Claims, revision: int) -> str:
    """The claims after the change of this revision."""
    fields = [
        {
            "owner": claim.owner,
            "author": claim.author,
            "action": claim.block.action.name,
            "start": claim.block.start,
            "end": claim.block.end,
            "cause": claim.block.cause,
            **({"canary": True} if claim.block.canary else {}),
            **({} if claim.repeat is None else {"repeat": asdict(claim.repeat)}),
        }
        for claim in claims
    ]
    return dump_json({"revision": revision, "claims": fields}).decode()


def load_claims(text: str | None, node: BlockedNode, revision: int) -> Claims | None:
    """The claims on this node after the change of this revision; None if they are implied.

    Those of another revision are stale: a version without claims has changed the node since, and left them there.
    Raises ValueError, KeyError or TypeError for what `dump_claims` does not write.
    """
    claims = load_dismissed(text, node.id, revision)
    if claims is not None and merge_claims(claims).end != node.end:
        raise ValueError("the claims do not make the block")
    return claims


def with_canary(node: BlockedNode, claims: Claims | None) -> BlockedNode:
    """The node of these claims: it has no column for `canary`, as a canary's claims are never implied."""
    if claims is None or not all(claim.block.canary for claim in claims):
        return node
    return replace(node, canary=True)


def load_dismissed(text: str | None, node_id: str, revision: int) -> Claims | None:
    """The claims that the change of this revision dismissed. As `load_claims`, but they need not make a block."""
    if text is None:
        return None
    value = json.loads(text)
    if value["revision"] != revision:
        return None
    if not value["claims"]:
        raise ValueError("there are no claims")
    return tuple(_claim(node_id, **fields) for fields in value["claims"])


def _claim(
    node_id: str,
    *,
    owner: str,
    author: str | None,
    action: str,
    cause: str,
    canary: bool = False,
    repeat: dict[str, Any] | None = None,
    **times: Any,
) -> Claim:
    if not isinstance(owner, str) or not isinstance(author, str | None):
        raise TypeError("an owner or author is not text")
    if not isinstance(canary, bool):
        raise TypeError("canary is not a boolean")
    start, end = times["start"], times["end"]
    block = BlockedNode(id=node_id, action=BlockAction[action], start=start, end=end, cause=cause, canary=canary)
    return Claim(owner=owner, author=author, block=block, repeat=None if repeat is None else Repeat(**repeat))
