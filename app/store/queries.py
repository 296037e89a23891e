"""SQL on the list and its change log: functions that run in the caller's transaction. Time is a parameter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final, NamedTuple, Self

from sqlalchemy import ScalarSelect, Update, delete, func, select, update
from sqlalchemy.engine import Connection, Row

from app.store.rows import UnreadableRowError, missing_row, read_row, read_rows
from app.store.tables import blocked_nodes, changes, listeners, log_head, versions
from blocklist.model.changes import Change, ChangeType, Snapshot, Source
from blocklist.model.host_matching import usual_spellings
from blocklist.model.node import BlockAction, BlockedNode

MAX_FULL_NAMES: Final = 20
"""Maximum number of full names in the log that are looked up for a short one."""
_COMPACTION_LOCK: Final = 0x626C6F63
"""Key of the advisory lock for compaction on PostgreSQL."""

PROBE_STATEMENTS: Final = (
    (
        "INSERT INTO changes (revision, type, at_ms, node_id, action, start_ms, end_ms, cause)"  # noqa: S608
        f" VALUES (-1, '', 0, '', '', 0, 0, '{'x' * 256}')"
    ),
    "DELETE FROM changes WHERE revision = -1",
)
"""Run in one transaction: needs as much space as a change, and frees it. On a full disk smaller writes may succeed."""


class StaleError(Exception):
    """Another replica has changed the list since the writer read it."""


class Head(NamedTuple):
    """The history, and the revision of its last change."""

    history: str
    revision: int


class LastChange(NamedTuple):
    """Author and revision of a blocked node's last change; None and 0 if unknown."""

    created_by: str | None
    revision: int


class LoadedState(NamedTuple):
    """The list in the database, with the last change of each node."""

    snapshot: Snapshot
    last_changes: Mapping[str, LastChange]


@dataclass(frozen=True, kw_only=True, slots=True)
class LogTail:
    """The end of the log from a revision on.

    `history` and `revision` are those of the head of the log. `last` is the change at the given revision, None if it
    is not in the log. `changes` are the next ones.
    """

    history: str
    revision: int
    last: Change | None
    changes: Sequence[Change]

    @classmethod
    def beginning_at(cls, since: int, found: list[Change], *, history: str, revision: int, limit: int) -> Self:
        """The tail with at most `limit` of the changes `found` after `since`; one at `since` itself is `last`."""
        last = found.pop(0) if found and found[0].revision == since else None
        return cls(history=history, revision=revision, last=last, changes=found[:limit])

    def is_compacted_after(self, revision: int) -> bool:
        """Whether the changes after `revision` are no longer in the log."""
        return self.revision > revision and (not self.changes or self.changes[0].revision != revision + 1)


def load(connection: Connection) -> LoadedState:
    """The whole list."""
    history, revision = head(connection)
    rows = connection.execute(select(blocked_nodes)).all()
    nodes = {node.id: node for node in read_rows(blocked_nodes, rows, node_from_row)}
    last_changes = {row.id: LastChange(row.created_by, row.revision) for row in rows}
    return LoadedState(Snapshot(revision=revision, history=history, nodes=nodes), last_changes)


def log_tail(connection: Connection, since: int, limit: int) -> LogTail:
    """The end of the log from revision `since` on, with at most `limit` changes after it.

    Changes that cannot be read are left out, with those that follow: as if they had been compacted.
    """
    history, revision = head(connection)
    query = select(changes).where(changes.c.revision >= since).order_by(changes.c.revision).limit(limit + 1)
    found = _readable_start(connection.execute(query))
    return LogTail.beginning_at(since, found, history=history, revision=revision, limit=limit)


def _readable_start(rows: Iterable[Row[Any]]) -> list[Change]:
    found: list[Change] = []
    with suppress(UnreadableRowError):
        found.extend(map(change_from_row, rows))
    return found


def head(connection: Connection) -> Head:
    """The head of the log. Raises UnreadableRowError."""
    return read_row(log_head, _head_row(connection), lambda row: Head(row.history, row.revision))


def current_history(connection: Connection) -> str:
    """The current history."""
    return head(connection).history


def compacted_revision(connection: Connection) -> int:
    """The revision of the last change that was removed from the log; 0 if none was."""
    return read_row(log_head, _head_row(connection), lambda row: int(row.compacted))


def _head_row(connection: Connection) -> Row[Any]:
    row = connection.execute(select(log_head)).one_or_none()
    if row is None:
        raise missing_row(log_head)
    return row


def ids_in_log(connection: Connection, node_id: str) -> list[str]:
    """The ids under which this machine may be in the log: the usual spellings, and full names that are in it."""
    names, prefixes = usual_spellings(node_id)
    return [*sorted(names), *(name for prefix in sorted(prefixes) for name in _ids_with_prefix(connection, prefix))]


def _ids_with_prefix(connection: Connection, prefix: str) -> Iterator[str]:
    """At most MAX_FULL_NAMES ids. Each is one step in the index: DISTINCT would read all changes of a node."""
    # "z" is the last character of ids in every collation; some collations have other ids in between.
    column, last = changes.c.node_id, prefix
    for _ in range(MAX_FULL_NAMES):
        query = select(func.min(column)).where(column > last, column <= prefix + "z" * 253)
        if (found := connection.execute(query).scalar()) is None:
            return
        last = str(found)
        if last.startswith(prefix):
            yield last


