"""The claims on a node in a column of the database: a JSON array."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

from blocklist.model.claims import Claim, Claims, Repeat, author_claim, is_author_claim, merge_claims
from blocklist.model.node import BlockAction, BlockedNode
from blocklist.wire.body import dump_json


def dump_claims(claims: Claims) -> str:
    """The claims as JSON."""
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
    return dump_json(fields).decode()


def dump_block_claims(claims: Claims, node: BlockedNode, author: str | None) -> str | None:
    """The column of the claims that make this block. Null if the other columns say it all: one claim, of the author."""
    return None if not node.canary and is_author_claim(claims, author, node) else dump_claims(claims)


def load_claims(text: str | None, node: BlockedNode, author: str | None) -> Claims:
    """The claims that make this block.

    Raises ValueError, KeyError or TypeError for what `dump_block_claims` does not write.
    """
    if text is None:
        return author_claim(author, node)
    claims = load_dismissed(text, node.id)
    if merge_claims(claims).end != node.end:
        raise ValueError("the claims do not make the block")
    return claims


def with_canary(node: BlockedNode, claims: Claims) -> BlockedNode:
    """The node of these claims: it has no column for `canary`."""
    return replace(node, canary=True) if claims and all(claim.block.canary for claim in claims) else node


def load_dismissed(text: str | None, node_id: str) -> Claims:
    """The claims that a change dismissed. As `load_claims`, but they need not make a block."""
    if text is None:
        return ()
    value = json.loads(text)
    if not isinstance(value, list) or not value:
        raise ValueError("there are no claims")
    return tuple(_claim(node_id, **fields) for fields in value)


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
