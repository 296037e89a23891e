"""The tables, and bringing a database up to them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, String, Table, Text, inspect, make_url
from sqlalchemy.exc import DatabaseError

from app.store.engine import make_engine, make_inspector

MIGRATIONS: Final = Path(__file__).resolve().parents[2] / "migrations"

metadata = MetaData(naming_convention={"pk": "pk_%(table_name)s", "ix": "ix_%(table_name)s_%(column_0_N_name)s"})

# SQLite counts rows itself where the primary key is an INTEGER: no second index beside the table.
_Revision = BigInteger().with_variant(Integer(), "sqlite")

log_head = Table(
    "log_head",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("history", String(8), nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("compacted", BigInteger, nullable=False),
    comment="One row. revision: of the last change; compacted: of the last change that is no longer in the log.",
)

blocked_nodes = Table(
    "blocked_nodes",
    metadata,
    Column("id", String(253), primary_key=True),
    Column("action", String(40), nullable=False),
    Column("start_ms", BigInteger, nullable=False),
    Column("end_ms", BigInteger, nullable=False),
    Column("cause", Text, nullable=False),
    Column("created_by", String(253)),
    Column("revision", BigInteger, nullable=False, server_default="0"),
    comment="The list as of log_head.revision. created_by, revision: of the last change; 0 where nobody knows.",
    sqlite_with_rowid=False,
)

changes = Table(
    "changes",
    metadata,
    Column("revision", _Revision, primary_key=True, autoincrement=False),
    Column("type", String(16), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("created_by", String(253)),
    Column("forced", Text),
    Column("node_id", String(253), nullable=False),
    Column("action", String(40), nullable=False),
    Column("start_ms", BigInteger, nullable=False),
    Column("end_ms", BigInteger, nullable=False),
    Column("cause", Text, nullable=False),
    comment="The change log: node columns are the node after the change; forced: why a limit was, null if none was.",
)
Index(None, changes.c.node_id, changes.c.revision)
Index(None, changes.c.created_by, changes.c.revision, sqlite_where=changes.c.created_by.is_not(None))

log_base = Table(
    "log_base",
    metadata,
    Column("id", String(253), primary_key=True),
    Column("action", String(40), nullable=False),
    Column("start_ms", BigInteger, nullable=False),
    Column("end_ms", BigInteger, nullable=False),
    Column("cause", Text, nullable=False),
    Column("created_by", String(253)),
    Column("revision", BigInteger, nullable=False),
    comment="The list as of log_head.compacted, on which the change log begins; columns as in blocked_nodes.",
    sqlite_with_rowid=False,
)

listeners = Table(
    "listeners",
    metadata,
    Column("id", String(253), primary_key=True),
    Column("role", String(20), nullable=False),
    Column("session", String(253), nullable=False),
    Column("former", Text, nullable=False),
    Column("callback_url", Text),
    Column("lease_ms", BigInteger, nullable=False),
    Column("acked", BigInteger),
    Column("lapsed_ms", BigInteger),
    Column("secret", String(64), nullable=False),
    Column("old_secret", String(64)),
    Column("old_secret_until_ms", BigInteger),
    Column("min_nodes", BigInteger, nullable=False, server_default="0"),
    comment="former: sessions taken over, a JSON array; acked: null before the first list; lapsed_ms: null while live.",
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(8), primary_key=True),
    Column("name", String(253), nullable=False),
    Column("role", String(16), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("created_by", String(253)),
    Column("end_ms", BigInteger, nullable=False),
    Column("revoked_ms", BigInteger),
    Column("used_ms", BigInteger),
    comment="digest: SHA-256 of the secret; used_ms: last use, up to a minute late.",
)

sessions = Table(
    "sessions",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("name", String(253)),
    Column("role", String(16), nullable=False),
    Column("credential", String(16)),
    Column("end_ms", BigInteger, nullable=False),
    comment="Of the page. digest: SHA-256 of the cookie; credential: what it ends with, null for a JWT.",
)


class SchemaError(Exception):
    """The database cannot be served as it is; the message says what to do."""


def migrate(url: str) -> None:
    """Create the tables of a new database, or bring an older one up to date. Raises SchemaError."""
    # Here, not above: a service that runs does without Alembic, which takes 9 MB.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    if path_of(url).exists():
        _inspect(url)
    engine = make_engine(url)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    try:
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except DatabaseError as error:
        raise _unusable(url, error.orig) from None
    finally:
        engine.dispose()


def check(url: str) -> None:
    """Raises SchemaError unless the database is there, is ours, can be written and has the present schema.

    A database that is refused is left as it is.
    """
    path = path_of(url)
    if not path.exists():
        raise SchemaError(f"There is no database at {url}: run `python -m app migrate` first.")
    if _inspect(url) != _known()[-1]:
        raise SchemaError(f"The database {url} is not migrated to this version: run `python -m app migrate` first.")
    if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        raise _unusable(url, "this user may not write it, or its folder")


def _inspect(url: str) -> str | None:
    """The revision of the schema, None without tables. Raises SchemaError if it is not ours, or newer than us."""
    engine = make_inspector(url)
    try:
        with engine.connect() as connection:
            names = set(inspect(connection).get_table_names())
            ours = "alembic_version" in names
            present = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() if ours else None
    except DatabaseError as error:
        raise _unusable(url, error.orig) from None
    finally:
        engine.dispose()
    if names and not ours:
        raise SchemaError(
            f"The database {url} holds tables of another program ({', '.join(sorted(names)[:3])}): name another file"
            " in BLOCKLIST_DATABASE_URL."
        )
    if present is not None and present not in _known():
        raise SchemaError(f"The database {url} {_NEWER}")
    return present


def _known() -> list[str]:
    """The revisions of the schema, by the names of their files; the last is the present one."""
    return sorted(path.name.partition("_")[0] for path in (MIGRATIONS / "versions").glob("[0-9]*_*.py"))


def path_of(url: str) -> Path:
    """The file that a database URL names."""
    return Path(make_url(url).database or "")


_NEWER: Final = "was written by a newer version of this service: start that version, or restore a backup."


def _unusable(url: str, why: object) -> SchemaError:
    return SchemaError(f"The database {url} cannot be used: {why}. Check that the path is right and may be written.")
