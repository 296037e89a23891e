"""Bringing a database to the present schema."""

from __future__ import annotations

import time
from typing import Final

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import OperationalError

from app.store.engine import make_start_engine
from app.store.error_translation import state_of
from app.store.schema_check import MIGRATIONS, SchemaError, exists, newest, usable, version
from app.store.sqlite import take
from app.store.urls import is_postgresql, shown

MIGRATING: Final = 0x626C6F636B
"""The advisory lock of who migrates a PostgreSQL database: replicas that start together do it one after the other."""
_LOCK_SECONDS: Final = 0.3
"""How long a migration waits for a table, and rests between two tries: meanwhile others wait for it."""
_PATIENCE_SECONDS: Final = 60.0
_LOCK_NOT_AVAILABLE: Final = "55P03"


def migrate(url: str) -> None:
    """Create the tables of a new database, or bring an older one up to date; blocks. Raises SchemaError.

    A PostgreSQL database may be served meanwhile, by the version before; a SQLite file may not.
    """
    if exists(url) and version(url) == newest():
        return
    engine = make_start_engine(url)
    try:
        with usable(url):
            if is_postgresql(url):
                _migrate_postgresql(url, engine)
            else:
                with take(url), engine.begin() as connection:
                    _upgrade(connection)
    finally:
        engine.dispose()


def _migrate_postgresql(url: str, engine: Engine) -> None:
    with engine.connect() as connection:
        connection.exec_driver_sql("SET statement_timeout = 0; SET lock_timeout = 0")
        # Of the session: each migration has a transaction of its own. Who comes second waits as long as it takes.
        connection.exec_driver_sql(f"SELECT pg_advisory_lock({MIGRATING})")
        connection.exec_driver_sql(f"SET lock_timeout = '{_LOCK_SECONDS}s'")
        connection.commit()
        version(url)  # Meanwhile a newer version of the service may have been here.
        give_up = time.monotonic() + _PATIENCE_SECONDS
        while not _upgraded(connection):
            if time.monotonic() > give_up:
                raise SchemaError(
                    f"The database {shown(url)} was not migrated: for a minute somebody's open transaction held one of"
                    " its tables (pg_stat_activity says whose). End that, and migrate again."
                )
            time.sleep(_LOCK_SECONDS)


def _upgraded(connection: Connection) -> bool:
    """Whether all migrations are done; False if somebody holds a table that the next one changes."""
    try:
        _upgrade(connection)
    except OperationalError as error:
        if state_of(error) != _LOCK_NOT_AVAILABLE:
            raise
        connection.rollback()
        return False
    return True


def _upgrade(connection: Connection) -> None:
    # Here, not above: a service that runs does without Alembic, which takes 9 MB.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
