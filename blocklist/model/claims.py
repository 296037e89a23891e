"""Claims: the reasons of several owners for one node to be blocked. The node's block is the merge of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

from blocklist.model.errors import InvalidError, LimitError
from blocklist.model.node import MAX_CAUSES, BlockedNode, check_text, merge
from blocklist.model.time import format_duration

# Repeats: an automatic block of a node lasts longer after others. Pure; durations are in milliseconds.

MAX_DURATION_MS: Final = 7 * 86_400_000
"""Maximum duration of an automatic block that is doubled: a limit on the blocks of operators applies as well."""
MAX_COUNTED: Final = 32
"""Maximum number of earlier blocks of a node id that are remembered: a second doubled 32 times is 136 years."""
_ORDINALS: Final = ("", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


@dataclass(frozen=True, kw_only=True, slots=True)
class Repeat:
    """That a claim is at least the second automatic block of its node within `window`: the `number`-th.

    It was made for `duration`; the first one would have been made for `usual`.
    """

    number: int
    window: int
    usual: int
    duration: int

    def __post_init__(self) -> None:
        if not all(isinstance(value, int) for value in (self.number, self.window, self.usual, self.duration)):
            raise TypeError("a field of a repeat is not a number")

    def __str__(self) -> str:
        """`third automatic block in 30 days: 4h instead of 1h`."""
        counted = f"{_ordinal(self.number)} automatic block in {_exact(self.window)}"
        if self.duration == self.usual:
            return counted
        return f"{counted}: {_exact(self.duration)} instead of {_exact(self.usual)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class RepeatRule:
    """Each block within `window` doubles the duration, up to `max_duration`; a `window` of 0 disables this."""

    window: int = 0
    max_duration: int = 0

    def duration(self, usual: int, earlier: int) -> int:
        """The duration of a block after `earlier` others. A usual duration beyond the maximum is not shortened."""
        return max(usual, min(usual << min(earlier, MAX_COUNTED), self.max_duration))

    def repeat(self, usual: int, earlier: int) -> Repeat | None:
        """The repeat that a block after `earlier` others is; None if it is the first."""
        if not earlier:
            return None
        duration = self.duration(usual, earlier)
        return Repeat(number=earlier + 1, window=self.window, usual=usual, duration=duration)


def _ordinal(number: int) -> str:
    if number < len(_ORDINALS):
        return _ORDINALS[number]
    tens, ones = divmod(number, 10)
    ending = {1: "st", 2: "nd", 3: "rd"}.get(ones, "th") if tens % 10 != 1 else "th"
    return f"{number}{ending}"


def _exact(millis: int) -> str:
    """`30 days`, not `4w 2d`; `4h`."""
    days, rest = divmod(millis, 86_400_000)
    return f"{days} day{'' if days == 1 else 's'}" if days and not rest else format_duration(millis)


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

    `repeat` says why an automatic one lasts longer than usual; None if it does not. One that `continues` is for an
    event for which the node was blocked before: it is no further automatic block.
    """

    # Final instead of `frozen`: see Change.
    owner: Final[str]
    author: Final[str | None]
    block: Final[BlockedNode]
    repeat: Final[Repeat | None] = None
    continues: Final[bool] = False


Claims = tuple[Claim, ...]
"""All claims on a node, in the order in which they were made."""


def default_owner(author: str | None) -> str:
    """The owner for whom an author acts unless the request names another one."""
    return ANONYMOUS if author is None else author


def author_claim(author: str | None, block: BlockedNode) -> Claims:
    """The only claim on a node with this block: its author's own."""
    return (Claim(owner=default_owner(author), author=author, block=block),)


def is_author_claim(claims: Claims, author: str | None, block: BlockedNode) -> bool:
    """Whether these are what `author_claim` returns; it then need not be written beside the block."""
    if len(claims) != 1:
        return False
    (claim,) = claims
    own = claim.author == author and claim.owner == default_owner(author)
    return own and claim.repeat is None and not claim.continues and (claim.block is block or claim.block == block)


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
    return tuple(it for it in claims if matches_any(it.owner, AUTOMATIC_OWNERS))


def check_room(claims: Sequence[Claim], owner: str, author: str | None) -> None:
    """Raise LimitError if the owner, for whom the author acts, would be one too many."""
    if len(claims) >= MAX_CLAIMS and owner != default_owner(author) and claim_of(claims, owner) is None:
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
    return check_pattern(pattern, check_owner)


def check_pattern(pattern: str, check: Callable[[str], str]) -> str:
    """Return `pattern`; raise what `check` does unless it is `*`, or a name that passes, or the beginning of some."""
    if pattern != "*":
        check(f"{pattern[:-1]}x" if pattern.endswith("*") else pattern)
    return pattern


def matches_any(name: str, patterns: Iterable[str]) -> bool:
    """Whether an owner, or an id, matches one of these patterns."""
    return any(owner_matches(name, pattern) for pattern in patterns)


def owner_matches(owner: str, pattern: str) -> bool:
    """Whether an owner is the pattern, or begins with it if it ends in `*`."""
    return owner.startswith(pattern[:-1]) if pattern.endswith("*") else owner == pattern
