"""CircuitBreaker: its state, its messages to clients, and its log lines."""

from __future__ import annotations

import sqlite3
import time

import psycopg
import pytest
from psycopg import errors
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from app.store.database import CircuitBreaker, to_unavailable
from app.store.postgresql import PostgresStore
from blocklist.model.errors import UnavailableError
from tests.integration.process import free_port

pytestmark = pytest.mark.anyio

LOST = psycopg.OperationalError('connection to server at "10.0.0.7" failed: server closed the connection')
FULL = errors.DiskFull('could not extend file "base/5/1259": No space left on device\nHINT:  Check free disk space.')


def sqlite_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("what SQLite says")
    error.sqlite_errorcode = code
    return error


def client_message(breaker: CircuitBreaker) -> str:
    with pytest.raises(UnavailableError) as caught:
        breaker.check()
    assert caught.value.retry_after == 1
    return caught.value.detail


def test_the_breaker_is_closed_at_first() -> None:
    breaker = CircuitBreaker()
    breaker.check()
    assert (breaker.is_open, breaker.open_seconds()) == (False, None)


def test_opening_and_closing_are_logged_once_each() -> None:
    breaker = CircuitBreaker()
    with capture_logs() as lines:
        for _ in range(3):
            breaker.record_failure(FULL)
            assert breaker.open_seconds() == 0
        for _ in range(3):
            breaker.record_success()
            assert breaker.open_seconds() is None
    assert [(line["log_level"], line["event"]) for line in lines] == [
        ("warning", "the database is unavailable"),
        ("info", "the database is available again"),
    ]
    assert "1259" in lines[0]["reason"]
    assert "full" in lines[0]["advice"]
    assert "\n" not in lines[0]["reason"]


def test_another_cause_that_is_found_during_an_outage_is_logged_once() -> None:
    breaker = CircuitBreaker()
    with capture_logs() as lines:
        for error in (LOST, LOST, FULL, FULL, LOST):
            breaker.record_failure(error)
    assert [line["event"] for line in lines] == ["the database is unavailable", "the database is still unavailable"]
    assert "full" in lines[1]["advice"]


def test_a_failure_of_an_operation_started_before_recovery_is_stale() -> None:
    breaker = CircuitBreaker()
    assert not breaker.is_stale_failure(time.monotonic())
    started_at = time.monotonic()
    breaker.record_failure(FULL)
    assert not breaker.is_stale_failure(started_at)
    breaker.record_success()
    assert breaker.is_stale_failure(started_at)
    assert not breaker.is_stale_failure(time.monotonic())


def test_what_was_read_is_outdated_from_a_failure_until_it_was_read_again() -> None:
    breaker = CircuitBreaker()
    assert breaker.outdated_seconds() is None
    breaker.record_failure(FULL)
    breaker.record_up_to_date(time.monotonic())
    breaker.record_success()
    assert breaker.outdated_seconds() == 0
    breaker.record_up_to_date(time.monotonic())
    assert breaker.outdated_seconds() is None


def test_what_was_read_is_outdated_after_a_pause_until_it_was_read_again_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    breaker = CircuitBreaker()
    breaker.record_poll()
    now += 0.9
    assert breaker.outdated_seconds() is None
    now += 5
    breaker.record_poll()
    assert breaker.outdated_seconds() == 5
    breaker.record_up_to_date(read_at=now - 5)
    assert breaker.outdated_seconds() is None
    now += 3
    breaker.record_up_to_date(read_at=now - 2)
    assert breaker.outdated_seconds() == 2, "the pause was while everything was read again"


def test_a_later_connection_error_does_not_hide_the_reason() -> None:
    breaker = CircuitBreaker()
    breaker.record_failure(FULL)
    breaker.record_failure(LOST)
    assert "full" in client_message(breaker)


def test_a_later_error_with_advice_replaces_the_reason() -> None:
    breaker = CircuitBreaker()
    breaker.record_failure(LOST)
    breaker.record_failure(FULL)
    assert "full" in client_message(breaker)


def test_the_database_host_is_logged_but_not_sent_to_clients() -> None:
    breaker = CircuitBreaker()
    with capture_logs() as lines:
        breaker.record_failure(LOST)
    assert "10.0.0.7" in lines[0]["reason"]
    assert "10.0.0.7" not in client_message(breaker)


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (sqlite_error(sqlite3.SQLITE_FULL), "full"),
        (sqlite_error(sqlite3.SQLITE_IOERR_SHMSIZE), "full"),
        (sqlite_error(sqlite3.SQLITE_IOERR_WRITE), "system log"),
        (sqlite_error(sqlite3.SQLITE_READONLY_DBMOVED), "read-only"),
        (sqlite_error(sqlite3.SQLITE_CORRUPT_INDEX), "damaged"),
        (sqlite_error(sqlite3.SQLITE_BUSY_SNAPSHOT), "locked"),
        (sqlite_error(sqlite3.SQLITE_CANTOPEN), "opened"),
        (sqlite_error(sqlite3.SQLITE_PROTOCOL), "what SQLite says"),
        (OperationalError("INSERT …", {}, FULL), "full"),
        (errors.ReadOnlySqlTransaction("cannot execute UPDATE"), "standby"),
        (errors.TooManyConnections("too many"), "max_connections"),
        (errors.InsufficientPrivilege("permission denied"), "privilege"),
        (errors.LockNotAvailable("canceling statement due to lock timeout"), "locked"),
        (errors.DeadlockDetected("deadlock detected"), "deadlock detected"),
        (psycopg.OperationalError("the connection is lost"), "reached"),
        (ConnectionResetError(), "reached"),
        (TimeoutError("no answer within 2 s"), "does not respond"),
    ],
)
def test_clients_get_the_reason(error: Exception, word: str) -> None:
    assert word in to_unavailable(error).detail


async def test_an_operation_on_postgresql_that_fails_opens_the_breaker() -> None:
    store = PostgresStore(lambda: f"postgresql://u:p@127.0.0.1:{free_port()}/blocklist", "replica", 5.0, lambda: 0)
    with pytest.raises(UnavailableError):
        await store.tail(0)
    assert store.breaker.is_open
    await store.close()
