"""The database of a URL: engines, checks of its schema, migration, its store, its errors, CircuitBreaker."""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import structlog
from sqlalchemy import URL, Engine, NullPool, create_engine, event, inspect, make_url
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, OperationalError

from app.store import queries
from app.store.tables import metadata
from app.store.tokens import valid_token_exists
from blocklist.model.errors import UnavailableError

if TYPE_CHECKING:
    from app.store.store import Store

log = structlog.get_logger(__name__)

# Database URLs: validation, and a form without credentials for messages.

_POSTGRESQL: Final = ("postgresql://", "postgres://")
_PORTS: Final = re.compile("[0-9,]*", re.ASCII)


def is_postgresql(url: str) -> bool:
    """Whether a URL names a PostgreSQL database, in the form of libpq; otherwise it names a SQLite file."""
    return url.startswith(_POSTGRESQL)


def sqlite_path(url: str) -> Path:
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


def check_renewed(before: str, url: str) -> None:
    """Raises ValueError if another database is named, or anything but user and password has changed."""
    from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415

    check_url(url)
    parts = [
        {**conninfo_to_dict(each), "user": None, "password": None} for each in (before, url) if is_postgresql(each)
    ]
    if parts[1:] != parts[:1]:
        raise ValueError("more than user and password has changed in the URL: restart the service for that")


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
    postgresql.begin_transactions(engine, stall_seconds=postgresql.ADMIN_STALL_SECONDS)
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
    if not _serves(current := schema_revision(url)):
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
    if current is not None and current not in _known_revisions() and not _serves(current):
        raise SchemaError(f"The database {redacted(url)} {_UNRELEASED if current.isdigit() else _NEWER}")
    if _serves(current) and not _has_columns(connection):
        raise SchemaError(f"The database {redacted(url)} {_UNRELEASED}")
    return current


def _serves(revision: str | None) -> bool:
    """Whether this version works with a database of this revision: its own, or a later one that only added to it."""
    latest = latest_revision()
    if revision is None or revision == latest:
        return revision == latest
    ours, found = _REVISION.fullmatch(latest), _REVISION.fullmatch(revision)
    return bool(ours and found and ours["series"] == found["series"] and revision > latest)


def _has_columns(connection: Connection) -> bool:
    """Whether the database has all columns of this version, and no other one that it would have to write.

    Until version 0.1.0 the first migration changes with the code, under the same name.
    """
    inspector = inspect(connection)
    for table in metadata.tables.values():
        if not inspector.has_table(table.name):
            return False
        found = {column["name"]: column for column in inspector.get_columns(table.name)}
        others = [column for name, column in found.items() if name not in table.columns]
        if not found.keys() >= set(table.columns.keys()):
            return False
        if any(not column["nullable"] and column["default"] is None for column in others):
            return False
    return True


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
    return sorted(path.stem for path in (MIGRATIONS / "versions").glob("*_*.py"))


_REVISION: Final = re.compile("(?P<series>v[0-9]+_)?[0-9]{4}_[a-z0-9_]+")
"""The names of migrations. Those of a series only add tables and optional columns, as all do within a minor version.
One that does more begins a series, such as `v2_0001_…`: an older version refuses its database."""
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


def migrate(url: str) -> None:
    """Create the tables of a new database, or upgrade an older one. Blocks. Raises SchemaError.

    The previous version of the service may use a PostgreSQL database meanwhile, but not a SQLite file.
    """
    if database_exists(url) and _serves(schema_revision(url)):
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
            # Another replica may have migrated it meanwhile, also one of a newer version.
            if not _serves(_revision_in(connection, url)):
                _upgrade(connection)
    except OperationalError as error:
        if sqlstate(error) != LOCK_NOT_AVAILABLE:
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


def make_store(
    url: str,
    replica: str,
    timeout_seconds: float,
    clock: Callable[[], int],
    current_url: Callable[[], str] | None = None,
) -> Store:
    """The store for a database URL. `timeout_seconds` limits a transaction on PostgreSQL; `clock` returns Unix ms.

    `current_url` is the URL for a new connection to PostgreSQL, which may have another password by then.
    """
    if is_postgresql(url):
        from app.store.postgresql import PostgresStore  # noqa: PLC0415 - loads the driver only if it is used

        return PostgresStore(current_url or (lambda: url), replica, timeout_seconds, clock)
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


# Translates errors of the database drivers: what is wrong, and what the operator can do.

_DISK_FULL: Final = "The disk of the database is full: free space on it. Until then changes are rejected."
_DISK_ERROR: Final = "The disk of the database reports errors: check whether it is full, and the system log."
DAMAGED: Final = "The database is damaged: restore a backup."
_LOCKED: Final = "The database is locked by another program (a backup, a shell, a long query); try again."
_LOGIN_REFUSED: Final = "The database rejects the login: check user, password and host in the URL, and pg_hba.conf."
_TOO_MANY_CONNECTIONS: Final = (
    "The database has no free connection: raise its max_connections, or the CONNECTION LIMIT of the role or database,"
    " or run fewer replicas."
)
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
STALLED: Final = "25P03"
"""SQLSTATE of a transaction that was idle for longer than idle_in_transaction_session_timeout."""
_POSTGRESQL_STATES: Final[Mapping[str, str]] = {
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
        return _POSTGRESQL_STATES.get(state)
    words = driver_message(error)
    return next((sentence for pattern, sentence in _CONNECTION_ERRORS if pattern.search(words)), None)


def to_unavailable(error: BaseException) -> UnavailableError:
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
        elif (advice := operator_advice(error)) not in {None, self._reason}:
            self._reason = advice
            log.warning("the database is still unavailable", reason=driver_message(error), advice=advice)

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
