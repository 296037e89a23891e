"""Claims: one owner's reason for a block. Roles, and the tokens that have them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce
from typing import Final

from blocklist.model.errors import InvalidError, LimitError
from blocklist.model.node import MAX_CAUSES, PERMANENT, BlockedNode, check_id, check_text, format_duration, merge

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
RESERVED_NAMES: Final = (*AUTOMATIC_OWNERS, "listener/*")
"""Patterns of the names that no person may have: what they block would be taken for claims of these owners."""
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


# Roles and tokens. Pure values.


class Role(StrEnum):
    """The roles of credentials; each includes the ones before it.

    A reader reads and watches. A listener is a job: it registers as a JOB_MASTER and reports its own TaskManagers. A
    manager registers as a RESOURCE_MANAGER and reports the nodes of its cluster, with their names and labels. An
    operator blocks and unblocks. An admin manages tokens and may bypass limits.
    """

    READER = "reader"
    LISTENER = "listener"
    MANAGER = "manager"
    OPERATOR = "operator"
    ADMIN = "admin"

    @property
    def rank(self) -> int:
        """Position in this order. Roles themselves compare as strings."""
        return _RANKS[self]

    def allows(self, required: Role) -> bool:
        """Whether this role may do what requires that one."""
        return self.rank >= required.rank


_RANKS = {role: rank for rank, role in enumerate(Role)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """A bearer token without its text. Times are Unix milliseconds.

    `name` is the author of changes made with the token; `last_used_at` may be up to five minutes late. `owners` are the
    patterns of owners whose claims it may change, `listeners` those of the ids under which it may register; None for
    all.
    """

    id: str
    name: str
    role: Role
    created_at: int
    created_by: str | None = None
    end: int = PERMANENT
    revoked_at: int | None = None
    last_used_at: int | None = None
    owners: tuple[str, ...] | None = None
    listeners: tuple[str, ...] | None = None

    def is_valid(self, now: int) -> bool:
        return self.revoked_at is None and now < self.end


@dataclass(frozen=True, kw_only=True, slots=True)
class NewToken:
    """A token that was just created; its `text` is shown only once."""

    token: Token
    text: str = field(repr=False)


def check_id_pattern(pattern: str) -> str:
    """Return `pattern`; raise InvalidError unless it is `*`, or an id, or the beginning of ids and `*`."""
    return check_pattern(pattern, check_id)


def check_token_name(name: str) -> str:
    """Return the name of a token; raise InvalidError unless it has the form of a node id."""
    try:
        return check_id(name)
    except InvalidError:
        raise InvalidError("The name of the token is invalid: use 1 to 253 of A-Z a-z 0-9 . _ : -") from None


# Roles of the groups of an identity provider, and of Kubernetes ServiceAccounts, as the settings give them. Pure.

_GRANT: Final = re.compile(r"(?P<who>[^,]+)=(?P<role>[a-z]+)(?::(?P<patterns>[^,=]+))?", re.ASCII)
# Names of namespaces and ServiceAccounts, as Kubernetes restricts them: neither contains `*`, `,`, `=` or `/`.
_ACCOUNT: Final = re.compile(r"[a-z0-9-]+/(?:[a-z0-9.-]+|\*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Grant:
    """A role, and what it is restricted to, as a token is: owners of an operator, ids of a listener; None is all."""

    role: Role
    patterns: tuple[str, ...] | None = None

    @property
    def owners(self) -> tuple[str, ...] | None:
        return self.patterns if self.role is Role.OPERATOR else None

    @property
    def listeners(self) -> tuple[str, ...] | None:
        return None if self.role is Role.OPERATOR else self.patterns


@dataclass(frozen=True, slots=True)
class Grants:
    """Who has which role, as the settings say."""

    rules: tuple[tuple[str, Grant], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Grants:
        """The rules in `GROUP=ROLE,…`, a role with what it is restricted to: `alerts=operator:alertmanager/*|night`.

        Raises ValueError.
        """
        return cls(tuple(_parse_grant(rule.strip()) for rule in text.split(",") if rule.strip()))

    @classmethod
    def of_accounts(cls, text: str) -> Grants:
        """The same with `NAMESPACE/NAME` for who; the name `*` means every one of the namespace. Raises ValueError."""
        try:
            grants = cls.parse(text)
        except ValueError as error:
            raise ValueError(f"{error}; NAME is NAMESPACE/NAME or NAMESPACE/*") from None
        for who, _ in grants.rules:
            if _ACCOUNT.fullmatch(who) is None:
                raise ValueError(f"give NAMESPACE/NAME=ROLE or NAMESPACE/*=ROLE; {who!a} is neither")
        return grants

    def of_any(self, names: Collection[str]) -> Grant | None:
        """The strongest role of these, with all to which it is restricted; None if there is none."""
        found = [grant for who, grant in self.rules if who in names]
        role = max((grant.role for grant in found), key=lambda role: role.rank, default=None)
        if role is None:
            return None
        patterns = [grant.patterns for grant in found if grant.role is role]
        restricted = [pattern for each in patterns if each is not None for pattern in each]
        return Grant(role, None if None in patterns else tuple(dict.fromkeys(restricted)))

    def of_account(self, namespace: str, name: str) -> Grant | None:
        """The strongest role of a ServiceAccount; None if there is none."""
        return self.of_any((f"{namespace}/{name}", f"{namespace}/*"))


ROLES_BY_NAME: Final = Grants(tuple((role.value, Grant(role)) for role in Role))
"""Whoever has the name of a role has the role."""


def _parse_grant(text: str) -> tuple[str, Grant]:
    match = _GRANT.fullmatch(text)
    if match is None or match["role"] not in list(Role):
        raise ValueError(
            f"give comma-separated NAME=ROLE, with one of the roles {', '.join(Role)}; {text!a} is something else"
        )
    role = Role(match["role"])
    if match["patterns"] is None:
        return match["who"], Grant(role)
    if role not in {Role.LISTENER, Role.MANAGER, Role.OPERATOR}:
        raise ValueError(f"the role {role.value} cannot be restricted, as in {text!a}")
    check = check_owner_pattern if role is Role.OPERATOR else check_id_pattern
    try:
        return match["who"], Grant(role, tuple(map(check, match["patterns"].split("|"))))
    except InvalidError as error:
        raise ValueError(f"{text!a}: {error.detail}") from None
