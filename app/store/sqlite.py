"""SQLite: one writer and some readers, in threads of their own so that the event loop never blocks."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Final, TypeVar

import structlog
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from app.store import queries, sqlite_commit
from app.store.circuit_breaker import CircuitBreaker
from app.store.database import OnRemoteChange, Query, Topic
from app.store.error_translation import DatabaseFileError, sqlite_code, to_unavailable
from app.store.head_file import HeadFile, Mark, lacks_commits, read_mark, write_mark
from app.store.queries import PROBE_STATEMENTS, Head, LogTail, log_tail
from app.store.schema_check import translating_driver_errors
from app.store.sql_engines import make_engine
from app.store.sqlite_file import SqliteFile
from app.store.writer_thread import WriterThread
from blocklist.model.changes import Change

log = structlog.get_logger(__name__)

T = TypeVar("T")
READERS: Final = 2
_DATABASE_ERRORS: Final = (DBAPIError, sqlite3.Error, DatabaseFileError)


class SqliteDatabase:
    """See DatabaseBackend. A file is used by one process: two would not notice each other's changes."""

    replicated = False

    def __init__(self, url: str) -> None:
        self.breaker = CircuitBreaker()
        self.clock_offset = None
        self._url = url
        self._file: SqliteFile
        self._head_file: HeadFile
        self._open_files = ExitStack()
        self._write_engine = make_engine(url)
        self._read_engine = make_engine(url, readers=READERS)
        self._connection: Connection | None = None
        self._writer_thread = WriterThread("store-writer")
        self._reader_threads = ThreadPoolExecutor(READERS, "store-reader")

    async def open(self) -> None:
        """See DatabaseBackend. Starts a new history if the file lacks acknowledged commits."""
        self._file = self._open_files.enter_context(SqliteFile(self._url))
        self._file.make_private()
        self._head_file = self._open_files.enter_context(closing(HeadFile(self._file.path)))
        await self._compare_with_head_file()

    async def close(self) -> None:
        """See DatabaseBackend."""
        self._writer_thread.close()
        self._reader_threads.shutdown()
        if self._connection is not None:
            self._connection.close()
        self._write_engine.dispose()
        self._read_engine.dispose()
        self._open_files.close()

    async def read(self, query: Query[T]) -> T:
        """See DatabaseBackend."""

        def transaction() -> T:
            self._file.check()
            with self._read_engine.begin() as connection:
                return query(connection)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._reader_threads, transaction)
        except DatabaseFileError as error:
            self.breaker.record_failure(error)
            raise to_unavailable(error) from error
        except _DATABASE_ERRORS as error:
            raise to_unavailable(error) from error

    async def write(self, query: Query[T], topic: Topic | None = None) -> T:  # noqa: ARG002 - no other replicas
        """See DatabaseBackend."""
        return await self._run_in_writer(lambda: self._transaction(query))

    async def commit(self, changes: Sequence[Change], *, after: int, history: str) -> None:
        """See DatabaseBackend. No other process writes, so without changes only the availability is checked."""
        if changes:
            await self._run_in_writer(lambda: self._commit(changes, after, history))
        else:
            self._check_available()

    async def tail(self, since: int, limit: int) -> LogTail:
        """See DatabaseBackend."""
        return await self.read(lambda connection: log_tail(connection, since, limit))

    async def announce_contention(self) -> None:
        """See DatabaseBackend. There are no other replicas."""

    async def listen(self, callbacks: Mapping[Topic, OnRemoteChange]) -> None:
        """See DatabaseBackend. There are no other replicas."""

    async def probe(self) -> None:
        """See DatabaseBackend."""
        await self.write(_probe)

    async def _compare_with_head_file(self) -> None:
        recorded = self._head_file.read()
        lacking, mark = await self.read(lambda connection: (lacks_commits(connection, recorded), read_mark(connection)))
        if lacking:
            log.warning("the database was restored, or copied from elsewhere: starting a new history", was=recorded)
            await self.write(lambda connection: queries.renew_history(connection, secrets.token_hex(4)))
        if mark != Mark.HEAD_FILE:
            await self.write(lambda connection: write_mark(connection, Mark.HEAD_FILE))
        if (head := await self.read(queries.head)) != recorded:
            self._head_file.write(head)
            self._head_file.sync()

    def _check_available(self) -> None:
        self.breaker.check()
        try:
            self._file.check()
        except DatabaseFileError as error:
            self.breaker.record_failure(error)
            raise to_unavailable(error) from error

    async def _run_in_writer(self, function: Callable[[], T]) -> T:
        try:
            result = await self._writer_thread.run(function)
        except _DATABASE_ERRORS as error:
            self.breaker.record_failure(error)
            raise to_unavailable(error) from error
        self.breaker.record_success()
        return result

    def _commit(self, changes: Sequence[Change], after: int, history: str) -> None:
        self._transaction(lambda connection: sqlite_commit.commit(connection, changes, after))
        self._head_file.write(Head(history, changes[-1].revision))

    def _transaction(self, query: Query[T]) -> T:
        # Afterwards, too: what is acknowledged must be in the file that the next start will open.
        self._file.check()
        result = self._run_or_make_room(query)
        self._file.check()
        return result

    def _run_or_make_room(self, query: Query[T]) -> T:
        try:
            return self._run(query)
        except _DATABASE_ERRORS as error:
            if sqlite_code(error) != sqlite3.SQLITE_FULL:
                raise
            self._checkpoint()
            return self._run(query)

    def _run(self, query: Query[T]) -> T:
        with self._write_connection() as connection, connection.begin():
            result = query(connection)
        self._file.on_log_opened()
        return result

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
            self._file.on_log_closed()
            self._connection.close()
            self._connection = None
            raise


def _probe(connection: Connection) -> None:
    for statement in PROBE_STATEMENTS:
        connection.exec_driver_sql(statement)


def renew_history(url: str, history: str) -> None:
    """Start this history. Blocks. Raises SchemaError if a service uses the file."""
    with SqliteFile(url):
        engine = make_engine(url)
        try:
            with translating_driver_errors(url), engine.begin() as connection:
                queries.renew_history(connection, history)
                write_mark(connection, Mark.NEW_HISTORY)
        finally:
            engine.dispose()
