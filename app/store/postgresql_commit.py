"""A commit to PostgreSQL: one statement, so that no lock is held between round trips."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg
from sqlalchemy import ARRAY, Text, bindparam, cast, delete, func, insert, not_, or_, select, true, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql.psycopg import dialect

from app.store.queries import StaleError, log_row
from app.store.tables import blocked_nodes, changes, log_head
from blocklist.model.changes import Change, ChangeType

CHANNEL: Final = "blocklist"
_COLUMNS: Final = tuple(changes.c.keys())
_LIST_COLUMNS: Final = {"id": "node_id"} | {
    column.name: column.name for column in blocked_nodes.c if column.name != "id"
}


def _statement() -> Any:
    """Advances the head of the log if it is at revision `after`; otherwise `new` is empty, and nothing is written."""
    head = (
        update(log_head)
        .where(log_head.c.revision == bindparam("after"), log_head.c.history == bindparam("history"))
        .values(revision=bindparam("last"))
        .returning(log_head.c.revision)
        .cte("head")
    )
    arrays = [cast(bindparam(name, type_=Text), ARRAY(changes.c[name].type)) for name in _COLUMNS]
    rows = func.unnest(*arrays).table_valued(*_COLUMNS).render_derived(name="rows")
    new = select(*(rows.c[name] for name in _COLUMNS)).select_from(rows.join(head, true())).cte("new")
    logged = insert(changes).from_select(list(_COLUMNS), select(new)).cte("logged")
    latest = select(new).ext(postgresql.distinct_on(new.c.node_id))
    last = latest.order_by(new.c.node_id, new.c.revision.desc()).cte("last")
    frees = or_(*(last.c.type == kind.value for kind in ChangeType if kind.frees))
    blocks = select(*(last.c[name] for name in _LIST_COLUMNS.values())).where(not_(frees))
    put = postgresql.insert(blocked_nodes).from_select(list(_LIST_COLUMNS), blocks)
    listed = put.on_conflict_do_update(
        index_elements=[blocked_nodes.c.id], set_={name: put.excluded[name] for name in _LIST_COLUMNS if name != "id"}
    ).cte("listed")
    freed_ids = select(last.c.node_id).where(frees)
    freed = delete(blocked_nodes).where(blocked_nodes.c.id.in_(freed_ids)).cte("freed")
    notify = func.pg_notify(CHANNEL, bindparam("note", type_=Text))
    return select(notify).select_from(head).add_cte(logged, listed, freed)


_compiled = _statement().compile(dialect=dialect())  # type: ignore[no-untyped-call]
SQL: Final = str(_compiled)
_CONSTANTS: Final = {name: value for name, value in _compiled.params.items() if value is not None}


async def commit(
    connection: psycopg.AsyncConnection, new: Sequence[Change], *, after: int, history: str, note: str
) -> None:
    """Write the changes; the connection must have autocommit. Raises StaleError if they do not follow the log."""
    columns = dict(zip(_COLUMNS, map(_array, zip(*map(log_row, new), strict=True)), strict=True))
    parameters = {**_CONSTANTS, **columns, "after": after, "history": history, "last": new[-1].revision, "note": note}
    cursor = await connection.execute(SQL, parameters)
    if cursor.rowcount != 1:
        raise StaleError(f"the log is not at revision {after}")


async def notify(connection: psycopg.AsyncConnection, note: str) -> None:
    """Send a notification without a change."""
    await connection.execute("SELECT pg_notify(%s, %s)", (CHANNEL, note))


def _array(values: Sequence[str | int | None]) -> str:
    """A column as an array literal of PostgreSQL: the driver's own conversion would double the time of a commit."""
    if values.count(values[0]) == len(values):  # true for most columns of most commits
        return "{" + ",".join([_element(values[0])] * len(values)) + "}"
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: str | int | None) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return "NULL" if value is None else str(value)


async def check_head(connection: psycopg.AsyncConnection, *, after: int, history: str) -> None:
    """Raises StaleError unless the log is at revision `after` of this history."""
    cursor = await connection.execute("SELECT history, revision FROM log_head")
    if await cursor.fetchone() != (history, after):
        raise StaleError(f"the log is not at revision {after}")
