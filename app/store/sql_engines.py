"""SQLAlchemy engines for SQLite, and for use before the start of the service."""

from __future__ import annotations

import sqlite3
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import URL, Engine, NullPool, create_engine, event, make_url
from sqlalchemy.engine import Connection

from app.store.urls import is_postgresql

# Without an adapter sqlite3 searches one for each None that it binds, at the cost of an exception.
sqlite3.register_adapter(type(None), lambda none: none)

LOCK_TIMEOUT_SECONDS: Final = 2.0
"""How long a transaction waits for the lock of another process (a backup, the sqlite3 shell)."""
MAX_WAL_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of the write-ahead log after it has grown, for example during a backup."""


def _decode(text: bytes) -> str | bytes:
    """A text; bytes if it is not UTF-8, so that its row cannot be read, but the others can."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text


def make_blocking_engine(url: str) -> Engine:
    """A blocking engine for use before or without the service, such as checks and migrations."""
    if not is_postgresql(url):
        return make_engine(url)
    from app.store.postgresql import connect  # noqa: PLC0415 - loads the driver only for PostgreSQL

    return create_engine("postgresql+psycopg://", creator=lambda: connect(url), poolclass=NullPool)


def make_inspection_engine(url: str) -> Engine:
    """A blocking engine that never creates the SQLite file."""
    if is_postgresql(url):
        return make_blocking_engine(url)
    path = make_url(url).database or ""
    query = {"mode": "rw", "uri": "true"}
    return create_engine(URL.create("sqlite", database=f"file:{quote(path)}", query=query), poolclass=NullPool)


def make_engine(url: str, *, readers: int = 0) -> Engine:
    """An engine for SQLite in WAL mode with a full fsync at each commit.

    `readers` is the maximum number of connections of an engine for reading. Without it the engine is for the writer:
    a transaction takes the write lock when it begins, so that what it reads cannot change before it writes.
    """
    engine = create_engine(url, pool_size=readers or 1, max_overflow=0, connect_args={"timeout": LOCK_TIMEOUT_SECONDS})
    begin = "BEGIN" if readers else "BEGIN IMMEDIATE"

    @event.listens_for(engine, "connect")
    def _open(connection: sqlite3.Connection, _: Any) -> None:
        # BEGIN is sent below: sqlite3 would send it late, and without the write lock.
        connection.isolation_level = None
        connection.text_factory = _decode
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA journal_size_limit={MAX_WAL_BYTES}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine
