"""Checks before the start: whether a database belongs to this service, and can be used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sqlalchemy import inspect
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from app.store.error_translation import driver_message, operator_advice
from app.store.sql_engines import make_inspection_engine
from app.store.urls import is_postgresql, redacted, sqlite_path

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
            names = set(inspect(connection).get_table_names())
            # An interrupted first migration leaves Alembic's table, empty.
            foreign = not ({_MARKER_TABLE, _ALEMBIC_TABLE} <= names or names <= {_ALEMBIC_TABLE})
            current = None if foreign or not names else _read_revision(connection)
    finally:
        engine.dispose()
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
