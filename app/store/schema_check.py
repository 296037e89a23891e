"""Looking whether a database is ours, and can be served."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sqlalchemy import inspect
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from app.store.engine import make_inspection_engine
from app.store.error_translation import driver_message, operator_advice
from app.store.urls import is_postgresql, redacted, sqlite_path

MIGRATIONS: Final = Path(__file__).resolve().parents[2] / "migrations"
_ALEMBIC_TABLE: Final = "alembic_version"
_MARKER_TABLE: Final = "log_head"
"""A table that every version of the service has: other programs have the one that Alembic makes, too."""


class SchemaError(Exception):
    """The database cannot be served as it is; the message says what to do."""


def check_schema(url: str) -> None:
    """Raises SchemaError unless the database is there, is ours, can be written and has the present schema.

    A database that is refused is left as it is.
    """
    if not database_exists(url):
        raise SchemaError(f"There is no database at {url}: run `python -m app migrate` first.")
    if (current := schema_revision(url)) != latest_revision():
        what = "has no tables yet" if current is None else "is not migrated to this version"
        raise SchemaError(f"The database {redacted(url)} {what}: run `python -m app migrate` first.")
    if not is_postgresql(url):
        path = sqlite_path(url)
        if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
            raise _unusable(url, "this user may not write it, or its folder")


def database_exists(url: str) -> bool:
    """Whether there is a file; whether PostgreSQL has the database is seen when it is asked."""
    try:
        return is_postgresql(url) or sqlite_path(url).exists()
    except OSError as error:
        raise _unusable(url, str(error.strerror)) from None


def schema_revision(url: str) -> str | None:
    """The revision of the schema, None without tables. Raises SchemaError if it is not ours, or newer than us."""
    engine = make_inspection_engine(url)
    try:
        with translating_driver_errors(url), engine.connect() as connection:
            names = set(inspect(connection).get_table_names())
            # Where a migration of a new database was broken off, Alembic's table is there, and empty.
            foreign = not ({_MARKER_TABLE, _ALEMBIC_TABLE} <= names or names <= {_ALEMBIC_TABLE})
            current = None if foreign or not names else _read_revision(connection)
    finally:
        engine.dispose()
    if foreign or (current is not None and _MARKER_TABLE not in names):
        raise SchemaError(
            f"The database {redacted(url)} holds tables of another program ({', '.join(sorted(names)[:3])}): name"
            f" another {'database' if is_postgresql(url) else 'file'} in BLOCKLIST_DATABASE_URL."
        )
    if current is not None and current not in _known_revisions():
        raise SchemaError(f"The database {redacted(url)} {_NEWER}")
    return current


def latest_revision() -> str:
    """The revision of the schema that this version of the service works with."""
    return _known_revisions()[-1]


@contextmanager
def translating_driver_errors(url: str) -> Iterator[None]:
    """What the driver raises becomes a SchemaError."""
    try:
        yield
    except DBAPIError as error:
        raise _unusable(url, driver_message(error), operator_advice(error)) from None


def _read_revision(connection: Connection) -> str | None:
    return connection.exec_driver_sql(f"SELECT version_num FROM {_ALEMBIC_TABLE}").scalar()  # noqa: S608 - a name of ours


def _known_revisions() -> list[str]:
    """The revisions of the schema, by the names of their files; the last is the present one."""
    return sorted(path.name.partition("_")[0] for path in (MIGRATIONS / "versions").glob("[0-9]*_*.py"))


_NEWER: Final = "was written by a newer version of this service: start that version, or restore a backup."


def _unusable(url: str, why: str, what_to_do: str | None = None) -> SchemaError:
    if what_to_do is None:
        what_to_do = (
            "Check BLOCKLIST_DATABASE_URL, and that the server runs and lets this user in."
            if is_postgresql(url)
            else "Check that the path is right and may be written."
        )
    return SchemaError(f"The database {redacted(url)} cannot be used: {why.rstrip('.')}. {what_to_do}")
