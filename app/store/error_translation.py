"""Translates errors of the database drivers: what is wrong, and what the operator can do."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from typing import Final

from sqlalchemy.exc import DBAPIError

from blocklist.model.errors import UnavailableError

_DISK_FULL: Final = "The disk of the database is full: free space on it. Until then changes are rejected."
_DISK_ERROR: Final = "The disk of the database reports errors: check whether it is full, and the system log."
DAMAGED: Final = "The database is damaged: restore a backup."
_LOCKED: Final = "The database is locked by another program (a backup, a shell, a long query); try again."
_LOGIN_REFUSED: Final = "The database rejects the login: check user, password and host in the URL, and pg_hba.conf."
_TOO_MANY_CONNECTIONS: Final = "The database has no free connection: raise its max_connections, or run fewer replicas."
_READ_ONLY: Final = "The database is read-only: it is a standby, or set to read-only."
_GIVE_ACCESS: Final = "give the user of the service write access to its file and folder."
_STARTING: Final = "The database is starting or stopping; try again."

_SQLITE: Final[Mapping[int, str]] = {
    sqlite3.SQLITE_FULL: _DISK_FULL,
    sqlite3.SQLITE_IOERR: _DISK_ERROR,
    sqlite3.SQLITE_IOERR_SHMSIZE: _DISK_FULL,
    sqlite3.SQLITE_CORRUPT: DAMAGED,
    sqlite3.SQLITE_NOTADB: DAMAGED,
    sqlite3.SQLITE_CONSTRAINT: DAMAGED,
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_READONLY: f"The database is read-only: {_GIVE_ACCESS}",
    sqlite3.SQLITE_CANTOPEN: f"The database cannot be opened: {_GIVE_ACCESS}",
}
LOCK_NOT_AVAILABLE: Final = "55P03"
"""SQLSTATE of a statement that waited for a lock longer than lock_timeout."""
_POSTGRESQL: Final[Mapping[str, str]] = {
    "25006": _READ_ONLY,
    "28000": _LOGIN_REFUSED,
    "28P01": _LOGIN_REFUSED,
    "42501": "The database user lacks a privilege: make it the owner of the database and its tables.",
    "42P01": "A table of the database is missing: restore a backup.",
    "53100": _DISK_FULL,
    "53300": _TOO_MANY_CONNECTIONS,
    LOCK_NOT_AVAILABLE: _LOCKED,
    "57014": _LOCKED,
    "57P03": _STARTING,
    "58030": _DISK_ERROR,
    "XX001": DAMAGED,
    "XX002": DAMAGED,
}
_CONNECTION_ERRORS: Final = (
    (re.compile(r"password|pg_hba\.conf|role \".*\" (does not exist|is not permitted)"), _LOGIN_REFUSED),
    (re.compile(r"database \".*\" does not exist"), "The database does not exist: create it with CREATE DATABASE."),
    (re.compile("too many (clients|connections)|connection slots"), _TOO_MANY_CONNECTIONS),
    (re.compile("its encoding is"), "Create a database with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0."),
    (re.compile("session is read-only|hot standby mode"), _READ_ONLY),
    (re.compile("starting up|shutting down|not yet accepting|recovery"), _STARTING),
)
"""Errors at connecting: libpq passes on only the message of the server. Patterns for messages in English."""


class LockedError(UnavailableError):
    """Somebody holds a lock on the table. The database works, and what is in the table cannot change either."""


class DatabaseFileError(Exception):
    """The file in use was removed, replaced or overwritten. The message is for clients, and says what to do."""


def driver_message(error: BaseException) -> str:
    """The driver's message on one line. For the log only: it may contain hosts and users."""
    cause = _driver_error(error)
    return " ".join(str(cause).split()) or type(cause).__name__


def sqlite_code(error: BaseException) -> int | None:
    """SQLite's extended error code; None if it is not an error of SQLite."""
    code: int | None = getattr(_driver_error(error), "sqlite_errorcode", None)
    return code


def sqlstate(error: BaseException) -> str | None:
    """PostgreSQL's error code (SQLSTATE); None if the error does not come from the server."""
    state: str | None = getattr(_driver_error(error), "sqlstate", None)
    return state


def operator_advice(error: BaseException) -> str | None:
    """What is wrong and what to do; None for an unknown error."""
    if isinstance(error, DatabaseFileError):
        return str(error)
    if (code := sqlite_code(error)) is not None:
        # The low byte is the primary code.
        return _SQLITE.get(code) or _SQLITE.get(code & 0xFF)
    if (state := sqlstate(error)) is not None:
        return _POSTGRESQL.get(state)
    words = driver_message(error)
    return next((sentence for pattern, sentence in _CONNECTION_ERRORS if pattern.search(words)), None)


def to_unavailable(error: BaseException) -> UnavailableError:
    """The error that clients get."""
    if sqlstate(error) == LOCK_NOT_AVAILABLE:
        return LockedError(_LOCKED, retry_after=1)
    return UnavailableError(operator_advice(error) or _fallback_message(error), retry_after=1)


def _fallback_message(error: BaseException) -> str:
    if isinstance(_driver_error(error), sqlite3.Error) or sqlstate(error) is not None:
        return f"The database is unavailable ({driver_message(error)}); try again."
    if isinstance(error, TimeoutError):
        return "The database does not respond; try again."
    return "The database cannot be reached; try again."


def _driver_error(error: BaseException) -> BaseException:
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
