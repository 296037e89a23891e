"""Creates databases of each schema, with rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
from alembic import command
from alembic.config import Config
from sqlalchemy import inspect
from sqlalchemy.engine import Connection

from app.store.database import MIGRATIONS, make_blocking_engine

ROWS: Final = Path(__file__).parent
"""`<revision>.sql`: rows written by the service with that schema, for SQLite and PostgreSQL."""
SCHEMAS: Final = sorted(path.stem for path in (MIGRATIONS / "versions").glob("*.py"))
Rows = dict[str, list[dict[str, Any]]]


def migrate_to(url: str, schema: str) -> None:
    """Migrate a database, empty or not, to a schema."""
    with _alembic(url) as config:
        command.upgrade(config, schema)


def downgrade(url: str) -> None:
    """Undo all migrations."""
    with _alembic(url) as config:
        command.downgrade(config, "base")


@contextmanager
def _alembic(url: str) -> Iterator[Config]:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    engine = make_blocking_engine(url)
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        yield config
    engine.dispose()


def create_with_rows(url: str, schema: str) -> None:
    """Migrate an empty database to a schema, and insert its rows."""
    migrate_to(url, schema)
    script = (ROWS / f"{schema}.sql").read_text(encoding="utf-8")
    engine = make_blocking_engine(url)
    with engine.begin() as connection:
        _run(connection, script)
    engine.dispose()


def read_rows(url: str) -> Rows:
    """All rows of all tables except Alembic's."""
    engine = make_blocking_engine(url)
    with engine.connect() as connection:
        names = sorted(set(inspect(connection).get_table_names()) - {"alembic_version"})
        found = {name: [dict(row) for row in _all(connection, name)] for name in names}
    engine.dispose()
    return found


def _all(connection: Connection, table: str) -> Any:
    return connection.exec_driver_sql(f"SELECT * FROM {table}").mappings()


def _run(connection: Connection, script: str) -> None:
    """With the driver itself: SQLAlchemy would parse parameters."""
    driver = connection.connection.driver_connection
    if isinstance(driver, psycopg.Connection):
        driver.execute(script.encode())
    else:
        assert isinstance(driver, sqlite3.Connection)
        for statement in _statements(script):
            driver.execute(statement)


def _statements(script: str) -> list[str]:
    """Split a script: sqlite3's executescript() would commit first."""
    found, rest = [], ""
    for line in script.splitlines(keepends=True):
        rest += line
        if sqlite3.complete_statement(rest):
            found.append(rest)
            rest = ""
    return found
