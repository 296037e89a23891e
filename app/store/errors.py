"""Translates errors of the database drivers: what is wrong, and what the operator can do."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Mapping
from typing import Final

import structlog
from sqlalchemy.exc import DBAPIError

from blocklist.model.errors import UnavailableError

log = structlog.get_logger(__name__)

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
    "57014": "The database ended a statement: an administrator cancelled it, or it waited too long; try again.",
    "57P03": _STARTING,
    "58030": _DISK_ERROR,
    "XX001": DAMAGED,
    "XX002": DAMAGED,
}
_PROTOCOL_VIOLATION: Final = "08P01"
"""SQLSTATE of what a pooler itself rejects."""
_CONNECTION_ERRORS: Final = (
    (
        re.compile("statement pooling mode"),
        "The pooler is in statement mode: set its pool_mode to transaction or session.",
    ),
    (
        re.compile("unsupported startup parameter"),
        "The pooler rejects a parameter of the URL, such as `options`: leave it out, and use ALTER ROLE … SET instead.",
    ),
    (re.compile(r"password|SASL|pg_hba\.conf|role \".*\" (does not exist|is not permitted)"), _LOGIN_REFUSED),
    (re.compile(r"database \".*\" does not exist"), "The database does not exist: create it with CREATE DATABASE."),
    (re.compile("too many (clients|connections)|connection slots|no more connections allowed"), _TOO_MANY_CONNECTIONS),
    (re.compile("its encoding is"), "Create a database with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0."),
    (re.compile("session is read-only|hot standby mode"), _READ_ONLY),
    (re.compile("starting up|shutting down|not yet accepting|recovery"), _STARTING),
)
"""Errors at connecting, and of poolers: only the message says what is wrong. Patterns for messages in English."""


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
    if (state := sqlstate(error)) is not None and state != _PROTOCOL_VIOLATION:
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


# CircuitBreaker: whether the database is available, and whether what was read from it may be out of date.

MAX_POLL_GAP_SECONDS: Final = 1.0
"""A longer time since the last poll means that this process, or its connection, stood still: twice the interval."""


class CircuitBreaker:
    """Opens at the first failure, closes at the next success; logs both. Belongs to the event loop.

    What is in memory stays outdated after it closes, until everything was read again: other replicas may have written
    meanwhile. The same holds after a pause of this process, which the first read or poll after it notices.
    """

    def __init__(self) -> None:
        self._reason: str | None = None
        self._last_success = time.monotonic()
        self._closed_at = 0.0
        self._outdated_since: float | None = None
        self._polled_at: float | None = None

    @property
    def is_open(self) -> bool:
        return self._reason is not None

    def is_stale_failure(self, started_at: float) -> bool:
        """Whether the failure of an operation that started then (monotonic clock) predates the last recovery."""
        return started_at < self._closed_at

    def record_success(self) -> None:
        """A transaction succeeded: close."""
        if self.is_open:
            log.info("the database is available again", outage_seconds=self.open_seconds())
            self._closed_at = time.monotonic()
        self._reason, self._last_success = None, time.monotonic()

    def record_failure(self, error: Exception) -> None:
        """A transaction failed: open. A later error replaces the reason only if there is advice for it."""
        if self._reason is None:
            self._reason = to_unavailable(error).detail
            self._outdated_since = self._outdated_since or self._last_success
            log.warning("the database is unavailable", reason=driver_message(error), advice=self._reason)
        elif (advice := operator_advice(error)) is not None:
            self._reason = advice

    def check(self) -> None:
        """Raises UnavailableError with the reason while open."""
        if self._reason is not None:
            raise UnavailableError(self._reason, retry_after=1)

    def open_seconds(self) -> int | None:
        """Whole seconds since the last successful transaction, while open; None while closed."""
        return int(time.monotonic() - self._last_success) if self.is_open else None

    def record_poll(self) -> None:
        """The database has told what other replicas have written; from now on it must do so regularly."""
        self._notice_gap()
        self._polled_at = time.monotonic()

    def record_up_to_date(self, read_at: float) -> None:
        """Everything in memory was read again, beginning at `read_at` (monotonic clock). Does nothing while open."""
        if not self.is_open:
            self._outdated_since = None
            if self._polled_at is not None:
                self._polled_at = max(self._polled_at, read_at)

    def outdated_seconds(self) -> int | None:
        """Whole seconds since what is in memory was up to date for certain; None if it is."""
        self._notice_gap()
        return None if self._outdated_since is None else int(time.monotonic() - self._outdated_since)

    def _notice_gap(self) -> None:
        if (
            self._outdated_since is None
            and self._polled_at is not None
            and time.monotonic() - self._polled_at > MAX_POLL_GAP_SECONDS
        ):
            self._outdated_since = self._polled_at
