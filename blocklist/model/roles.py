"""What a credential allows, and what is known of a token. Pure values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from blocklist.model.errors import InvalidError
from blocklist.model.node import PERMANENT, check_node_id


class Role(StrEnum):
    """Roles of credentials, from the least to the most: each may do what those before it may.

    A reader reads and watches, a listener registers and reports, an operator blocks and unblocks, an admin makes
    tokens and may go beyond limits.
    """

    READER = "reader"
    LISTENER = "listener"
    OPERATOR = "operator"
    ADMIN = "admin"

    @property
    def rank(self) -> int:
        """Its place in this order. Roles themselves compare as strings."""
        return _RANKS[self]

    def allows(self, required: Role) -> bool:
        """Whether who has this role may do what needs that one."""
        return self.rank >= required.rank


_RANKS = {role: rank for rank, role in enumerate(Role)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """What is known of a bearer token; never its text. Times are Unix milliseconds.

    `name` is the author of the changes that are made with it; `last_used_at` may be up to a minute late.
    """

    id: str
    name: str
    role: Role
    created_at: int
    created_by: str | None = None
    end: int = PERMANENT
    revoked_at: int | None = None
    last_used_at: int | None = None

    def is_valid(self, now: int) -> bool:
        """Whether it opens anything at this moment."""
        return self.revoked_at is None and now < self.end


@dataclass(frozen=True, kw_only=True, slots=True)
class NewToken:
    """A token that was just made: `text` is shown this once."""

    token: Token
    text: str = field(repr=False)


def check_token_name(name: str) -> str:
    """Return the name of a token; raise InvalidError unless it is written like a node id."""
    try:
        return check_node_id(name)
    except InvalidError:
        raise InvalidError("The name of a token: use 1 to 253 of A-Z a-z 0-9 . _ : -") from None
