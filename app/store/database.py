"""DatabaseBackend: runs transactions. SQLite in threads, PostgreSQL in the event loop; the queries are the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Protocol, TypeVar

from sqlalchemy.engine import Connection

from app.store.circuit_breaker import CircuitBreaker
from app.store.clock_offset import ClockOffset
from app.store.queries import LogTail
from blocklist.model.changes import Change

T = TypeVar("T")
Query = Callable[[Connection], T]


class Topic(StrEnum):
    """What replicas notify each other about. LISTENERS and TOKENS have a version in the table `versions`."""

    CHANGES = "changes"
    CONTENTION = "contention"
    LISTENERS = "listeners"
    TOKENS = "tokens"


OnRemoteChange = Callable[[str | None], None]
"""Called with the replica that has written on a topic, or None if one may have; must not block."""


class DatabaseBackend(Protocol):
    """Every method raises UnavailableError if the database cannot be used."""

    breaker: CircuitBreaker

    @property
    def clock_offset(self) -> ClockOffset | None:
        """How far this clock is from the database's; None if both are the same."""

    replicated: bool

    async def open(self) -> None:
        """Prepare for use. Raises SchemaError if the database allows one process only, and another one uses it."""

    async def close(self) -> None:
        """Finish pending operations, and release the database."""

    async def read(self, query: Query[T]) -> T:
        """Run a query on a consistent snapshot of the database."""

    async def write(self, query: Query[T], topic: Topic | None = None) -> T:
        """Run a query in a read-write transaction.

        Transactions on a topic are serialized, and other replicas are notified.
        """

    async def commit(self, changes: Sequence[Change], *, after: int, history: str) -> None:
        """Write the changes durably, all or none.

        Raises queries.StaleError unless the log is at revision `after` of this history, also for no changes.
        """

    async def tail(self, since: int, limit: int) -> LogTail:
        """The end of the log from revision `since` on, with at most `limit` changes after it.

        Call it from the task that commits.
        """

    async def announce_contention(self) -> None:
        """Notify other replicas that they keep committing before this one. Call it from the task that commits."""

    async def listen(self, callbacks: Mapping[Topic, OnRemoteChange]) -> None:
        """Call a topic's callback whenever another replica may have written on it; never returns."""

    async def probe(self) -> None:
        """Check that it accepts writes, also during an outage."""
