"""Claims: the reasons of several owners for one node to be blocked. The block of the node is the merge of them. Pure.

A change of a node and the list store no claims if they are implied: the node has one claim, of the author of its last
change, with the fields of the block, and it is no canary. That is what every change was before there were claims.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

from blocklist.model.errors import InvalidError, LimitError
from blocklist.model.node import MAX_CAUSES, BlockedNode, check_text, merge
from blocklist.model.repeats import Repeat

ANONYMOUS: Final = "anonymous"
"""The owner of what callers without a name claim."""
DETECTION_OWNER: Final = "detection"
"""The owner of the claims that verdicts on event logs lead to."""
CORDON_OWNER: Final = "kubernetes"
"""The owner of the claims on nodes that are cordoned in Kubernetes."""
AUTOMATIC_OWNERS: Final = ("alertmanager/*", DETECTION_OWNER, "evidence", CORDON_OWNER)
"""Patterns of the owners whose claims no person makes. Unblocking a node dismisses their reasons."""
MAX_OWNER_LENGTH: Final = 128
MAX_CLAIMS: Final = MAX_CAUSES
"""Maximum number of claims on a node, with more of which its cause could not name the reasons of all.

What an author claims for himself always fits: alerts, or the owners of one token, must not keep operators out.
"""


@dataclass(unsafe_hash=True, kw_only=True, slots=True)
class Claim:
    """One owner's reason for a node to be blocked: `block` is the block that it asks for; `author` is who made it.

    `repeat` says why an automatic one lasts longer than usual; None if it does not.
    """

    # Final instead of `frozen`: see Change.
    owner: Final[str]
    author: Final[str | None]
    block: Final[BlockedNode]
    repeat: Final[Repeat | None] = None


Claims = tuple[Claim, ...]
"""All claims on a node, in the order in which they were made."""
ClaimsOrAuthor = Claims | str | None
"""Claims, or for implied ones the author."""


def own_owner(author: str | None) -> str:
    """The owner for whom an author acts unless he says otherwise."""
    return ANONYMOUS if author is None else author


def expand(stored: ClaimsOrAuthor, block: BlockedNode) -> Claims:
    """The claims on a node with this block."""
    if isinstance(stored, tuple):
        return stored
    return (Claim(owner=own_owner(stored), author=stored, block=block),)


def is_sole_owner(stored: ClaimsOrAuthor, author: str | None) -> bool:
    """Whether the only claim is implied, and the author's own."""
    return not isinstance(stored, tuple) and own_owner(stored) == own_owner(author)


def is_authored_by(stored: ClaimsOrAuthor, author: str | None) -> bool:
    """Whether this author made one of the claims."""
    return any(claim.author == author for claim in stored) if isinstance(stored, tuple) else stored == author


def explicit(claims: Claims, block: BlockedNode, author: str | None) -> Claims | None:
    """The claims; None if they are implied by the block and the author of its last change."""
    return None if not block.canary and claims == expand(author, block) else claims


def merge_claims(claims: Iterable[Claim]) -> BlockedNode:
    """The block that these claims make together (FLIP-224, Merge): their order matters only for that of the causes."""
    return reduce(merge, (claim.block for claim in claims))


def claim_of(claims: Iterable[Claim], owner: str) -> Claim | None:
    return next((claim for claim in claims if claim.owner == owner), None)


def with_claim(claims: Sequence[Claim], claim: Claim) -> Claims:
    """The claims, with this one in place of its owner's former one, or as the last."""
    if claim_of(claims, claim.owner) is None:
        return (*claims, claim)
    return tuple(claim if other.owner == claim.owner else other for other in claims)


def without_owner(claims: Iterable[Claim], owner: str) -> Claims:
    return tuple(claim for claim in claims if claim.owner != owner)


def live_claims(claims: Claims, now: int) -> Claims:
    """The claims that have not ended at `now`."""
    return tuple(claim for claim in claims if not claim.block.ended(now))


def automatic_claims(claims: Claims) -> Claims:
    """The claims that no person made."""
    return tuple(it for it in claims if any(owner_matches(it.owner, pattern) for pattern in AUTOMATIC_OWNERS))


def check_room(claims: Sequence[Claim], owner: str, author: str | None) -> None:
    """Raise LimitError if the owner, for whom the author acts, would be one too many."""
    if len(claims) >= MAX_CLAIMS and owner != own_owner(author) and claim_of(claims, owner) is None:
        raise LimitError(
            f"Node {claims[0].block.id} has {len(claims)} claims, the maximum: remove one of them first, or unblock the"
            " node, which removes all."
        )


def narrows(before: BlockedNode, after: BlockedNode) -> bool:
    """Whether the block became weaker or shorter. A canary is the weakest."""
    return (
        after.action < before.action
        or after.canary > before.canary
        or after.end < before.end
        or after.start > before.start
    )


def check_owner(owner: str) -> str:
    """Return `owner`; raise InvalidError unless it can be the owner of a claim.

    1 to 128 printable characters without `*`, which selects owners; between slashes no blanks at the ends, nor what
    HTTP clients remove from a path: an empty part, `.` and `..`. Nor may it have the character that replaces bytes
    that are not UTF-8: names in other encodings would become the same owner.
    """
    check_text(owner)
    if "\ufffd" in owner:
        raise InvalidError(f"{owner[:64]!a} is not an owner: encode it as UTF-8.")
    parts = owner.split("/")
    if any(part != part.strip() for part in parts):
        raise InvalidError(f"{owner[:64]!a} is not an owner: remove the blanks at its ends, or beside a slash.")
    if not 1 <= len(owner) <= MAX_OWNER_LENGTH or "*" in owner or not {"", ".", ".."}.isdisjoint(parts):
        raise InvalidError(
            f"{owner[:64]!a} is not an owner: use 1 to {MAX_OWNER_LENGTH} characters, without `*`, and between slashes"
            " something else than nothing, `.` and `..`."
        )
    return owner


def check_owner_pattern(pattern: str) -> str:
    """Return `pattern`; raise InvalidError unless it is `*`, or an owner, or the beginning of owners and `*`."""
    if pattern != "*":
        check_owner(f"{pattern[:-1]}x" if pattern.endswith("*") else pattern)
    return pattern


def owner_matches(owner: str, pattern: str) -> bool:
    """Whether an owner is the pattern, or begins with it if it ends in `*`."""
    return owner.startswith(pattern[:-1]) if pattern.endswith("*") else owner == pattern
