"""The store in SQLite: one writer and some readers, in threads of their own so that the event loop never blocks."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import secrets
import sqlite3
import stat
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from enum import IntEnum
from errno import EACCES, EAGAIN, ELOOP
from pathlib import Path
from threading import Lock
from typing import Any, Final, Self, TypeVar

import structlog
from sqlalchemy import Table, bindparam, delete, insert, not_, select, update
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from app.store import queries
from app.store.database import (
    DAMAGED,
    DatabaseFileError,
    SchemaError,
    make_engine,
    sqlite_code,
    sqlite_path,
    to_unavailable,
    translating_driver_errors,
)
from app.store.queries import PROBE_STATEMENTS, Head, LogTail, StaleError, Topic, log_row, log_tail
from app.store.store import MAX_TAIL, OnRemoteChange, Query, Store
from app.store.tables import (
    LIST_COLUMNS,
    CommitRows,
    automatic_blocks,
    blocked_nodes,
    changes,
    commit_rows,
    dismissals,
    frees_node,
    log_head,
    replace_rows,
)
from blocklist.model.changes import Change
from blocklist.model.evidence import NO_BLOCKS, BlockRows

log = structlog.get_logger(__name__)

T = TypeVar("T")
READERS: Final = 2
_DATABASE_ERRORS: Final = (DBAPIError, sqlite3.Error, DatabaseFileError)


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
        self._writer_thread = ThreadPoolExecutor(1, "store-writer")
        self._reader_threads = ThreadPoolExecutor(READERS, "store-reader")

    async def prepare(self) -> None:
        """Lock the file, and start a new history if it lacks acknowledged commits."""
        self._file = self._open_files.enter_context(SqliteFile(self._url))
        self._file.make_private()
        self._head_file = self._open_files.enter_context(closing(HeadFile(self._file.path)))
        await self._compare_with_head_file()

    async def close(self) -> None:
        self._writer_thread.shutdown()
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

    async def commit(
        self, changes: Sequence[Change], *, after: int, history: str, blocks: BlockRows = NO_BLOCKS
    ) -> None:
        if changes:
            await self._run_in_writer(lambda: self._commit(changes, after, history, blocks))
        else:
            self._check_available()  # No other process could have written.

    async def tail(self, since: int) -> LogTail:
        return await self.read(lambda connection: log_tail(connection, since, MAX_TAIL))

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
            result = await asyncio.get_running_loop().run_in_executor(self._writer_thread, function)
        except _DATABASE_ERRORS as error:
            self.breaker.record_failure(error)
            raise to_unavailable(error) from error
        self.breaker.record_success()
        return result

    def _commit(self, changes: Sequence[Change], after: int, history: str, blocks: BlockRows) -> None:
        rows = commit_rows(changes, blocks)
        self._transaction(lambda connection: _write_changes(connection, changes, after, rows))
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
    new = changes.c.revision > bindparam("since"), not_(frees_node(changes.c.type))
    rows = select(*(changes.c[name] for name in LIST_COLUMNS.values())).where(*new).order_by(changes.c.revision)
    return replace_rows(sqlite.insert(blocked_nodes).from_select(list(LIST_COLUMNS), rows))


_UPDATE_HEAD: Final = _PreparedStatement(
    update(log_head).where(log_head.c.revision == bindparam("before")).values(revision=bindparam("last")), ()
)
_INSERT_CHANGES: Final = _PreparedStatement(insert(changes), tuple(changes.c.keys()))
_UPSERT_NODES: Final = _PreparedStatement(_upsert_nodes(), ())
_DELETE_NODES: Final = _PreparedStatement(delete(blocked_nodes).where(blocked_nodes.c.id == bindparam("node_id")), ())


def _upsert(table: Table) -> _PreparedStatement:
    return _PreparedStatement(replace_rows(sqlite.insert(table)), tuple(table.c.keys()))


_UPSERT_BLOCKS: Final = _upsert(automatic_blocks)
_UPSERT_DISMISSALS: Final = _upsert(dismissals)
_DELETE_BLOCKS: Final = _PreparedStatement(
    delete(automatic_blocks).where(automatic_blocks.c.revision == bindparam("removed")), ()
)


def _write_changes(connection: Connection, new: Sequence[Change], after: int, automatic: CommitRows) -> None:
    """Append the changes to the log and update the list. Raises StaleError if they do not follow the log."""
    if _UPDATE_HEAD.run(connection, before=after, last=new[-1].revision) != 1:
        raise StaleError(f"the log is not at revision {after}")
    _INSERT_CHANGES.run_many(connection, [log_row(change) for change in new])
    _UPSERT_NODES.run(connection, since=after)
    last = {change.node.id: change for change in new}
    if freed_ids := [(node_id,) for node_id, change in last.items() if change.type.frees]:
        _DELETE_NODES.run_many(connection, freed_ids)
    if automatic:
        _UPSERT_BLOCKS.run_many(connection, automatic.blocks)
        _DELETE_BLOCKS.run_many(connection, [(revision,) for revision in automatic.removed])
        _UPSERT_DISMISSALS.run_many(connection, automatic.dismissals)


# The SQLite file, which no other service may use at the same time, and the head file beside it.

PRIVATE: Final = 0o600
"""The database has the secrets of listeners. SQLite gives its own files the permissions of the database."""
_SUFFIXES: Final = ("", "-wal", "-shm", ".head")
_HEADER: Final = struct.Struct(">16sH10xI")
"""Of a database: magic, page size, number of pages (https://www.sqlite.org/fileformat.html#the_database_header)."""
_MAGIC: Final = b"SQLite format 3\0"
_LARGEST_PAGE: Final = 1, 65536
"""How the header has the largest page size, which does not fit into its field, and that size in bytes."""
_LOG_MAGIC: Final = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
"""A log without it is ignored when the database is opened."""
_LOCKED_BYTE: Final = 0
"""SQLite itself locks only bytes from 1 GiB on."""


_Identity = tuple[int, int]
"""Device and inode: what a file is, whatever its name."""


class SqliteFile:
    """Open and locked until `close`. `path` is the real file, without symbolic links; `write_ahead_log` is beside it.

    Close SQLite's connections first: closing any descriptor of a file drops the POSIX locks of the whole process on it.
    """

    def __init__(self, url: str) -> None:
        """Creates the file if there is none. Raises SchemaError if it cannot be used, or another service uses it."""
        self._url = url
        self._named_path = sqlite_path(url)
        self.path = Path(os.path.realpath(self._named_path))
        self.write_ahead_log = sibling(self.path, "-wal")
        self._descriptors: list[int] = []
        self._size = 0  # of the database, when it was last found whole, in bytes
        self._log_lock = Lock()  # the descriptor is closed in the writer's thread, and used in others
        self._log: int | None = None
        try:
            self._lock()
        except BaseException:
            self.close()
            raise
        self._identity = _identity(os.fstat(self._descriptors[0]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.on_log_closed()
        while self._descriptors:
            os.close(self._descriptors.pop())

    def make_private(self) -> None:
        """Take the access of other users away from files that have it, and log that."""
        for path in (sibling(self.path, suffix) for suffix in _SUFFIXES):
            with suppress(FileNotFoundError):
                if stat.S_IMODE(path.stat().st_mode) & ~PRIVATE:
                    _make_private(path)

    def check(self) -> None:
        """Raises DatabaseFileError unless the next start will find the files that are in use: the database and its log.

        SQLite would notice neither: it works on open files, and keeps pages in memory.
        """
        # The real file, too, in case it was renamed and a link left: the next start would look beside the new name.
        if _identity_of(self._named_path) != self._identity or _identity_of_entry(self.path) != self._identity:
            raise DatabaseFileError(_removed(self._named_path))
        self._check_content()
        with self._log_lock:
            if self._log is not None:
                self._check_log(self._log)

    def on_log_opened(self) -> None:
        """The writer's connection has the write-ahead log open: from now on `check` includes it."""
        if self._log is None:
            with suppress(OSError):
                # SQLite has no locks on this file that closing the descriptor could drop.
                self._log = os.open(self.write_ahead_log, os.O_RDONLY | os.O_CLOEXEC)

    def on_log_closed(self) -> None:
        """SQLite may remove the write-ahead log, and will make a new one."""
        with self._log_lock:
            if self._log is not None:
                os.close(self._log)
                self._log = None

    def _check_content(self) -> None:
        # The size first: another thread may be moving pages from the log. The first page then tells of others that are
        # still missing, maybe because the disk is full, but no page that was there goes.
        size = os.fstat(self._descriptors[0]).st_size
        header = os.pread(self._descriptors[0], _HEADER.size, 0)
        if not header.startswith(_MAGIC) or len(header) < _HEADER.size:
            raise DatabaseFileError(DAMAGED)
        if size < self._size and size < _size_in(header):
            raise DatabaseFileError(DAMAGED)
        self._size = size

    def _check_log(self, log: int) -> None:
        if _identity_of_entry(self.write_ahead_log) != _identity(os.fstat(log)):
            raise DatabaseFileError(_removed(self.write_ahead_log))
        magic = os.pread(log, len(_LOG_MAGIC[0]), 0)
        # A checkpoint of another program may have emptied it; what follows then begins with the magic again.
        if magic and magic not in _LOG_MAGIC:
            raise DatabaseFileError(DAMAGED)

    def _lock(self) -> None:
        try:
            database = self._open(self.path)
        except FileNotFoundError:
            raise SchemaError(
                f"The database {self._url} has no folder {self.path.parent}: create it, or name another file."
            ) from None
        if os.fstat(database).st_nlink > 1:
            raise SchemaError(
                f"The database file {self.path} has a hard link, a second name through which another service could use"
                f" it unnoticed: find the names with `find {self.path.parent} -samefile {self.path}`, and remove all"
                " but one."
            )
        try:
            _lock_inode(database)
        except BlockingIOError:
            raise SchemaError(f"Another blocklist service uses the database {self._url}: stop it first.") from None

    def _open(self, path: Path) -> int:
        self._descriptors.append(open_private(path))
        return self._descriptors[-1]


def sibling(path: Path, suffix: str) -> Path:
    """The file beside the database with its name and a suffix."""
    return path.with_name(path.name + suffix)


def open_private(path: Path) -> int:
    """Open a file for reading and writing; a new one only its user may read.

    Raises SchemaError, also for a symbolic link: the service would write to the file that it names. Raises
    FileNotFoundError if there is no folder.
    """
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno == ELOOP:
            raise SchemaError(f"The file {path} is a symbolic link: remove it.") from None
        raise SchemaError(
            f"The file {path} is not writable ({error.strerror}): make the user who runs the service its owner."
        ) from None


def _lock_inode(descriptor: int) -> None:
    """Lock the file itself, whatever its name. Raises BlockingIOError if another process has it locked.

    With an open file description lock: closing other descriptors does not drop it, unlike a POSIX lock, and as it
    covers a byte that SQLite does not lock, it never conflicts with SQLite, not even where `flock` locks all bytes
    (NFS). File systems without such locks do not protect the file.
    """
    request = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, _LOCKED_BYTE, 1, 0)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, request)
    except OSError as error:
        if error.errno in {EACCES, EAGAIN}:
            raise BlockingIOError from None


def _make_private(path: Path) -> None:
    try:
        path.chmod(PRIVATE)
    except PermissionError:
        log.warning("a database file is readable by other users, and belongs to one", file=str(path))
    else:
        log.warning("a database file was readable by other users; it no longer is", file=str(path))


def _removed(path: Path) -> str:
    return (
        f"The database file {path.name} was removed or replaced while the service used it: put the same file back, or"
        " stop the service, restore a backup, and restart it."
    )


def _identity(status: os.stat_result) -> _Identity:
    return status.st_dev, status.st_ino


def _size_in(header: bytes) -> int:
    """The size of a database in bytes, according to its header."""
    _, page_size, pages = _HEADER.unpack(header)
    code, largest = _LARGEST_PAGE
    return int(largest if page_size == code else page_size) * int(pages)


def _identity_of(path: Path) -> _Identity | None:
    """None if there is no such file, or it cannot be reached."""
    try:
        return _identity(os.stat(path))  # noqa: PTH116 - faster, and this runs twice in each transaction
    except OSError:
        return None


def _identity_of_entry(path: Path) -> _Identity | None:
    """As `_identity_of`, but of a symbolic link itself."""
    try:
        return _identity(os.lstat(path))
    except OSError:
        return None


# The head file: the last acknowledged commit, which shows that an older database was restored.

_LINE: Final = re.compile(rb"([0-9a-f]{8}) ([0-9]{1,16}) *\n", re.ASCII)
_LENGTH: Final = 32


class Mark(IntEnum):
    """SQLite's `user_version`, which is in the database and its backups: whether the head file counts."""

    NO_HEAD_FILE = 0
    """The service has not used the database yet."""
    HEAD_FILE = 1
    """A head file belongs to it. Without one, the database was copied to here: it may be a backup."""
    NEW_HISTORY = 2
    """The operator began a new history: the head file is out of date."""


class HeadFile:
    """`<database>.head`. Raises SchemaError if it cannot be opened."""

    def __init__(self, database: Path) -> None:
        self._descriptor = open_private(sibling(database, ".head"))

    def read(self) -> Head | None:
        """None if it is new or unreadable."""
        match = _LINE.fullmatch(os.pread(self._descriptor, _LENGTH, 0))
        return None if match is None else Head(match[1].decode(), int(match[2]))

    def write(self, head: Head) -> None:
        """Replace it; call this after the commit, and before that is acknowledged.

        Without fsync: after a power failure it may be behind the database, but never ahead of it. An error only means
        that it is behind.
        """
        line = f"{head.history} {head.revision}".ljust(_LENGTH - 1) + "\n"
        with suppress(OSError):
            os.pwrite(self._descriptor, line.encode(), 0)

    def sync(self) -> None:
        with suppress(OSError):
            os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def read_mark(connection: Connection) -> int:
    return int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())


def write_mark(connection: Connection, mark: Mark) -> None:
    """Set it, in the transaction of the connection."""
    connection.exec_driver_sql(f"PRAGMA user_version = {mark.value}")


def lacks_commits(connection: Connection, recorded: Head | None) -> bool:
    """Whether the database lacks acknowledged commits, or may do so. `recorded`: what the head file says."""
    mark = read_mark(connection)
    if mark == Mark.NEW_HISTORY:
        return False
    if recorded is None:
        return mark == Mark.HEAD_FILE
    head = queries.head(connection)
    return head.history != recorded.history or head.revision < recorded.revision
