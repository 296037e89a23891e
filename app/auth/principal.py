"""Principal: the author of a request and their role."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from blocklist.model.roles import Role


@dataclass(frozen=True, slots=True)
class Principal:
    """A name, None if it is not known, and a role. `subject` is that of a JWT: the issuer never gives it to another."""

    name: str | None
    role: Role
    subject: str | None = None

    @property
    def id(self) -> str | None:
        """Identifies the principal: a JWT's subject, else the name, which a token's successor may have as well."""
        return self.name if self.subject is None else f"oidc:{self.subject}"


AUTH_DISABLED: Final = Principal(None, Role.ADMIN)
"""Of every request while authentication is off."""
ANONYMOUS: Final = Principal(None, Role.READER)
"""Of requests to routes that are open to all, where credentials are not checked."""
