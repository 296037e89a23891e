"""Principal: who a request comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from blocklist.model.roles import Access


@dataclass(frozen=True, slots=True)
class Principal:
    """A name, where known, and what it may do."""

    name: str | None
    access: Access


ANYBODY: Final = Principal(None, Access.ADMIN)
"""Whoever asks while there is no authentication."""
STRANGER: Final = Principal(None, Access.READER)
"""Whoever calls what is open to all: nobody was asked."""
