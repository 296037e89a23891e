"""The database of a URL: engines, checks of its schema, migration, and its store."""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import URL, Engine, NullPool, create_engine, event, inspect, make_url
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, OperationalError

from app.store import queries
from app.store.errors import driver_message, operator_advice, sqlstate
from app.store.store import Store
from app.store.tokens import valid_token_exists

# Database URLs: validation, and a form without credentials for messages.

_POSTGRESQL: Final = ("postgresql://", "postgres://")
_PORTS: Final = re.compile("[0-9,]*", re.ASCII)


def is_postgresql(url: str) -> bool:
    """Whether a URL names a PostgreSQL database, in the form of libpq; otherwise it names a SQLite file."""
    return url.startswith(_POSTGRESQL)


def sqlite_path(url: str) -> Path:
    """The file of a SQLite URL."""
    return Path(make_url(url).database or "")


def redacted(url: str) -> str:
    """The URL for messages: hosts, ports and database, without user and password."""
    if not is_postgresql(url):
        return url
    from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415 - loaded only for PostgreSQL

    parameters = conninfo_to_dict(url)
    hosts, ports = (str(parameters.get(name) or "").split(",") for name in ("host", "port"))
    # A single port applies to all hosts.
    addresses = zip(hosts, ports if len(ports) == len(hosts) else ports * len(hosts), strict=False)
    return f"postgresql://{','.join(_host_and_port(host, port) for host, port in addresses)}/{parameters['dbname']}"


def _host_and_port(host: str, port: str) -> str:
    host = f"[{host}]" if ":" in host else host or "localhost"
    return f"{host}:{port}" if port else host


def check_url(url: str) -> str:
    """The URL if it is valid. Raises ValueError with the expected form."""
    if is_postgresql(url):
        _check_postgresql(url)
    elif not url.startswith("sqlite:///") or len(url) == len("sqlite:///") or ":memory:" in url:
        raise ValueError(
            "give sqlite:///FILE (three slashes and a relative path, or four and an absolute one),"
            " or postgresql://USER@HOST:PORT/DATABASE"
        )
    return url


def _check_postgresql(url: str) -> None:
    from psycopg import ProgrammingError  # noqa: PLC0415
    from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415

    try:
        parameters = conninfo_to_dict(url)
    except ProgrammingError:
        parameters = None  # The message of libpq would contain the password.
    if parameters is None or _has_unescaped_password(url, str(parameters.get("port") or "")):
        raise ValueError(
            "give postgresql://USER:PASSWORD@HOST:PORT/DATABASE; in the password write %25 for %, %40 for @, %2F for /"
        )
    if not parameters.get("dbname"):
        raise ValueError("name the database: postgresql://USER@HOST:PORT/DATABASE")


def _has_unescaped_password(url: str, port: str) -> bool:
    """Whether libpq takes a part of a password that is not percent-encoded for a host, port or database."""
    place, _, name = url.partition("://")[2].partition("?")[0].partition("/")
    return place.count("@") > 1 or "@" in name or _PORTS.fullmatch(port) is None


# SQLAlchemy engines for SQLite, and for use before the start of the service.

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
    from app.store import postgresql  # noqa: PLC0415 - loads the driver only for PostgreSQL

    engine = create_engine("postgresql+psycopg://", creator=lambda: postgresql.connect(url), poolclass=NullPool)
    postgresql.begin_transactions(engine)
    return engine


def make_inspection_engine(url: str) -> Engine:
    """A blocking engine that never creates the SQLite file."""
    if is_postgresql(url):
        return make_blocking_engine(url)
    path = os.fsencode(make_url(url).database or "")  # As the file system has it, in every locale.
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


# Checks before the start: whether a database belongs to this service, and can be used.

MIGRATIONS: Final = Path(__file__).resolve().parents[2] / "migrations"
_ALEMBIC_TABLE: Final = "alembic_version"
_MARKER_TABLE: Final = "log_head"
"""A table that every version of the service has. The table of Alembic alone may belong to another program."""


