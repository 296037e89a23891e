"""PostgreSQL: psycopg on the event loop, for any number of replicas.

While it is away nobody waits for it: the first who meets that says so, all others are refused at once until `probe`
finds it again.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import psycopg
import structlog
from sqlalchemy import func, select
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from app.store import postgresql_commit
from app.store.circuit_breaker import CircuitBreaker
from app.store.database import OnRemoteChange, Query, Topic
from app.store.error_translation import driver_message, to_unavailable
from app.store.notifications import Notifications
from app.store.postgresql_connection import abort, connect_async, deadline, driver_connection
from app.store.queries import PROBE_STATEMENTS
from app.store.topic_versions import bump
from blocklist.model.changes import Change
from blocklist.model.errors import UnavailableError

log = structlog.get_logger(__name__)
T = TypeVar("T")
POOL_SIZE: Final = 5
"""Of a replica, beside the one that commits and the one that listens."""
READ_TIMEOUT_SECONDS: Final = 30.0
"""How long a look into a long log may take; a database that is away is noticed by others before."""


class PostgresqlDatabase:
    """See Database. Belongs to the event loop; commits are made one at a time. `seconds` bounds a transaction."""

    replicated = True

    def __init__(self, url: str, replica: str, timeout_seconds: float) -> None:
        self.breaker = CircuitBreaker()
        self._url = url
        self._replica = replica
        self._timeout_seconds = timeout_seconds
        self._engine = create_async_engine(
            "postgresql+psycopg://",
            async_creator=lambda: connect_async(url),
            pool_size=POOL_SIZE,
            max_overflow=0,
            pool_timeout=timeout_seconds,
        )
        # A query that asks twice must see the same moment: a compaction between would look like a gap.
        self._read_engine = self._engine.execution_options(isolation_level="REPEATABLE READ")
        self._committer: psycopg.AsyncConnection | None = None
        self._in_flight: set[psycopg.AsyncConnection] = set()

    async def open(self) -> None:
        """See Database: any number may serve it."""

    async def close(self) -> None:
        """See Database."""
        await self._drop_committer()
        await self._engine.dispose()

    async def connect(self) -> psycopg.AsyncConnection:
        """A connection of one's own, that commits by itself."""
        return await connect_async(self._url, autocommit=True)

    async def read(self, query: Query[T]) -> T:
        """See Database."""
        return await self._run(self._read_engine, query, READ_TIMEOUT_SECONDS)

    async def write(self, query: Query[T], topic: Topic | None = None) -> T:
        """See Database."""
        return await self._run(
            self._engine, query if topic is None else self._on_topic(topic, query), self._timeout_seconds
        )

    def _on_topic(self, topic: Topic, query: Query[T]) -> Query[T]:
        def run(connection: Connection) -> T:
            bump(connection, topic)
            result = query(connection)
            connection.execute(select(func.pg_notify(postgresql_commit.CHANNEL, f"{topic} {self._replica}")))
            return result

        return run

    async def commit(self, changes: Sequence[Change], *, after: int, history: str) -> None:
        """See Database."""
        async with self._translating_errors():
            try:
                connection = self._committer = self._committer or await self.connect()
                with deadline(self._timeout_seconds, connection):
                    if changes:
                        note = f"changes {self._replica}"
                        await postgresql_commit.commit(connection, changes, after=after, history=history, note=note)
                    else:
                        await postgresql_commit.check_head(connection, after=after, history=history)
            except (psycopg.Error, OSError):
                await self._drop_committer()
                raise

    async def listen(self, callbacks: Mapping[Topic, OnRemoteChange]) -> None:
        """See Database."""
        await Notifications(self.connect, self.trip, self._replica, self._timeout_seconds).listen(callbacks)

    async def probe(self) -> None:
        """See Database: with a connection of its own, as those in the pool may hang."""
        async with self._translating_errors(probing=True):
            connection = await self.connect()
            try:
                with deadline(self._timeout_seconds, connection):
                    await connection.execute("; ".join(PROBE_STATEMENTS))
            finally:
                await connection.close()
            # What was connected before may hang, or find out only when it is used.
            await self._drop_committer()
            await self._engine.dispose()

    async def _run(self, engine: AsyncEngine, query: Query[T], seconds: float) -> T:
        async with (
            self._translating_errors(),
            engine.connect() as connection,
            self._with_deadline(seconds, connection),
            connection.begin(),
        ):
            return await connection.run_sync(query)

    @asynccontextmanager
    async def _with_deadline(self, seconds: float, connection: AsyncConnection) -> AsyncIterator[None]:
        driver = driver_connection(await connection.get_raw_connection())
        self._in_flight.add(driver)
        try:
            with deadline(seconds, driver):
                yield
        finally:
            self._in_flight.discard(driver)

    @asynccontextmanager
    async def _translating_errors(self, *, probing: bool = False) -> AsyncIterator[None]:
        """What the driver says becomes UnavailableError, and is known to all from then on."""
        if not probing:
            self.breaker.check()
        started_at = time.monotonic()
        try:
            yield
        except PoolTimeoutError:
            raise UnavailableError("The database has too much to do; try again.", retry_after=1) from None
        except (psycopg.Error, DBAPIError, OSError) as error:
            if _is_outage(error):
                self.trip(error, started_at)
            else:
                log.warning("the database refused a statement", reason=driver_message(error))
            raise to_unavailable(error) from error
        if probing or not self.breaker.is_open:
            # While it is away only a probe brings it back: what was under way before proves nothing.
            self.breaker.record_success()

    def trip(self, error: Exception, started_at: float) -> None:
        """It is away, as is seen by what `begun` then: whoever still waits for it is told now."""
        if self.breaker.is_stale_failure(started_at):
            return
        self.breaker.record_failure(error)
        for connection in self._in_flight:
            abort(connection)
        if self._committer is not None:
            abort(self._committer)

    async def _drop_committer(self) -> None:
        connection, self._committer = self._committer, None
        if connection is not None:
            abort(connection)
            await connection.close()


def _is_outage(error: Exception) -> bool:
    """Whether it is the database that fails, and not one statement."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    failures = psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError, OSError
    return isinstance(cause, failures) or (isinstance(error, DBAPIError) and error.connection_invalidated)
