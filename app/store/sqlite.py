"""The store in SQLite: one writer and some readers, in threads of their own so that the event loop never blocks."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, TypeVar

import structlog
from sqlalchemy import bindparam, delete, insert, not_, or_, select, update
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from app.store import queries
from app.store.error_translation import DatabaseFileError, sqlite_code, to_unavailable
from app.store.queries import PROBE_STATEMENTS, Head, LogTail, StaleError, Topic, log_row, log_tail
from app.store.schema_check import translating_driver_errors
from app.store.sql_engines import make_engine
from app.store.sqlite_file import HeadFile, Mark, SqliteFile, lacks_commits, read_mark, write_mark
from app.store.store import MAX_TAIL, OnRemoteChange, Query, Store
from app.store.tables import blocked_nodes, changes, log_head
from blocklist.model.changes import Change, ChangeType

log = structlog.get_logger(__name__)

T = TypeVar("T")
READERS: Final = 2
_DATABASE_ERRORS: Final = (DBAPIError, sqlite3.Error, DatabaseFileError)
_Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class SqliteStore(Store):
    """The store in a file. One process uses it: two would not notice each other's changes."""

    replicated = False

    def __init__(self, url: str, replica: str) -> None:
        super().__init__(replica)
        self._url = url
        self._file: SqliteFile
        self._head_file: HeadFile
        self._open_files = ExitStack()
        self._write_engine = make_engine(url)
        self._read_engine = make_engine(url, readers=READERS)
        self._connection: Connection | None = None
        self._writer_thread = WriterThread("store-writer")
        self._reader_threads = ThreadPoolExecutor(READERS, "store-reader")

    async def prepare(self) -> None:
        """Lock the file, and start a new history if it lacks acknowledged commits."""
        self._file = self._open_files.enter_context(SqliteFile(self._url))
        self._file.make_private()
        self._head_file = self._open_files.enter_context(closing(HeadFile(self._file.path)))
        await self._compare_with_head_file()

    async def close(self) -> None:
        self._writer_thread.close()
        self._reader_threads.shutdown()
        if self._connection is not None:
            self._connection.close()
        self._write_engine.dispose()
        self._read_engine.dispose()
        self._open_files.close()

    async def read(self, query: Query[T]) -> T:
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
        return await self._run_in_writer(lambda: self._transaction(query))

    async def commit(self, changes: Sequence[Change], *, after: int, history: str) -> None:
        if changes:
            await self._run_in_writer(lambda: self._commit(changes, after, history))
        else:
            self._check_available()  # No other process could have written.

    async def tail(self, since: int) -> LogTail:
        return await self.read(lambda connection: log_tail(connection, since, MAX_TAIL))

    async def announce_contention(self) -> None:
        """There are no other replicas."""

    async def listen(self, callbacks: Mapping[Topic, OnRemoteChange]) -> None:
        """There are no other replicas."""

    async def probe(self) -> None:
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
        self._transaction(lambda connection: _write_changes(connection, changes, after))
        self._head_file.write(Head(history, changes[-1].revision))

    def _transaction(self, query: Query[T]) -> T:
        # Afterwards, too: what is acknowledged must be in the file that the next start will open.
        self._file.check()
        try:
            result = self._run(query)
        except _DATABASE_ERRORS as error:
            if sqlite_code(error) != sqlite3.SQLITE_FULL:
                raise
            self._checkpoint()
            result = self._run(query)
        self._file.check()
        return result

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


# A commit: statements that are compiled once. SQLAlchemy Core would double the CPU time of a small one.

_LIST_COLUMNS: Final = {"id": "node_id"} | {
    column.name: column.name for column in blocked_nodes.c if column.name != "id"
}


class _PreparedStatement:
    """A statement compiled once and run by the driver. SQLAlchemy Core would double the CPU time of a small commit."""

    def __init__(self, statement: Any, parameters: Sequence[str]) -> None:
        compiled = statement.compile(dialect=sqlite.dialect(), column_keys=parameters)
        self._sql = compiled.string
        self._names = compiled.positiontup
        self._values = {name: value for name, value in compiled.params.items() if value is not None}

    def run(self, connection: Connection, **values: object) -> int:
        """Execute it; return the number of changed rows. Raises the driver's errors, not SQLAlchemy's."""
        values |= self._values
        cursor = connection.connection.cursor()
        cursor.execute(self._sql, [values[name] for name in self._names])
        return cursor.rowcount

    def run_many(self, connection: Connection, rows: Sequence[tuple[object, ...]]) -> None:
        """Execute it for each row; a row has the parameters in order."""
        connection.connection.cursor().executemany(self._sql, rows)


def _upsert_nodes() -> Any:
    """Copy new blocks from the log to the list, in order: cheaper than binding all rows again."""
    new = changes.c.revision > bindparam("since")
    rows = (
        select(*(changes.c[name] for name in _LIST_COLUMNS.values()))
        .where(new, not_(_FREES))
        .order_by(changes.c.revision)
    )
    put = sqlite.insert(blocked_nodes).from_select(list(_LIST_COLUMNS), rows)
    written = {name: put.excluded[name] for name in _LIST_COLUMNS if name != "id"}
    return put.on_conflict_do_update(index_elements=[blocked_nodes.c.id], set_=written)


_FREES = or_(*(changes.c.type == kind.value for kind in ChangeType if kind.frees))
_UPDATE_HEAD: Final = _PreparedStatement(
    update(log_head).where(log_head.c.revision == bindparam("before")).values(revision=bindparam("last")), ()
)
_INSERT_CHANGES: Final = _PreparedStatement(insert(changes), tuple(changes.c.keys()))
_UPSERT_NODES: Final = _PreparedStatement(_upsert_nodes(), ())
_DELETE_NODES: Final = _PreparedStatement(delete(blocked_nodes).where(blocked_nodes.c.id == bindparam("node_id")), ())


def _write_changes(connection: Connection, new: Sequence[Change], after: int) -> None:
    """Append the changes to the log and update the list. Raises StaleError if they do not follow the log."""
    if _UPDATE_HEAD.run(connection, before=after, last=new[-1].revision) != 1:
        raise StaleError(f"the log is not at revision {after}")
    _INSERT_CHANGES.run_many(connection, [log_row(change) for change in new])
    _UPSERT_NODES.run(connection, since=after)
    last = {change.node.id: change for change in new}
    if freed_ids := [(node_id,) for node_id, change in last.items() if change.type.frees]:
        _DELETE_NODES.run_many(connection, freed_ids)


class WriterThread:
    """Runs functions in the order of the calls of `run`.

    An executor of one thread would do, but needs two chained futures for each call: a fifth of the CPU time of a small
    commit.
    """

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._closed = False
        self._thread = Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    async def run(self, function: Callable[[], T]) -> T:
        """Return or raise what `function` does. Raises RuntimeError after `close`."""
        if self._closed:
            raise RuntimeError("the writer thread is closed")
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((function, done))
        return await done

    def close(self) -> None:
        """Run the queued functions, and stop. Blocks until then."""
        self._closed = True
        self._jobs.put(None)
        self._thread.join()

    def _loop(self) -> None:
        while (job := self._jobs.get()) is not None:
            _execute(*job)
            del job  # or it stays referenced until the next job


def _execute(function: Callable[[], Any], done: asyncio.Future[Any]) -> None:
    try:
        result, error = function(), None
    except BaseException as raised:
        result, error = None, raised
    # The event loop may be closed by now.
    with suppress(RuntimeError):
        done.get_loop().call_soon_threadsafe(_resolve_future, done, result, error)


def _resolve_future(done: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if done.done():  # The caller was cancelled.
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)
