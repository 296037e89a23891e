"""Roles and tokens. Pure values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from blocklist.model.errors import InvalidError
from blocklist.model.node import PERMANENT, check_id


class Role(StrEnum):
    """The roles of credentials; each includes the ones before it.

    A reader reads and watches, a listener registers and reports, an operator blocks and unblocks, an admin manages
    tokens and may bypass limits.
    """

    READER = "reader"
    LISTENER = "listener"
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

    `name` is the author of changes made with the token; `last_used_at` may be up to a minute late. `owners` are the
    patterns of owners whose claims it may change; None for all.
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

    def is_valid(self, now: int) -> bool:
        return self.revoked_at is None and now < self.end


@dataclass(frozen=True, kw_only=True, slots=True)
class NewToken:
    """A token that was just created; its `text` is shown only once."""

    token: Token
    text: str = field(repr=False)


def check_token_name(name: str) -> str:
    """Return the name of a token; raise InvalidError unless it has the form of a node id."""
    try:
        return check_id(name)
    except InvalidError:
        raise InvalidError("The name of the token is invalid: use 1 to 253 of A-Z a-z 0-9 . _ : -") from None
