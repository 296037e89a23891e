"""Engines: how a database is opened."""

from __future__ import annotations

import sqlite3
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import URL, Engine, NullPool, create_engine, event, make_url
from sqlalchemy.engine import Connection

from app.store.urls import is_postgresql

# For each None that it binds the driver looks for an adapter, in vain, with an exception made and dropped on the way.
sqlite3.register_adapter(type(None), lambda none: none)

LOCK_TIMEOUT_SECONDS: Final = 2.0
"""How long a transaction waits for another process (a backup, the sqlite3 shell) before it fails."""
MAX_WAL_BYTES: Final = 64 * 1024 * 1024
"""What a write-ahead log that grew while somebody read a backup may keep of the disk afterwards."""


def make_blocking_engine(url: str) -> Engine:
    """An engine for what is done before or without the service: check, migrate. It blocks who uses it."""
    if not is_postgresql(url):
        return make_engine(url)
    from app.store.postgresql_connection import connect  # noqa: PLC0415 - only who uses PostgreSQL loads its driver

    return create_engine("postgresql+psycopg://", creator=lambda: connect(url), poolclass=NullPool)


def make_inspection_engine(url: str) -> Engine:
    """An engine that looks at a database without making or changing it."""
    if is_postgresql(url):
        return make_blocking_engine(url)
    path = make_url(url).database or ""
    query = {"mode": "rw", "uri": "true"}
    return create_engine(URL.create("sqlite", database=f"file:{quote(path)}", query=query), poolclass=NullPool)


def make_engine(url: str, *, readers: int = 0) -> Engine:
    """An engine for SQLite in WAL mode with a full fsync at each commit.

    With `readers` it is for reading, on so many connections; without it is the one writer: each transaction takes
    the write lock at its begin, so that what it reads first cannot change before it writes.
    """
    engine = create_engine(url, pool_size=readers or 1, max_overflow=0, connect_args={"timeout": LOCK_TIMEOUT_SECONDS})
    begin = "BEGIN" if readers else "BEGIN IMMEDIATE"

    @event.listens_for(engine, "connect")
    def _open(connection: sqlite3.Connection, _: Any) -> None:
        # Transactions are ours to begin: Python's sqlite3 would begin late, and without the write lock.
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA journal_size_limit={MAX_WAL_BYTES}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine
