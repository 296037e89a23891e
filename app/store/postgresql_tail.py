"""Following the log on PostgreSQL: one statement, and so one round trip, on the connection that also commits."""

from __future__ import annotations

from typing import Any, Final

import psycopg
from sqlalchemy import bindparam, select, true
from sqlalchemy.dialects.postgresql.psycopg import dialect

from app.store.queries import LogTail, change_from_values
from app.store.tables import changes, log_head


def _statement() -> Any:
    """The head of the log, once for each change from revision `since` on: a single row without one if there is none."""
    rows = select(changes).where(changes.c.revision >= bindparam("since")).order_by(changes.c.revision)
    tail = rows.limit(bindparam("rows")).subquery("tail")
    joined = log_head.join(tail, true(), isouter=True)
    return select(log_head.c.history, log_head.c.revision, *tail.c).select_from(joined).order_by(tail.c.revision)


_SQL: Final = str(_statement().compile(dialect=dialect()))  # type: ignore[no-untyped-call]


async def log_tail(connection: psycopg.AsyncConnection, since: int, limit: int) -> LogTail:
    """See queries.log_tail. SQLAlchemy's pool and a REPEATABLE READ transaction would cost four round trips."""
    cursor = connection.cursor(binary=True)
    await cursor.execute(_SQL, {"since": since, "rows": limit + 1})
    rows = await cursor.fetchall()
    history, revision, *_ = rows[0]
    found = [change_from_values(*values) for _, _, *values in rows if values[0] is not None]
    return LogTail.beginning_at(since, found, history=history, revision=revision, limit=limit)