class SchemaError(Exception):
    """The database cannot be used as it is; the message says what to do."""


def check_schema(url: str) -> None:
    """Raises SchemaError unless the database exists, belongs to this service, is writable and has the current schema.

    Never modifies the database.
    """
    if not database_exists(url):
        raise SchemaError(f"There is no database at {url}: run `blocklist migrate` first.")
    if (current := schema_revision(url)) != latest_revision():
        what = "has no tables yet" if current is None else "is not migrated to this version"
        raise SchemaError(f"The database {redacted(url)} {what}: run `blocklist migrate` first.")
    if not is_postgresql(url):
        path = sqlite_path(url)
        if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
            raise _unusable(url, "this user has no write access to the file or its folder")


def database_exists(url: str) -> bool:
    """Whether a SQLite file exists; always true for PostgreSQL, where connecting shows it."""
    try:
        return is_postgresql(url) or sqlite_path(url).exists()
    except OSError as error:
        raise _unusable(url, str(error.strerror)) from None


def schema_revision(url: str) -> str | None:
    """The revision of the schema, None without tables. Raises SchemaError if it is foreign or too new."""
    engine = make_inspection_engine(url)
    try:
        with translating_driver_errors(url), engine.connect() as connection:
            return _revision_in(connection, url)
    finally:
        engine.dispose()


def _revision_in(connection: Connection, url: str) -> str | None:
    """The same, of the database at this URL."""
    names = set(inspect(connection).get_table_names())
    # An interrupted first migration leaves Alembic's table, empty.
    foreign = not ({_MARKER_TABLE, _ALEMBIC_TABLE} <= names or names <= {_ALEMBIC_TABLE})
    current = None if foreign or not names else _read_revision(connection)
    if foreign or (current is not None and _MARKER_TABLE not in names):
        raise SchemaError(
            f"The database {redacted(url)} contains tables of another program ({', '.join(sorted(names)[:3])}): name"
            f" another {'database' if is_postgresql(url) else 'file'} in BLOCKLIST_DATABASE_URL."
        )
    if current is not None and current not in _known_revisions():
        raise SchemaError(f"The database {redacted(url)} {_UNRELEASED if current.isdigit() else _NEWER}")
    return current


def latest_revision() -> str:
    """The revision of the schema that this version of the service needs."""
    return _known_revisions()[-1]


@contextmanager
def translating_driver_errors(url: str) -> Iterator[None]:
    """Turn errors of the driver into SchemaError."""
    try:
        yield
    except DBAPIError as error:
        raise _unusable(url, driver_message(error), operator_advice(error)) from None


def _read_revision(connection: Connection) -> str | None:
    return connection.exec_driver_sql(f"SELECT version_num FROM {_ALEMBIC_TABLE}").scalar()  # noqa: S608 - a constant


def _known_revisions() -> list[str]:
    """All revisions of the schema, from the file names of the migrations; the last is the current one."""
    return sorted(path.stem for path in (MIGRATIONS / "versions").glob("[0-9]*_*.py"))


_NEWER: Final = "was migrated by a newer version of this service: start that version, or restore a backup."

_UNRELEASED: Final = (
    "was made by a checkout from before version 0.1.0, whose tables cannot be migrated: name another database in"
    " BLOCKLIST_DATABASE_URL, and block its nodes again."
)
"""The schemas of those checkouts had numbers without a name."""


def _unusable(url: str, why: str, what_to_do: str | None = None) -> SchemaError:
    if what_to_do is None:
        what_to_do = (
            "Check BLOCKLIST_DATABASE_URL, and that the server is running and accepts this user."
            if is_postgresql(url)
            else "Check that the path is right and writable."
        )
    return SchemaError(f"The database {redacted(url)} cannot be used: {why.rstrip('.')}. {what_to_do}")


