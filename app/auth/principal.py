"""Principal: the author of a request and their role."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from blocklist.model.claims import own_owner, owner_matches
from blocklist.model.errors import ForbiddenError
from blocklist.model.roles import Role


@dataclass(frozen=True, slots=True)
class Principal:
    """A name, None if it is not known, and a role. `subject` is that of a JWT: the issuer never gives it to another.

    `owners` are the patterns of owners whose claims it may change; None for all.
    """

    name: str | None
    role: Role
    subject: str | None = None
    owners: tuple[str, ...] | None = None

    @property
    def id(self) -> str | None:
        """Identifies the principal: a JWT's subject, else the name, which a token's successor may have as well."""
        return self.name if self.subject is None else f"oidc:{self.subject}"

    def check_may_claim_for(self, owner: str) -> None:
        """Raise ForbiddenError unless it may change the claims of this owner."""
        if self.owners is not None and not any(owner_matches(owner, pattern) for pattern in self.owners):
            raise ForbiddenError(f"Your token may change claims of {', '.join(self.owners)} only, not of {owner}.")

    def check_may_block(self) -> None:
        """Raise ForbiddenError unless it may block a node, which makes a claim of its own."""
        self.check_may_claim_for(own_owner(self.name))

    def check_may_unblock(self) -> None:
        """Raise ForbiddenError unless it may unblock a node, which removes the claims of all owners."""
        if self.owners is not None:
            raise ForbiddenError(
                f"Unblocking a node removes the claims of all owners; your token may change those of"
                f" {', '.join(self.owners)} only: remove such a claim."
            )


PRINCIPAL_KEY: Final = "blocklist.principal"
"""Where the scope of an authenticated request has its principal."""
AUTH_DISABLED: Final = Principal(None, Role.ADMIN)
"""Of every request while authentication is off."""
ANONYMOUS: Final = Principal(None, Role.READER)
"""Of requests to routes that are open to all, where credentials are not checked."""
