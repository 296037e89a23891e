"""The database of a URL: its store, and what is done with it while no service runs."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from app.store import queries, sqlite
from app.store.schema_check import translating_driver_errors
from app.store.sql_engines import make_blocking_engine
from app.store.sqlite import SqliteStore
from app.store.sqlite_file import SqliteFile
from app.store.store import Store
from app.store.tokens import valid_token_exists
from app.store.urls import is_postgresql


def make_store(url: str, replica: str, timeout_seconds: float, clock: Callable[[], int]) -> Store:
    """The store for a database URL. `timeout_seconds` limits a transaction on PostgreSQL; `clock` returns Unix ms."""
    if not is_postgresql(url):
        return SqliteStore(url, replica)
    from app.store.postgresql import PostgresStore  # noqa: PLC0415 - loads the driver only if it is used

    return PostgresStore(url, replica, timeout_seconds, clock)


def renew_history(url: str) -> str:
    """Start a new history, and return it. Blocks. Raises SchemaError if a service uses the SQLite file."""
    new = secrets.token_hex(4)
    if is_postgresql(url):
        with translating_driver_errors(url), make_blocking_engine(url).begin() as connection:
            queries.renew_history(connection, new)
    else:
        sqlite.renew_history(url, new)
    return new


def check_not_in_use(url: str) -> None:
    """Raises SchemaError if a service uses the SQLite file."""
    if not is_postgresql(url):
        SqliteFile(url).close()


def has_valid_token(url: str, now: int) -> bool:
    """Whether there is a token that is valid `now` (Unix ms). Blocks."""
    with translating_driver_errors(url), make_blocking_engine(url).begin() as connection:
        return valid_token_exists(connection, now)