def last_change(connection: Connection, node_id: str) -> Change | None:
    """The last change of a node that is still in the log, under any name of its machine."""
    last: Change | None = None
    for name in ids_in_log(connection, node_id):
        query = select(changes).where(changes.c.node_id == name).order_by(changes.c.revision.desc()).limit(1)
        row = connection.execute(query).one_or_none()
        if row is not None and (last is None or row.revision > last.revision):
            last = change_from_row(row)
    return last


def compactable(
    connection: Connection, *, keep_from: int, older_than: int, always_keep_from: int, limit: int
) -> tuple[int, int] | None:
    """Number of the oldest changes to remove, at most `limit`, and the revision of the last; None if there are none.

    A change is removed if its revision is below `keep_from`, or if it is older than `older_than` (Unix ms) and its
    revision is below `below`.
    """
    revision, at_ms = changes.c.revision, changes.c.at_ms
    rows = connection.execute(select(revision, at_ms).order_by(revision).limit(limit)).all()
    removable = list(
        takewhile(
            lambda row: row.revision < keep_from or (_is_older(row, older_than) and row.revision < always_keep_from),
            rows,
        )
    )
    return (len(removable), removable[-1].revision) if removable else None


def _is_older(row: Row[int, int], time: int) -> bool:
    """Whether it was made before `time`; also if its time cannot be read."""
    return not isinstance(row.at_ms, int) or row.at_ms < time


def try_compaction_lock(connection: Connection) -> bool:
    """Take the lock for compaction; False if another replica holds it. It does not delay commits."""
    if connection.dialect.name == "sqlite":
        return True
    return bool(connection.execute(select(func.pg_try_advisory_xact_lock(_COMPACTION_LOCK))).scalar_one())


def delete_changes(connection: Connection, last: int) -> None:
    """Remove the changes up to revision `last` from the log."""
    connection.execute(delete(changes).where(changes.c.revision <= last))
    connection.execute(update(log_head).values(compacted=last))


def renew_history(connection: Connection, history: str, replaces: str | None = None) -> None:
    """Start a new history: revisions continue, but watchers and listeners start from a snapshot.

    With `replaces` only if that is the current history: of several replicas that detect the same loss one starts it.
    """
    condition = [] if replaces is None else [log_head.c.history == replaces]
    _renew(connection, update(log_head).where(*condition).values(history=history))


def record_timeline(connection: Connection, timeline: str, history: str) -> bool:
    """Record the timeline of the server. If another one was recorded, start this history; return whether it did.

    Of several replicas one starts it: for the others this timeline is recorded already.
    """
    connection.execute(update(log_head).where(log_head.c.timeline.is_(None)).values(timeline=timeline))
    other = update(log_head).where(log_head.c.timeline != timeline)
    return _renew(connection, other.values(timeline=timeline, history=history))


def _renew(connection: Connection, renewal: Update) -> bool:
    """Execute this update of the head. If it changes the row, listeners start from a snapshot."""
    # Lock the topic first, as all transactions on listeners do: this avoids deadlocks.
    bump(connection, "listeners")
    if connection.execute(renewal).rowcount == 0:
        return False
    connection.execute(update(listeners).values(acked=None))
    return True


def node_from_row(row: Row[Any]) -> BlockedNode:
    """The node in a row of the list. For `read_row`."""
    return _node(row, row.id)


def change_from_row(row: Row[Any]) -> Change:
    """The change in a row of the log. Raises UnreadableRowError."""
    return read_row(changes, row, _change)


def _node(row: Row[Any], node_id: str) -> BlockedNode:
    action = BlockAction[row.action]
    return BlockedNode(id=node_id, action=action, start=row.start_ms, end=row.end_ms, cause=row.cause)


def _change(row: Row[Any]) -> Change:
    return change_from_values(*tuple(row))


def change_from_values(
    revision: int,
    kind: str,
    at: int,
    created_by: str | None,
    forced: str | None,
    source: str | None,
    node_id: str,
    action: str,
    start: int,
    end: int,
    cause: str,
) -> Change:
    """The change in a row of the log, with its columns in order."""
    return Change(
        revision=revision,
        type=ChangeType(kind),
        at=at,
        created_by=created_by,
        forced=forced,
        source=None if source is None else Source(source),
        node=BlockedNode(id=node_id, action=BlockAction[action], start=start, end=end, cause=cause),
    )


def log_row(change: Change) -> tuple[object, ...]:
    """The row of a change, in the order of the columns. str() is faster than an enum's `value`."""
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


def current_version() -> ScalarSelect[Any]:
    """The version of the last transaction on listeners; inside such a transaction its own."""
    return select(versions.c.version).where(versions.c.topic == "listeners").scalar_subquery()


def bump(connection: Connection, topic: str) -> None:
    """Increment a topic's version. Other transactions on the topic wait until this one ends."""
    connection.execute(update(versions).where(versions.c.topic == topic).values(version=versions.c.version + 1))
