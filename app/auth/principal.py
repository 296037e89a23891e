"""Principal: who a request comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from blocklist.model.roles import Role


@dataclass(frozen=True, slots=True)
class Principal:
    """A name, where known, and what it may do."""

    name: str | None
    role: Role


AUTH_DISABLED: Final = Principal(None, Role.ADMIN)
"""Whoever asks while there is no authentication."""
ANONYMOUS: Final = Principal(None, Role.READER)
"""Whoever calls what is open to all: nobody was asked."""
