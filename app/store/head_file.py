"""HeadFile: the last acknowledged commit, kept beside a SQLite database, which shows that an older one was restored."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Final

from sqlalchemy.engine import Connection

from app.store import queries
from app.store.queries import Head
from app.store.sqlite_file import open_private, sibling

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
