"""A commit to SQLite: statements that are compiled once, run in the writer's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import bindparam, delete, insert, not_, or_, select, update
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Connection

from app.store.queries import StaleError, log_row
from app.store.tables import blocked_nodes, changes, log_head
from blocklist.model.changes import Change, ChangeType

_LIST_COLUMNS: Final = {"id": "node_id"} | {
    column.name: column.name for column in blocked_nodes.c if column.name != "id"
}


class _PreparedStatement:
    """A statement compiled once and run by the driver. SQLAlchemy Core would double the CPU time of a small commit."""

    def __init__(self, statement: Any, parameters: Sequence[str]) -> None:
        compiled = statement.compile(dialect=sqlite.dialect(), column_keys=parameters)
        self._sql = compiled.string
        self._names = compiled.positiontup
        self._values = {name: value for name, value in compiled.params.items() if value is not None}

    def run(self, connection: Connection, **values: object) -> int:
        """Execute it; return the number of changed rows. Raises the driver's errors, not SQLAlchemy's."""
        values |= self._values
        cursor = connection.connection.cursor()
        cursor.execute(self._sql, [values[name] for name in self._names])
        return cursor.rowcount

    def run_many(self, connection: Connection, rows: Sequence[tuple[object, ...]]) -> None:
        """Execute it for each row; a row has the parameters in order."""
        connection.connection.cursor().executemany(self._sql, rows)


def _upsert_nodes() -> Any:
    """Copy new blocks from the log to the list, in order: cheaper than binding all rows again."""
    new = changes.c.revision > bindparam("since")
    rows = (
        select(*(changes.c[name] for name in _LIST_COLUMNS.values()))
        .where(new, not_(_FREES))
        .order_by(changes.c.revision)
    )
    put = sqlite.insert(blocked_nodes).from_select(list(_LIST_COLUMNS), rows)
    written = {name: put.excluded[name] for name in _LIST_COLUMNS if name != "id"}
    return put.on_conflict_do_update(index_elements=[blocked_nodes.c.id], set_=written)


_FREES = or_(*(changes.c.type == kind.value for kind in ChangeType if kind.frees))
_UPDATE_HEAD: Final = _PreparedStatement(
    update(log_head).where(log_head.c.revision == bindparam("before")).values(revision=bindparam("last")), ()
)
_INSERT_CHANGES: Final = _PreparedStatement(insert(changes), tuple(changes.c.keys()))
_UPSERT_NODES: Final = _PreparedStatement(_upsert_nodes(), ())
_DELETE_NODES: Final = _PreparedStatement(delete(blocked_nodes).where(blocked_nodes.c.id == bindparam("node_id")), ())


def commit(connection: Connection, new: Sequence[Change], after: int) -> None:
    """Append the changes to the log and update the list. Raises StaleError if they do not follow the log."""
    if _UPDATE_HEAD.run(connection, before=after, last=new[-1].revision) != 1:
        raise StaleError(f"the log is not at revision {after}")
    _INSERT_CHANGES.run_many(connection, [log_row(change) for change in new])
    _UPSERT_NODES.run(connection, since=after)
    last = {change.node.id: change for change in new}
    if freed_ids := [(node_id,) for node_id, change in last.items() if change.type.frees]:
        _DELETE_NODES.run_many(connection, freed_ids)
