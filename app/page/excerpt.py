"""Long tables: the first rows, and how many there are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Self, TypeVar

T = TypeVar("T")

MAX_ROWS: Final = 50
"""Maximum number of rows of a table that is one of several on a page."""


@dataclass(frozen=True, slots=True)
class Excerpt(Generic[T]):
    """At most MAX_ROWS rows, and the number of all."""

    rows: Sequence[T]
    total: int

    @classmethod
    def of(cls, items: Iterable[T]) -> Self:
        """The first of these."""
        found = list(items)
        return cls(found[:MAX_ROWS], len(found))

    @property
    def more(self) -> int:
        """The number of rows that are left out."""
        return self.total - len(self.rows)
