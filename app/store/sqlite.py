"""SQLite: one writer and some readers, in threads of their own so that the event loop never blocks."""

from __future__ import annotations

import asyncio
import fcntl
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final, TypeVar

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from app.store import sqlite_commit
from app.store.circuit_breaker import CircuitBreaker
from app.store.database import OnRemoteChange, Query, Topic
from app.store.error_translation import sqlite_code, to_unavailable
from app.store.queries import PROBE_STATEMENTS
from app.store.schema_check import SchemaError
from app.store.sql_engines import make_engine
from app.store.urls import sqlite_path
from app.store.writer_thread import WriterThread
from blocklist.model.changes import Change

T = TypeVar("T")
READERS: Final = 2
_DATABASE_ERRORS: Final = (DBAPIError, sqlite3.Error)


class SqliteDatabase:
    """See DatabaseBackend. A file is used by one process: two would not notice each other's changes."""

    replicated = False

    def __init__(self, url: str) -> None:
        self.breaker = CircuitBreaker()
        self._url = url
        self._lock: IO[str] | None = None
        self._write_engine = make_engine(url)
        self._read_engine = make_engine(url, readers=READERS)
        self._connection: Connection | None = None
        self._writer_thread = WriterThread("store-writer")
        self._reader_threads = ThreadPoolExecutor(READERS, "store-reader")

    async def open(self) -> None:
        """See DatabaseBackend."""
        self._lock = lock_file(self._url)

    async def close(self) -> None:
        """See DatabaseBackend."""
        self._writer_thread.close()
        self._reader_threads.shutdown()
        if self._connection is not None:
            self._connection.close()
        self._write_engine.dispose()
        self._read_engine.dispose()
        if self._lock is not None:
            self._lock.close()

    async def read(self, query: Query[T]) -> T:
        """See DatabaseBackend."""

        def transaction() -> T:
            with self._read_engine.begin() as connection:
                return query(connection)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._reader_threads, transaction)
        except _DATABASE_ERRORS as error:
            raise to_unavailable(error) from error

    async def write(self, query: Query[T], topic: Topic | None = None) -> T:  # noqa: ARG002 - no other replicas
        """See DatabaseBackend."""
        try:
            result = await self._writer_thread.run(lambda: self._transaction(query))
        except _DATABASE_ERRORS as error:
            self.breaker.record_failure(error)
            raise to_unavailable(error) from error
        self.breaker.record_success()
        return result

    async def commit(self, changes: Sequence[Change], *, after: int, history: str) -> None:  # noqa: ARG002
        """See DatabaseBackend. No other process writes, so there is nothing to check without changes."""
        if changes:
            await self.write(lambda connection: sqlite_commit.commit(connection, changes, after))

    async def listen(self, callbacks: Mapping[Topic, OnRemoteChange]) -> None:
        """See DatabaseBackend. There are no other replicas."""

    async def probe(self) -> None:
        """See DatabaseBackend."""
        await self.write(_probe)

    def _transaction(self, query: Query[T]) -> T:
        try:
            return self._run(query)
        except _DATABASE_ERRORS as error:
            if sqlite_code(error) != sqlite3.SQLITE_FULL:
                raise
            self._checkpoint()
            return self._run(query)

    def _run(self, query: Query[T]) -> T:
        with self._write_connection() as connection, connection.begin():
            return query(connection)

    def _checkpoint(self) -> None:
        """Free space in the write-ahead log, which may fill the disk: SQLite does this only after a commit."""
        with suppress(*_DATABASE_ERRORS), self._write_connection() as connection:
            connection.connection.cursor().execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    @contextmanager
    def _write_connection(self) -> Iterator[Connection]:
        """The writer's connection, kept between transactions, and replaced after an error."""
        if self._connection is None:
            self._connection = self._write_engine.connect()
        try:
            yield self._connection
        except _DATABASE_ERRORS:
            self._connection.close()
            self._connection = None
            raise


def _probe(connection: Connection) -> None:
    for statement in PROBE_STATEMENTS:
        connection.exec_driver_sql(statement)


def lock_file(url: str) -> IO[str]:
    """Lock the file beside the database until the result is closed. Raises SchemaError if another process has it."""
    path = Path(f"{sqlite_path(url)}.lock")
    try:
        lock = path.open("w")
    except FileNotFoundError:
        raise SchemaError(f"There is no folder {path.parent}: create it, or name another file.") from None
    except OSError as error:
        raise SchemaError(
            f"The file {path} is not writable ({error.strerror}): make the user who runs the service its owner."
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise SchemaError(f"Another blocklist service uses the database {url}: stop it first.") from None
    return lock
