"""Presence: what is known, told and logged of a database that goes away and comes back."""

from __future__ import annotations

import sqlite3
import time

import psycopg
import pytest
from psycopg import errors
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from app.store.circuit_breaker import Presence
from app.store.error_translation import unavailable
from blocklist.model.errors import UnavailableError

LOST = psycopg.OperationalError('connection to server at "10.0.0.7" failed: server closed the connection')
FULL = errors.DiskFull('could not extend file "base/5/1259": No space left on device\nHINT:  Check free disk space.')


def sqlite_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("what SQLite says")
    error.sqlite_errorcode = code
    return error


def told(presence: Presence) -> str:
    with pytest.raises(UnavailableError) as caught:
        presence.check()
    assert caught.value.retry_after == 1
    return caught.value.detail


def test_a_database_that_works_is_there() -> None:
    presence = Presence()
    presence.check()
    assert (presence.away, presence.age()) == (False, None)


def test_the_log_hears_once_that_it_goes_and_once_that_it_is_back() -> None:
    presence = Presence()
    with capture_logs() as lines:
        for _ in range(3):
            presence.failed(FULL)
            assert presence.age() == 0
        for _ in range(3):
            presence.worked()
            assert presence.age() is None
    assert [(line["log_level"], line["event"]) for line in lines] == [
        ("warning", "the database is away"),
        ("info", "the database is back"),
    ]
    assert "1259" in lines[0]["reason"]
    assert "full" in lines[0]["advice"]
    assert "\n" not in lines[0]["reason"]


def test_what_began_before_it_was_back_says_nothing_of_now() -> None:
    presence = Presence()
    assert not presence.over(time.monotonic())
    begun = time.monotonic()
    presence.failed(FULL)
    assert not presence.over(begun)
    presence.worked()
    assert presence.over(begun)
    assert not presence.over(time.monotonic())


def test_what_is_cut_off_because_it_is_away_does_not_hide_the_reason() -> None:
    presence = Presence()
    presence.failed(FULL)
    presence.failed(LOST)
    assert "full" in told(presence)


def test_what_is_found_out_later_is_told() -> None:
    presence = Presence()
    presence.failed(LOST)
    presence.failed(FULL)
    assert "full" in told(presence)


def test_clients_are_not_told_where_the_database_is() -> None:
    presence = Presence()
    with capture_logs() as lines:
        presence.failed(LOST)
    assert "10.0.0.7" in lines[0]["reason"]
    assert "10.0.0.7" not in told(presence)


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (sqlite_error(sqlite3.SQLITE_FULL), "full"),
        (sqlite_error(sqlite3.SQLITE_IOERR_SHMSIZE), "full"),
        (sqlite_error(sqlite3.SQLITE_IOERR_WRITE), "system's log"),
        (sqlite_error(sqlite3.SQLITE_READONLY_DBMOVED), "only be read"),
        (sqlite_error(sqlite3.SQLITE_CORRUPT_INDEX), "damaged"),
        (sqlite_error(sqlite3.SQLITE_BUSY_SNAPSHOT), "Somebody else"),
        (sqlite_error(sqlite3.SQLITE_CANTOPEN), "opened"),
        (sqlite_error(sqlite3.SQLITE_PROTOCOL), "what SQLite says"),
        (OperationalError("INSERT …", {}, FULL), "full"),
        (errors.ReadOnlySqlTransaction("cannot execute UPDATE"), "standby"),
        (errors.TooManyConnections("too many"), "max_connections"),
        (errors.InsufficientPrivilege("permission denied"), "right"),
        (errors.LockNotAvailable("canceling statement due to lock timeout"), "Somebody else"),
        (errors.DeadlockDetected("deadlock detected"), "deadlock detected"),
        (psycopg.OperationalError("the connection is lost"), "reached"),
        (ConnectionResetError(), "reached"),
        (TimeoutError("no answer within 2 s"), "does not answer"),
    ],
)
def test_clients_are_told_what_is_wrong(error: Exception, word: str) -> None:
    assert word in unavailable(error).detail
