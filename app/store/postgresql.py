"""PostgreSQL: psycopg on the event loop, for any number of replicas.

During an outage no operation waits: the first failure opens the circuit breaker, which rejects all others until `probe`
succeeds.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
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
from app.store.clock_offset import ClockOffset
from app.store.database import OnRemoteChange, Query, Topic
from app.store.error_translation import LOCK_NOT_AVAILABLE, driver_message, sqlstate, to_unavailable
from app.store.notifications import Notifications
from app.store.postgresql_connection import LOCK_TIMEOUT_SECONDS, abort, connect_async, deadline, driver_connection
from app.store.postgresql_tail import log_tail
from app.store.queries import PROBE_STATEMENTS, LogTail, bump, record_timeline
from app.store.timeline import unrecorded_timeline
from blocklist.model.changes import Change
from blocklist.model.errors import UnavailableError

log = structlog.get_logger(__name__)
T = TypeVar("T")
POOL_SIZE: Final = 5
"""Connections of a replica, besides the one that commits and the one that listens."""
READ_TIMEOUT_SECONDS: Final = 30.0
"""Timeout of a read. Reading a long log takes long; other operations detect an outage earlier."""


class PostgresqlDatabase:
    """See DatabaseBackend. Belongs to the event loop. Only one commit runs at a time."""

    replicated = True

    def __init__(self, url: str, replica: str, timeout_seconds: float, clock: Callable[[], int]) -> None:
        self.breaker = CircuitBreaker()
        self.clock_offset = ClockOffset(clock)
        self._url = url
        self._replica = replica
        self._timeout_seconds = timeout_seconds
        # A transaction may wait for two locks, and must then fail before it looks as if the database did not answer.
        lock_timeout = min(LOCK_TIMEOUT_SECONDS, timeout_seconds / 3)
        self._engine = create_async_engine(
            "postgresql+psycopg://",
            async_creator=lambda: connect_async(url, lock_timeout=lock_timeout),
            pool_size=POOL_SIZE,
            max_overflow=0,
            pool_timeout=timeout_seconds,
        )
        # A read with several queries needs one snapshot: a compaction in between would look like a gap.
        self._read_engine = self._engine.execution_options(isolation_level="REPEATABLE READ")
        self._committer: psycopg.AsyncConnection | None = None
        self._in_flight: set[psycopg.AsyncConnection] = set()

    async def open(self) -> None:
        """See DatabaseBackend. Any number of replicas may use it."""
        async with self._translating_errors():
            await (await self.connect()).close()

    async def close(self) -> None:
        """See DatabaseBackend."""
        await self._drop_committer()
        await self._engine.dispose()

    async def connect(self) -> psycopg.AsyncConnection:
        """A new connection with autocommit, outside the pool.

        The server may have changed since the last one, so this starts a new history if its timeline has.
        """
        connection = await connect_async(self._url, autocommit=True)
        try:
            with deadline(self._timeout_seconds, connection):
                timeline = await unrecorded_timeline(connection)
            if timeline is not None:
                await self._record(timeline)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _record(self, timeline: str) -> None:
        # Connections in the pool are to the former server.
        await self._engine.dispose()
        async with (
            self._engine.connect() as connection,
            self._with_deadline(self._timeout_seconds, connection),
            connection.begin(),
        ):
            renewed = await connection.run_sync(record_timeline, timeline, secrets.token_hex(4))
        if renewed:
            # Without a replica that saw the last changes it is unknown whether some were lost.
            log.warning("the database was promoted or restored; starting a new history", timeline=timeline)

    async def read(self, query: Query[T]) -> T:
        """See DatabaseBackend."""
        return await self._run(self._read_engine, query, READ_TIMEOUT_SECONDS)

    async def write(self, query: Query[T], topic: Topic | None = None) -> T:
        """See DatabaseBackend."""
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
        """See DatabaseBackend."""
        async with self._on_committer() as connection:
            if changes:
                note = f"changes {self._replica}"
                await postgresql_commit.commit(connection, changes, after=after, history=history, note=note)
            else:
                await postgresql_commit.check_head(connection, after=after, history=history)

    async def tail(self, since: int, limit: int) -> LogTail:
        """See DatabaseBackend."""
        async with self._on_committer() as connection:
            return await log_tail(connection, since, limit)

    async def announce_contention(self) -> None:
        """See DatabaseBackend."""
        async with self._on_committer() as connection:
            await postgresql_commit.notify(connection, f"{Topic.CONTENTION} {self._replica}")

    @asynccontextmanager
    async def _on_committer(self) -> AsyncIterator[psycopg.AsyncConnection]:
        """The connection of the task that commits. It is replaced after an error."""
        async with self._translating_errors():
            try:
                connection = self._committer = self._committer or await self.connect()
                with deadline(self._timeout_seconds, connection):
                    yield connection
            except (psycopg.Error, OSError):
                await self._drop_committer()
                raise

    async def listen(self, callbacks: Mapping[Topic, OnRemoteChange]) -> None:
        """See DatabaseBackend."""
        await Notifications(
            self.connect,
            self.trip,
            self.breaker.record_poll,
            self.clock_offset,
            self._replica,
            self._timeout_seconds,
        ).listen(callbacks)

    async def probe(self) -> None:
        """See DatabaseBackend. Uses a new connection: those in the pool may hang."""
        async with self._translating_errors(probing=True):
            connection = await self.connect()
            try:
                with deadline(self._timeout_seconds, connection):
                    await connection.execute("; ".join(PROBE_STATEMENTS))
            finally:
                await connection.close()
            # Older connections may hang, or turn out to be broken only when they are used.
            await self._drop_committer()
            await self._engine.dispose()

    async def _run(self, engine: AsyncEngine, query: Query[T], seconds: float) -> T:
        async with (
            self._translating_errors(pooled=True),
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
    async def _translating_errors(self, *, probing: bool = False, pooled: bool = False) -> AsyncIterator[None]:
        """Turn errors of the driver into UnavailableError, and record failure or success in the circuit breaker.

        A lock that a transaction of the pool waits for in vain does not concern the commits of the list.
        """
        if not probing:
            self.breaker.check()
        started_at = time.monotonic()
        try:
            yield
        except PoolTimeoutError:
            raise UnavailableError("The database is overloaded; try again.", retry_after=1) from None
        except (psycopg.Error, DBAPIError, OSError) as error:
            if _is_outage(error) and not (pooled and sqlstate(error) == LOCK_NOT_AVAILABLE):
                self.trip(error, started_at)
            else:
                log.warning("the database rejected a statement", reason=driver_message(error))
            raise to_unavailable(error) from error
        if probing or not self.breaker.is_open:
            # During an outage only a probe closes the breaker: an operation from before proves nothing.
            self.breaker.record_success()

    def trip(self, error: Exception, started_at: float) -> None:
        """Open the breaker because an operation that started at `started_at` failed; abort everything in flight."""
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
    """Whether the database has failed, not only one statement."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    failures = psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError, OSError
    return isinstance(cause, failures) or (isinstance(error, DBAPIError) and error.connection_invalidated)
