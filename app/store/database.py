"""Database: where transactions run. SQLite in threads, or PostgreSQL in the event loop; the queries are the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Protocol, TypeVar

from sqlalchemy.engine import Connection

from app.store.circuit_breaker import CircuitBreaker
from blocklist.model.changes import Change

T = TypeVar("T")
Query = Callable[[Connection], T]


class Topic(StrEnum):
    """What replicas tell one another of. Each but CHANGES has a number in the table `versions`."""

    CHANGES = "changes"
    LISTENERS = "listeners"
    TOKENS = "tokens"


OnRemoteChange = Callable[[], None]
"""Called when there may be something new on a topic; it returns at once."""


class Database(Protocol):
    """Every method raises UnavailableError while it cannot be used."""

    breaker: CircuitBreaker
    replicated: bool

    async def open(self) -> None:
        """Make ready for this process. Raises SchemaError if another one serves what only one can."""

    async def close(self) -> None:
        """Wait for what is under way, and let go."""

    async def read(self, query: Query[T]) -> T:
        """Run a query that sees one moment of the database."""

    async def write(self, query: Query[T], topic: Topic | None = None) -> T:
        """Run a query in a transaction that others see whole, or not at all.

        Transactions on a topic come one after the other, and other replicas are told.
        """

    async def commit(self, changes: Sequence[Change], *, after: int, history: str) -> None:
        """Write the changes durably, all or none; none only asks whether the log is where they would follow.

        Raises queries.StaleError unless the log is at revision `after` of this history.
        """

    async def listen(self, callbacks: Mapping[Topic, OnRemoteChange]) -> None:
        """Call a topic's look whenever another replica may have something new on it, for ever."""

    async def probe(self) -> None:
        """Look whether it is there and takes changes, also while it is taken to be away."""
