"""Trouble: what a driver's error means to who runs the service, and what is to be done."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from typing import Final

from sqlalchemy.exc import DBAPIError

from blocklist.model.errors import UnavailableError

_FULL: Final = "The disk of the database is full: nothing can be changed until there is room on it."
_FAILS: Final = "The disk of the database fails: look whether it is full, and what the system's log says of it."
_DAMAGED: Final = "The database is damaged: restore a backup."
_HELD: Final = "Somebody else holds the database (a backup, a shell, a long query); try again."
_LOGIN: Final = "The database does not let this user in: check user, password and host in the URL, and pg_hba.conf."
_CONNECTIONS: Final = "The database has no connection to spare: raise its max_connections, or run fewer replicas."
_STANDBY: Final = "The database takes no changes: it is a standby, or set to read-only."
_RISING: Final = "The database starts or stops; try again."

_SQLITE: Final[Mapping[int, str]] = {
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_IOERR: _FAILS,
    sqlite3.SQLITE_IOERR_SHMSIZE: _FULL,
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_BUSY: _HELD,
    sqlite3.SQLITE_LOCKED: _HELD,
    sqlite3.SQLITE_READONLY: "The database can only be read: let the service's user write its file and its folder.",
    sqlite3.SQLITE_CANTOPEN: "The database cannot be opened: let the service's user write its file and its folder.",
}
_POSTGRESQL: Final[Mapping[str, str]] = {
    "25006": _STANDBY,
    "28000": _LOGIN,
    "28P01": _LOGIN,
    "42501": "The user of the database lacks a right: make it the owner of the database and its tables.",
    "42P01": "The database has lost a table: restore a backup.",
    "53100": _FULL,
    "53300": _CONNECTIONS,
    "55P03": _HELD,
    "57014": _HELD,
    "57P03": _RISING,
    "58030": _FAILS,
    "XX001": _DAMAGED,
    "XX002": _DAMAGED,
}
_REFUSALS: Final = (
    (re.compile(r"password|pg_hba\.conf|role \".*\" (does not exist|is not permitted)"), _LOGIN),
    (re.compile(r"database \".*\" does not exist"), "There is no such database: make it with CREATE DATABASE."),
    (re.compile("too many (clients|connections)|connection slots"), _CONNECTIONS),
    (re.compile("its encoding is"), "Make another with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0."),
    (re.compile("session is read-only|hot standby mode"), _STANDBY),
    (re.compile("starting up|shutting down|not yet accepting|recovery"), _RISING),
)
"""How a server refuses a connection: libpq hands on its words alone, here in English."""


def said(error: BaseException) -> str:
    """The driver's own words on one line: for the log, not for clients, as they name hosts and users."""
    cause = _cause(error)
    return " ".join(str(cause).split()) or type(cause).__name__


def code_of(error: BaseException) -> int | None:
    """SQLite's extended code; None where it is no error of SQLite."""
    code: int | None = getattr(_cause(error), "sqlite_errorcode", None)
    return code


def state_of(error: BaseException) -> str | None:
    """PostgreSQL's code for what it said (SQLSTATE); None where it said nothing."""
    state: str | None = getattr(_cause(error), "sqlstate", None)
    return state


def advice(error: BaseException) -> str | None:
    """What is wrong, and what to do; None where nobody foresaw it."""
    if (code := code_of(error)) is not None:
        # The low byte says of which kind it is, the others what was being done.
        return _SQLITE.get(code) or _SQLITE.get(code & 0xFF)
    if (state := state_of(error)) is not None:
        return _POSTGRESQL.get(state)
    words = said(error)
    return next((sentence for pattern, sentence in _REFUSALS if pattern.search(words)), None)


def unavailable(error: BaseException) -> UnavailableError:
    """What a client is told who comes meanwhile."""
    return UnavailableError(advice(error) or _told(error), retry_after=1)


def _told(error: BaseException) -> str:
    if isinstance(_cause(error), sqlite3.Error) or state_of(error) is not None:
        return f"The database is away ({said(error)}); try again."
    if isinstance(error, TimeoutError):
        return "The database does not answer; try again."
    return "The database cannot be reached; try again."


def _cause(error: BaseException) -> BaseException:
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
