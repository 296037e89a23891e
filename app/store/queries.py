"""SQL: functions of a connection and values, inside somebody's transaction. Time reaches them as a parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

from sqlalchemy import bindparam, delete, insert, select, update
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Connection, Row

from app.store.schema import blocked_nodes, changes, log_head
from blocklist.changes import Change, ChangeType, Snapshot
from blocklist.node import BlockAction, BlockedNode

_NODE: Final = ("id", "action", "start_ms", "end_ms", "cause")
_LISTED: Final = (*_NODE, "created_by", "revision")
_CHANGE: Final = ("revision", "type", "at_ms", "created_by", "forced", "node_id", *_NODE[1:])


class _Prepared:
    """A statement compiled once and run by the driver: Core's own way costs a commit of one change twice the CPU."""

    def __init__(self, statement: Any, columns: Sequence[str]) -> None:
        compiled = statement.compile(dialect=sqlite.dialect(), column_keys=columns)
        self._sql = str(compiled)
        self._order: list[str] = compiled.positiontup

    def run(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> int:
        """Execute it for each of the rows, which name its parameters; how many rows it changed.

        Raises what the driver raises, not SQLAlchemy's errors.
        """
        cursor = connection.connection.cursor()
        cursor.executemany(self._sql, [tuple([row[name] for name in self._order]) for row in rows])
        return cursor.rowcount


_excluded = sqlite.insert(blocked_nodes).excluded
_upsert = _Prepared(
    sqlite.insert(blocked_nodes).on_conflict_do_update(
        index_elements=[blocked_nodes.c.id], set_={name: _excluded[name] for name in _LISTED[1:]}
    ),
    _LISTED,
)
_remove = _Prepared(delete(blocked_nodes).where(blocked_nodes.c.id == bindparam("node_id")), ())
_append = _Prepared(insert(changes), _CHANGE)
_advance = _Prepared(
    update(log_head).where(log_head.c.revision == bindparam("before")).values(revision=bindparam("after")),
    ("revision",),
)


class StaleError(Exception):
    """Somebody else has changed the list since the writer read it."""


def load(connection: Connection) -> Snapshot:
    """The whole list."""
    head = connection.execute(select(log_head)).one()
    nodes = {row.id: node_of(row, row.id) for row in connection.execute(select(blocked_nodes))}
    return Snapshot(revision=head.revision, history=head.history, nodes=nodes)


def write(connection: Connection, new: Sequence[Change]) -> None:
    """Append the changes to the log and bring the list up to them. Raises StaleError if they do not follow the log."""
    advanced = _advance.run(connection, [{"before": new[0].revision - 1, "after": new[-1].revision}])
    if advanced != 1:
        raise StaleError(f"the log is not at revision {new[0].revision - 1}")
    _append.run(connection, [_change_row(change) for change in new])
    last = {change.node.id: change for change in new}
    if blocked := [_listed_row(change) for change in last.values() if not change.type.frees]:
        _upsert.run(connection, blocked)
    if freed := [{"node_id": node_id} for node_id, change in last.items() if change.type.frees]:
        _remove.run(connection, freed)


def revision(connection: Connection) -> int:
    """The revision of the last committed change."""
    return int(connection.execute(select(log_head.c.revision)).scalar_one())


def compacted(connection: Connection) -> int:
    """The revision of the last change that is no longer in the log; 0 when all are."""
    return int(connection.execute(select(log_head.c.compacted)).scalar_one())


def last_change(connection: Connection, node_id: str) -> Change | None:
    """The last change of a node that is still in the log."""
    query = select(changes).where(changes.c.node_id == node_id).order_by(changes.c.revision.desc()).limit(1)
    row = connection.execute(query).one_or_none()
    return None if row is None else change_of(row)


def compactable(
    connection: Connection, *, keep_from: int, older_than: int, below: int, limit: int
) -> tuple[int, int] | None:
    """How many of the oldest changes go, at most `limit`, and the revision of the last of them; None if none goes.

    A change goes if its revision is below `keep_from`, or if it is older than `older_than` (Unix milliseconds) and
    its revision is below `below`.
    """
    revision, at_ms = changes.c.revision, changes.c.at_ms
    rows = connection.execute(select(revision, at_ms).order_by(revision).limit(limit)).all()
    going = list(
        takewhile(lambda row: row.revision < keep_from or (row.at_ms < older_than and row.revision < below), rows)
    )
    return (len(going), going[-1].revision) if going else None


def compact(connection: Connection, last: int) -> None:
    """Forget the changes up to revision `last`."""
    connection.execute(delete(changes).where(changes.c.revision <= last))
    connection.execute(update(log_head).values(compacted=last))


def renew_history(connection: Connection, history: str) -> None:
    """Begin a new history: revisions go on, but those who watched the old one start from a snapshot."""
    connection.execute(update(log_head).values(history=history))


def node_of(row: Row[Any], node_id: str) -> BlockedNode:
    """The node of a row of the list or the log."""
    action = BlockAction[row.action]
    return BlockedNode(id=node_id, action=action, start=row.start_ms, end=row.end_ms, cause=row.cause)


def change_of(row: Row[Any]) -> Change:
    """The change of a row of the log."""
    node = node_of(row, row.node_id)
    kind = ChangeType(row.type)
    return Change(
        revision=row.revision, type=kind, at=row.at_ms, created_by=row.created_by, forced=row.forced, node=node
    )


def _node_row(node: BlockedNode) -> dict[str, Any]:
    return {
        "id": node.id,
        "action": node.action.name,
        "start_ms": node.start,
        "end_ms": node.end,
        "cause": node.cause,
    }


def _listed_row(change: Change) -> dict[str, Any]:
    return _node_row(change.node) | {"created_by": change.created_by, "revision": change.revision}


def _change_row(change: Change) -> dict[str, Any]:
    row = _node_row(change.node)
    row["node_id"] = row.pop("id")
    return row | {
        "revision": change.revision,
        "type": change.type.value,
        "at_ms": change.at,
        "created_by": change.created_by,
        "forced": change.forced,
    }