# Migrates a database to the current schema.

MIGRATION_LOCK: Final = 0x626C6F636B
"""Key of the advisory lock on PostgreSQL: replicas that start together migrate one after another."""
_LOCK_TIMEOUT_SECONDS: Final = 0.3
"""Timeout for the lock on a table, and pause before the next attempt. Other transactions queue behind the lock."""
_TIMEOUT_SECONDS: Final = 60.0
_LOCK_NOT_AVAILABLE: Final = "55P03"


def migrate(url: str) -> None:
    """Create the tables of a new database, or upgrade an older one. Blocks. Raises SchemaError.

    The previous version of the service may use a PostgreSQL database meanwhile, but not a SQLite file.
    """
    if database_exists(url) and schema_revision(url) == latest_revision():
        return
    with sqlite_file_locked(url), translating_driver_errors(url):
        engine = make_blocking_engine(url)
        try:
            if is_postgresql(url):
                _migrate_postgresql(url, engine)
            else:
                with engine.begin() as connection:
                    _upgrade(connection)
        finally:
            engine.dispose()


def _migrate_postgresql(url: str, engine: Engine) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not _try_upgrade(url, engine):
        if time.monotonic() > deadline:
            raise SchemaError(
                f"The database {redacted(url)} was not migrated: for a minute an open transaction held one of"
                " its tables (see pg_stat_activity). End it, and migrate again."
            )
        time.sleep(_LOCK_TIMEOUT_SECONDS)


def _try_upgrade(url: str, engine: Engine) -> bool:
    """Run the migrations; False if a table that one of them changes is locked."""
    try:
        with engine.begin() as connection:
            # Until the end of the transaction; other replicas wait for it without a timeout.
            connection.exec_driver_sql("SET LOCAL lock_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0")
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT_SECONDS}s'")
            _revision_in(connection, url)  # A newer version of the service may have migrated it meanwhile.
            _upgrade(connection)
    except OperationalError as error:
        if sqlstate(error) != _LOCK_NOT_AVAILABLE:
            raise
        return False
    return True


def _upgrade(connection: Connection) -> None:
    # Imported here: a running service does not need Alembic, which takes 9 MB.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


# What is done with a database before the service runs, and its store.


def make_store(url: str, replica: str, timeout_seconds: float, clock: Callable[[], int]) -> Store:
    """The store for a database URL. `timeout_seconds` limits a transaction on PostgreSQL; `clock` returns Unix ms."""
    if is_postgresql(url):
        from app.store.postgresql import PostgresStore  # noqa: PLC0415 - loads the driver only if it is used

        return PostgresStore(url, replica, timeout_seconds, clock)
    from app.store.sqlite import SqliteStore  # noqa: PLC0415 - it imports this module

    return SqliteStore(url, replica)


def renew_history(url: str) -> str:
    """Start a new history, and return it. Blocks. Raises SchemaError if a service uses the SQLite file."""
    new = secrets.token_hex(4)
    if is_postgresql(url):
        with translating_driver_errors(url), make_blocking_engine(url).begin() as connection:
            queries.renew_history(connection, new)
    else:
        from app.store import sqlite  # noqa: PLC0415 - as above

        sqlite.renew_history(url, new)
    return new


@contextmanager
def sqlite_file_locked(url: str) -> Iterator[None]:
    """Nobody else uses the SQLite file meanwhile. Raises SchemaError if a service does. Nothing for PostgreSQL."""
    if is_postgresql(url):
        yield
        return
    from app.store.sqlite import SqliteFile  # noqa: PLC0415 - as above

    with SqliteFile(url):
        yield


def has_valid_token(url: str, now: int) -> bool:
    """Whether there is a token that is valid `now` (Unix ms). Blocks."""
    with translating_driver_errors(url), make_blocking_engine(url).begin() as connection:
        return valid_token_exists(connection, now)
