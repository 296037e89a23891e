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

from app.store.engine import make_inspector
from app.store.error_translation import advice, said
from app.store.urls import is_postgresql, path_of, shown

MIGRATIONS: Final = Path(__file__).resolve().parents[2] / "migrations"
_VERSIONS: Final = "alembic_version"
_OURS: Final = "log_head"
"""A table that every version of the service has: other programs have the one that Alembic makes, too."""


class SchemaError(Exception):
    """The database cannot be served as it is; the message says what to do."""


def check(url: str) -> None:
    """Raises SchemaError unless the database is there, is ours, can be written and has the present schema.

    A database that is refused is left as it is.
    """
    if not exists(url):
        raise SchemaError(f"There is no database at {url}: run `python -m app migrate` first.")
    if (present := version(url)) != newest():
        what = "has no tables yet" if present is None else "is not migrated to this version"
        raise SchemaError(f"The database {shown(url)} {what}: run `python -m app migrate` first.")
    if not is_postgresql(url):
        path = path_of(url)
        if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
            raise _unusable(url, "this user may not write it, or its folder")


def exists(url: str) -> bool:
    """Whether there is a file; whether PostgreSQL has the database is seen when it is asked."""
    try:
        return is_postgresql(url) or path_of(url).exists()
    except OSError as error:
        raise _unusable(url, str(error.strerror)) from None


def version(url: str) -> str | None:
    """The revision of the schema, None without tables. Raises SchemaError if it is not ours, or newer than us."""
    engine = make_inspector(url)
    try:
        with usable(url), engine.connect() as connection:
            names = set(inspect(connection).get_table_names())
            # Where a migration of a new database was broken off, Alembic's table is there, and empty.
            foreign = not ({_OURS, _VERSIONS} <= names or names <= {_VERSIONS})
            present = None if foreign or not names else _version(connection)
    finally:
        engine.dispose()
    if foreign or (present is not None and _OURS not in names):
        raise SchemaError(
            f"The database {shown(url)} holds tables of another program ({', '.join(sorted(names)[:3])}): name another"
            f" {'database' if is_postgresql(url) else 'file'} in BLOCKLIST_DATABASE_URL."
        )
    if present is not None and present not in _known():
        raise SchemaError(f"The database {shown(url)} {_NEWER}")
    return present


def newest() -> str:
    """The revision of the schema that this version of the service works with."""
    return _known()[-1]


@contextmanager
def usable(url: str) -> Iterator[None]:
    """What the driver raises becomes a SchemaError."""
    try:
        yield
    except DBAPIError as error:
        raise _unusable(url, said(error), advice(error)) from None


def _version(connection: Connection) -> str | None:
    return connection.exec_driver_sql(f"SELECT version_num FROM {_VERSIONS}").scalar()  # noqa: S608 - a name of ours


def _known() -> list[str]:
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
    return SchemaError(f"The database {shown(url)} cannot be used: {why.rstrip('.')}. {what_to_do}")
