"""Engines: how a database is opened."""

from __future__ import annotations

import sqlite3
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import URL, Engine, NullPool, create_engine, event, make_url
from sqlalchemy.engine import Connection

BUSY_SECONDS: Final = 2.0
"""How long a transaction waits for another process (a backup, the sqlite3 shell) before it fails."""


def make_inspector(url: str) -> Engine:
    """An engine that looks at a database without making or changing it."""
    path = make_url(url).database or ""
    query = {"mode": "rw", "uri": "true"}
    return create_engine(URL.create("sqlite", database=f"file:{quote(path)}", query=query), poolclass=NullPool)


def make_engine(url: str, *, readers: int = 0) -> Engine:
    """An engine for SQLite in WAL mode with a full fsync at each commit.

    With `readers` it is for reading, on so many connections; without it is the one writer: each transaction takes
    the write lock at its begin, so that what it reads first cannot change before it writes.
    """
    engine = create_engine(url, pool_size=readers or 1, max_overflow=0, connect_args={"timeout": BUSY_SECONDS})
    begin = "BEGIN" if readers else "BEGIN IMMEDIATE"

    @event.listens_for(engine, "connect")
    def _open(connection: sqlite3.Connection, _: Any) -> None:
        # Transactions are ours to begin: Python's sqlite3 would begin late, and without the write lock.
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine
