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
from app.store.circuit_breaker import Presence
from app.store.database import Look, Query, Topic
from app.store.error_translation import said, unavailable
from app.store.notifications import Notifications
from app.store.postgresql_connection import at_most, connect_async, driver_of, sever
from app.store.queries import TRIAL
from app.store.topic_versions import advance
from blocklist.model.changes import Change
from blocklist.model.errors import UnavailableError

log = structlog.get_logger(__name__)
T = TypeVar("T")
CONNECTIONS: Final = 5
"""Of a replica, beside the one that commits and the one that listens."""
READ_SECONDS: Final = 30.0
"""How long a look into a long log may take; a database that is away is noticed by others before."""


class PostgresqlDatabase:
    """See Database. Belongs to the event loop; commits are made one at a time. `seconds` bounds a transaction."""

    replicated = True

    def __init__(self, url: str, replica: str, seconds: float) -> None:
        self.presence = Presence()
        self._url = url
        self._replica = replica
        self._seconds = seconds
        self._engine = create_async_engine(
            "postgresql+psycopg://",
            async_creator=lambda: connect_async(url),
            pool_size=CONNECTIONS,
            max_overflow=0,
            pool_timeout=seconds,
        )
        # A query that asks twice must see the same moment: a compaction between would look like a gap.
        self._reader = self._engine.execution_options(isolation_level="REPEATABLE READ")
        self._committer: psycopg.AsyncConnection | None = None
        self._busy: set[psycopg.AsyncConnection] = set()

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
        return await self._run(self._reader, query, READ_SECONDS)

    async def write(self, query: Query[T], topic: Topic | None = None) -> T:
        """See Database."""
        return await self._run(self._engine, query if topic is None else self._on(topic, query), self._seconds)

    def _on(self, topic: Topic, query: Query[T]) -> Query[T]:
        def run(connection: Connection) -> T:
            advance(connection, topic)
            result = query(connection)
            connection.execute(select(func.pg_notify(postgresql_commit.CHANNEL, f"{topic} {self._replica}")))
            return result

        return run

    async def commit(self, changes: Sequence[Change], *, after: int, history: str) -> None:
        """See Database."""
        async with self._told():
            try:
                connection = self._committer = self._committer or await self.connect()
                with at_most(self._seconds, connection):
                    if changes:
                        note = f"changes {self._replica}"
                        await postgresql_commit.commit(connection, changes, after=after, history=history, note=note)
                    else:
                        await postgresql_commit.check_head(connection, after=after, history=history)
            except (psycopg.Error, OSError):
                await self._drop_committer()
                raise

    async def listen(self, looks: Mapping[Topic, Look]) -> None:
        """See Database."""
        await Notifications(self.connect, self.lose, self._replica, self._seconds).listen(looks)

    async def probe(self) -> None:
        """See Database: with a connection of its own, as those in the pool may hang."""
        async with self._told(probing=True):
            connection = await self.connect()
            try:
                with at_most(self._seconds, connection):
                    await connection.execute("; ".join(TRIAL))
            finally:
                await connection.close()
            # What was connected before may hang, or find out only when it is used.
            await self._drop_committer()
            await self._engine.dispose()

    async def _run(self, engine: AsyncEngine, query: Query[T], seconds: float) -> T:
        async with (
            self._told(),
            engine.connect() as connection,
            self._at_most(seconds, connection),
            connection.begin(),
        ):
            return await connection.run_sync(query)

    @asynccontextmanager
    async def _at_most(self, seconds: float, connection: AsyncConnection) -> AsyncIterator[None]:
        driver = driver_of(await connection.get_raw_connection())
        self._busy.add(driver)
        try:
            with at_most(seconds, driver):
                yield
        finally:
            self._busy.discard(driver)

    @asynccontextmanager
    async def _told(self, *, probing: bool = False) -> AsyncIterator[None]:
        """What the driver says becomes UnavailableError, and is known to all from then on."""
        if not probing:
            self.presence.check()
        begun = time.monotonic()
        try:
            yield
        except PoolTimeoutError:
            raise UnavailableError("The database has too much to do; try again.", retry_after=1) from None
        except (psycopg.Error, DBAPIError, OSError) as error:
            if _away(error):
                self.lose(error, begun)
            else:
                log.warning("the database refused a statement", reason=said(error))
            raise unavailable(error) from error
        if probing or not self.presence.away:
            # While it is away only a probe brings it back: what was under way before proves nothing.
            self.presence.worked()

    def lose(self, error: Exception, begun: float) -> None:
        """It is away, as is seen by what `begun` then: whoever still waits for it is told now."""
        if self.presence.over(begun):
            return
        self.presence.failed(error)
        for connection in self._busy:
            sever(connection)
        if self._committer is not None:
            sever(self._committer)

    async def _drop_committer(self) -> None:
        connection, self._committer = self._committer, None
        if connection is not None:
            sever(connection)
            await connection.close()


def _away(error: Exception) -> bool:
    """Whether it is the database that fails, and not one statement."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    failures = psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError, OSError
    return isinstance(cause, failures) or (isinstance(error, DBAPIError) and error.connection_invalidated)
