"""SQL: functions of a connection and values, inside somebody's transaction. Time reaches them as a parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final, NamedTuple

from sqlalchemy import delete, func, select, update
from sqlalchemy.engine import Connection, Row

from app.store.tables import blocked_nodes, changes, listeners, log_head
from app.store.topic_versions import bump
from blocklist.model.changes import Change, ChangeType, Snapshot, Source
from blocklist.model.node import BlockAction, BlockedNode

_COMPACTION_LOCK: Final = 0x626C6F63
"""The advisory lock of who compacts the log in a PostgreSQL database."""


PROBE_STATEMENTS: Final = (
    (
        "INSERT INTO changes (revision, type, at_ms, node_id, action, start_ms, end_ms, cause)"  # noqa: S608
        f" VALUES (-1, '', 0, '', '', 0, 0, '{'x' * 256}')"
    ),
    "DELETE FROM changes WHERE revision = -1",
)
"""In one transaction: takes as much room as a change, and leaves none. A full disk can be read, and written a bit."""


class StaleError(Exception):
    """Somebody else has changed the list since the writer read it."""


class LastChange(NamedTuple):
    """Who changed a blocked node last, where known, and with which revision (0: nobody knows any more)."""

    created_by: str | None
    revision: int


class LoadedState(NamedTuple):
    """The list as it is in the database."""

    snapshot: Snapshot
    last_changes: Mapping[str, LastChange]


@dataclass(frozen=True, kw_only=True, slots=True)
class LogTail:
    """What the log says to who has followed it up to a revision.

    `history` and `revision` are of its head, `last` is the change at that revision, None if it is no longer (or was
    never) in the log, `changes` are the next ones.
    """

    history: str
    revision: int
    last: Change | None
    changes: Sequence[Change]

    def is_compacted_after(self, revision: int) -> bool:
        """Whether what follows `revision` is no longer in the log."""
        return self.revision > revision and (not self.changes or self.changes[0].revision != revision + 1)


def load(connection: Connection) -> LoadedState:
    """The whole list, and who changed each of its nodes last."""
    head = connection.execute(select(log_head)).one()
    rows = connection.execute(select(blocked_nodes)).all()
    nodes = {row.id: node_from_row(row, row.id) for row in rows}
    origins = {row.id: LastChange(row.created_by, row.revision) for row in rows}
    return LoadedState(Snapshot(revision=head.revision, history=head.history, nodes=nodes), origins)


def log_tail(connection: Connection, since: int, limit: int) -> LogTail:
    """What the log has from revision `since` on: at most `limit` changes after it."""
    head = connection.execute(select(log_head.c.history, log_head.c.revision)).one()
    query = select(changes).where(changes.c.revision >= since).order_by(changes.c.revision).limit(limit + 1)
    found = [change_from_row(row) for row in connection.execute(query)]
    last = found.pop(0) if found and found[0].revision == since else None
    return LogTail(history=head.history, revision=head.revision, last=last, changes=found[:limit])


def current_history(connection: Connection) -> str:
    """The present history."""
    return str(connection.execute(select(log_head.c.history)).scalar_one())


def compacted_revision(connection: Connection) -> int:
    """The revision of the last change that is no longer in the log; 0 when all are."""
    return int(connection.execute(select(log_head.c.compacted)).scalar_one())


def last_change(connection: Connection, node_id: str) -> Change | None:
    """The last change of a node that is still in the log."""
    query = select(changes).where(changes.c.node_id == node_id).order_by(changes.c.revision.desc()).limit(1)
    row = connection.execute(query).one_or_none()
    return None if row is None else change_from_row(row)


def compactable(
    connection: Connection, *, keep_from: int, older_than: int, always_keep_from: int, limit: int
) -> tuple[int, int] | None:
    """How many of the oldest changes go, at most `limit`, and the revision of the last of them; None if none goes.

    A change goes if its revision is below `keep_from`, or if it is older than `older_than` (Unix milliseconds) and
    its revision is below `below`.
    """
    revision, at_ms = changes.c.revision, changes.c.at_ms
    rows = connection.execute(select(revision, at_ms).order_by(revision).limit(limit)).all()
    removable = list(
        takewhile(
            lambda row: row.revision < keep_from or (row.at_ms < older_than and row.revision < always_keep_from), rows
        )
    )
    return (len(removable), removable[-1].revision) if removable else None


def try_compaction_lock(connection: Connection) -> bool:
    """Whether no other replica is at it; one that is holds no commit up until its last moment."""
    if connection.dialect.name == "sqlite":
        return True
    return bool(connection.execute(select(func.pg_try_advisory_xact_lock(_COMPACTION_LOCK))).scalar_one())


def delete_changes(connection: Connection, last: int) -> None:
    """Forget the changes up to revision `last`."""
    connection.execute(delete(changes).where(changes.c.revision <= last))
    connection.execute(update(log_head).values(compacted=last))


def renew_history(connection: Connection, history: str, replaces: str | None = None) -> None:
    """Begin a new history: revisions go on, but those who followed the old one start from a snapshot.

    With `instead` only if that is the present one: of several replicas that find the same loss one begins it.
    """
    # First, as all who write of listeners: or two could wait for each other.
    bump(connection, "listeners")
    old = [] if replaces is None else [log_head.c.history == replaces]
    if connection.execute(update(log_head).where(*old).values(history=history)).rowcount == 0:
        return
    connection.execute(update(listeners).values(acked=None))


def node_from_row(row: Row[Any], node_id: str) -> BlockedNode:
    """The node of a row of the list or the log."""
    action = BlockAction[row.action]
    return BlockedNode(id=node_id, action=action, start=row.start_ms, end=row.end_ms, cause=row.cause)


def change_from_row(row: Row[Any]) -> Change:
    """The change of a row of the log."""
    node = node_from_row(row, row.node_id)
    return Change(
        revision=row.revision,
        type=ChangeType(row.type),
        at=row.at_ms,
        created_by=row.created_by,
        forced=row.forced,
        source=None if row.source is None else Source(row.source),
        node=node,
    )


def log_row(change: Change) -> tuple[object, ...]:
    """The row of the log, in the order of its columns. An enum's value and name would be Python calls."""
    node, source = change.node, change.source
    return (
        change.revision,
        str(change.type),
        change.at,
        change.created_by,
        change.forced,
        None if source is None else str(source),
        node.id,
        node.action.name,
        node.start,
        node.end,
        node.cause,
    )
