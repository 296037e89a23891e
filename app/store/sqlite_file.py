"""The SQLite file, which no other service may use at the same time, and the head file beside it."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import struct
from contextlib import suppress
from enum import IntEnum
from errno import EACCES, EAGAIN, ELOOP
from pathlib import Path
from threading import Lock
from typing import Final, Self

import structlog
from sqlalchemy.engine import Connection

from app.store import queries
from app.store.error_translation import DAMAGED, DatabaseFileError
from app.store.queries import Head
from app.store.schema_check import SchemaError
from app.store.urls import sqlite_path

log = structlog.get_logger(__name__)


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
        """Release the locks."""
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
        """Make it durable, if the disk allows it."""
        with suppress(OSError):
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Close it."""
        os.close(self._descriptor)


def read_mark(connection: Connection) -> int:
    """The Mark of the database."""
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
