"""Migrates a database to the current schema."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Final

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import OperationalError

from app.store.error_translation import sqlstate
from app.store.schema_check import (
    MIGRATIONS,
    SchemaError,
    database_exists,
    latest_revision,
    schema_revision,
    translating_driver_errors,
)
from app.store.sql_engines import make_blocking_engine
from app.store.sqlite_file import SqliteFile
from app.store.urls import is_postgresql, redacted

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
    with nullcontext() if is_postgresql(url) else SqliteFile(url), translating_driver_errors(url):
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
    with engine.connect() as connection:
        connection.exec_driver_sql("SET statement_timeout = 0; SET lock_timeout = 0")
        # A session lock, as each migration has its own transaction; other replicas wait for it without a timeout.
        connection.exec_driver_sql(f"SELECT pg_advisory_lock({MIGRATION_LOCK})")
        connection.exec_driver_sql(f"SET lock_timeout = '{_LOCK_TIMEOUT_SECONDS}s'")
        connection.commit()
        schema_revision(url)  # A newer version of the service may have migrated it meanwhile.
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not _try_upgrade(connection):
            if time.monotonic() > deadline:
                raise SchemaError(
                    f"The database {redacted(url)} was not migrated: for a minute an open transaction held one of"
                    " its tables (see pg_stat_activity). End it, and migrate again."
                )
            time.sleep(_LOCK_TIMEOUT_SECONDS)


def _try_upgrade(connection: Connection) -> bool:
    """Run the migrations; False if a table that one of them changes is locked."""
    try:
        _upgrade(connection)
    except OperationalError as error:
        if sqlstate(error) != _LOCK_NOT_AVAILABLE:
            raise
        connection.rollback()
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
