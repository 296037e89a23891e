"""Principal: the author of a request and their role."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from blocklist.model.roles import Role


@dataclass(frozen=True, slots=True)
class Principal:
    """A name, None if it is not known, and a role."""

    name: str | None
    role: Role


AUTH_DISABLED: Final = Principal(None, Role.ADMIN)
"""Of every request while authentication is off."""
ANONYMOUS: Final = Principal(None, Role.READER)
"""Of requests to routes that are open to all, where credentials are not checked."""
