"""SQL on the list and its change log: functions that run in the caller's transaction. Time is a parameter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Concatenate, Final, NamedTuple, ParamSpec, Self, TypeVar

from sqlalchemy import (
    ColumnElement,
    ScalarSelect,
    Select,
    Update,
    and_,
    delete,
    func,
    insert,
    not_,
    or_,
    select,
    update,
)
from sqlalchemy.engine import Connection, Row

from app.store.tables import (
    UnreadableRowError,
    blocked_nodes,
    changes,
    dump_block_claims,
    dump_claims,
    frees_node,
    listeners,
    load_blocks,
    load_claims,
    load_dismissals,
    load_dismissed,
    log_base,
    log_head,
    missing_row,
    read_row,
    read_rows,
    versions,
    with_canary,
)
from blocklist.model.changes import Change, ChangeType, Snapshot, Source
from blocklist.model.claims import Claims
from blocklist.model.evidence import AutomaticBlock, Dismissal
from blocklist.model.names import Aliases, NameSet, usual_spellings
from blocklist.model.node import BlockAction, BlockedNode

if TYPE_CHECKING:
    from app.store.store import Store

A = ParamSpec("A")
P = TypeVar("P", bound="StorePart")
T = TypeVar("T")

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


class Topic(StrEnum):
    """What replicas notify each other about. All but CHANGES have a version in the table `versions`."""

    ALERTS = "alerts"
    CHANGES = "changes"
    LISTENERS = "listeners"
    TOKENS = "tokens"


class StaleError(Exception):
    """Another replica has changed the list since the writer read it."""


class Head(NamedTuple):
    history: str
    revision: int


class StorePart:
    """What one subject has in the database: each method of a part is one transaction, see `reading` and `writing`."""

    def __init__(self, store: Store) -> None:
        self.store = store


def reading(query: Callable[Concatenate[P, Connection, A], T]) -> Callable[Concatenate[P, A], Coroutine[Any, Any, T]]:
    """Make a method that takes a connection into one that runs on a consistent snapshot of the database."""

    @wraps(query)
    async def run(part: P, /, *args: A.args, **options: A.kwargs) -> T:
        return await part.store.read(lambda connection: query(part, connection, *args, **options))

    return run


def writing(
    topic: Topic | None,
) -> Callable[
    [Callable[Concatenate[P, Connection, A], T]],
    Callable[Concatenate[P, A], Coroutine[Any, Any, T]],
]:
    """Make a method that takes a connection into one that runs in a transaction on a topic (see Store.write)."""

    def make(query: Callable[Concatenate[P, Connection, A], T]) -> Callable[Concatenate[P, A], Coroutine[Any, Any, T]]:
        @wraps(query)
        async def run(part: P, /, *args: A.args, **options: A.kwargs) -> T:
            return await part.store.write(lambda connection: query(part, connection, *args, **options), topic)

        return run

    return make


class LastChange(NamedTuple):
    """Author and revision of a blocked node's last change; None and 0 if unknown."""

    created_by: str | None
    revision: int


class LoadedState(NamedTuple):
    """The list in the database, with the last change of each node, and what automatic owners have done."""

    snapshot: Snapshot
    last_changes: Mapping[str, LastChange]
    dismissals: Sequence[tuple[str, Dismissal]] = ()
    automatic_blocks: Sequence[tuple[str, AutomaticBlock]] = ()


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
        """The tail with at most `limit` of the changes `found` after `since`; one at `since` itself is `last`.

        Without changes above the head: only a damaged log has any, and a reader that applied them would be ahead of it.
        """
        committed = [change for change in found if change.revision <= revision]
        last = committed.pop(0) if committed and committed[0].revision == since else None
        return cls(history=history, revision=revision, last=last, changes=committed[:limit])

    def is_compacted_after(self, revision: int) -> bool:
        """Whether the changes after `revision` are no longer in the log."""
        return self.revision > revision and (not self.changes or self.changes[0].revision != revision + 1)


def load(connection: Connection) -> LoadedState:
    history, revision = head(connection)
    rows = connection.execute(select(blocked_nodes)).all()
    listed = read_rows(blocked_nodes, rows, listed_from_row)
    nodes = {node.id: node for node, _ in listed}
    claims = {node.id: stored for node, stored in listed}
    last_changes = {row.id: LastChange(row.created_by, row.revision) for row in rows}
    snapshot = Snapshot(revision=revision, history=history, nodes=nodes, claims=claims)
    return LoadedState(snapshot, last_changes, load_dismissals(connection), load_blocks(connection))


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


def check_head(connection: Connection) -> None:
    """Raises UnreadableRowError if the log has changes above its head, so that no change could follow it."""
    above = select(changes.c.revision).where(changes.c.revision > select(log_head.c.revision).scalar_subquery())
    # One statement: another replica may commit between two.
    if (revision := connection.execute(above.limit(1)).scalar()) is not None:
        raise UnreadableRowError(
            f"The table log_head of the database has a revision below that of a change ({revision}): restore a backup."
        )


def current_history(connection: Connection) -> str:
    return head(connection).history


def compacted_revision(connection: Connection) -> int:
    """The revision of the last change that was removed from the log; 0 if none was."""
    return read_row(log_head, _head_row(connection), lambda row: int(row.compacted))


def _head_row(connection: Connection) -> Row[Any]:
    row = connection.execute(select(log_head)).one_or_none()
    if row is None:
        raise missing_row(log_head)
    return row


def ids_in_log(connection: Connection, node_id: str, others: Collection[str] = ()) -> list[str]:
    """The ids under which this machine may be in the log: the usual spellings, full names that are in it, and others.

    See LoggedNames.others.
    """
    names, prefixes = usual_spellings(node_id)
    full = {name for prefix in prefixes for name in _ids_with_prefix(connection, prefix)}
    return sorted(names.union(full, others))


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


def last_change(connection: Connection, node_id: str, others: Collection[str] = ()) -> Change | None:
    """The last change of a node that is still in the log, under any name of its machine (see `ids_in_log`)."""
    last: Change | None = None
    for name in ids_in_log(connection, node_id, others):
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
    revision is below `always_keep_from`.
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
    bump(connection, Topic.LISTENERS)
    if connection.execute(renewal).rowcount == 0:
        return False
    connection.execute(update(listeners).values(acked=None))
    return True


def listed_from_row(row: Row[Any]) -> tuple[BlockedNode, Claims]:
    """The node in a row of the list, and the claims on it. For `read_row`."""
    action = BlockAction[row.action]
    node = BlockedNode(id=row.id, action=action, start=row.start_ms, end=row.end_ms, cause=row.cause)
    claims = load_claims(row.claims, node, row.created_by)
    return with_canary(node, claims), claims


def change_from_row(row: Row[Any]) -> Change:
    """The change in a row of the log. Raises UnreadableRowError."""
    return read_row(changes, row, _change)


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
    claims: str | None,
) -> Change:
    """The change in a row of the log, with its columns in order."""
    type_ = ChangeType(kind)
    node = BlockedNode(id=node_id, action=BlockAction[action], start=start, end=end, cause=cause)
    after = () if type_.frees else load_claims(claims, node, created_by)
    return Change(
        revision=revision,
        type=type_,
        at=at,
        created_by=created_by,
        forced=forced,
        source=None if source is None else Source(source),
        node=with_canary(node, after),
        claims=after,
        dismissed=load_dismissed(claims, node_id) if type_.frees else (),
    )


def log_row(change: Change) -> tuple[object, ...]:
    """The row of a change, in the order of the columns. str() is faster than an enum's `value`."""
    node, source = change.node, change.source
    if change.type.frees:
        claims = dump_claims(change.dismissed) if change.dismissed else None
    else:
        claims = dump_block_claims(change.claims, node, change.created_by)
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
        claims,
    )


def current_version(topic: str = "listeners") -> ScalarSelect[Any]:
    """The version of the last transaction on a topic; inside such a transaction its own."""
    return select(versions.c.version).where(versions.c.topic == topic).scalar_subquery()


def bump(connection: Connection, topic: str) -> None:
    """Increment a topic's version. Other transactions on the topic wait until this one ends."""
    connection.execute(update(versions).where(versions.c.topic == topic).values(version=versions.c.version + 1))


# SQL on the past: changes by node, author, type and time; the list at a time. Runs in the caller's transaction.


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangeFilter:
    """Selects changes by node, under any of its names, author and type, at `begin` <= time < `end` (Unix ms).

    `other_names` are those that do not follow from the spelling of `node_id` (see LoggedNames).
    """

    node_id: str | None = None
    other_names: frozenset[str] = frozenset()
    created_by: str | None = None
    kinds: tuple[ChangeType, ...] = ()
    begin: int | None = None
    end: int | None = None


class UnusualIds(NamedTuple):
    """Ids up to a revision of this history, and the last revision that is no longer in the log."""

    history: str
    revision: int
    compacted: int
    ids: Sequence[str]


ALL: Final = ChangeFilter()


@dataclass(frozen=True, kw_only=True, slots=True)
class PastList:
    """The list at a time in the past (Unix ms), with its revision then."""

    at: int
    revision: int
    nodes: Mapping[str, BlockedNode]
    last_changes: Mapping[str, LastChange]
    claims: Mapping[str, Claims]


def changes_matching(connection: Connection, criteria: ChangeFilter, since: int, limit: int) -> list[Change]:
    """At most `limit` changes after revision `since` that match, in order."""
    query = select(changes).where(changes.c.revision > since, *_conditions(criteria))
    found = _of_node(connection, criteria, query.order_by(changes.c.revision).limit(limit))
    return sorted(found, key=_revision)[:limit]


def latest_changes(connection: Connection, criteria: ChangeFilter, before: int | None, limit: int) -> list[Change]:
    """At most `limit` changes that match, the newest first; with `before` only those before that revision."""
    earlier = [] if before is None else [changes.c.revision < before]
    query = select(changes).where(*_conditions(criteria), *earlier)
    found = _of_node(connection, criteria, query.order_by(changes.c.revision.desc()).limit(limit))
    return sorted(found, key=_revision, reverse=True)[:limit]


def _of_node(connection: Connection, criteria: ChangeFilter, query: Select[Any]) -> Iterator[Change]:
    """The changes that the query finds for each id of the node, one after another: together they would be sorted."""
    if criteria.node_id is None:
        queries = [query]
    else:
        names = ids_in_log(connection, criteria.node_id, criteria.other_names)
        queries = [query.where(changes.c.node_id == name) for name in names]
    return (change_from_row(row) for each in queries for row in connection.execute(each))


def unusual_ids(connection: Connection, since: int) -> UnusualIds:
    """The ids in the log after revision `since` that `usual_spellings` of other names of the machine may not contain.

    These are ids in mixed case, with a final dot, and IPv6 addresses, which have many spellings.
    """
    node_id = changes.c.node_id
    mixed = and_(node_id != func.lower(node_id), node_id != func.upper(node_id))
    unusual = or_(mixed, node_id.contains(":"), node_id.endswith("."))
    history, revision = head(connection)
    query = select(node_id).distinct().where(changes.c.revision > since, changes.c.revision <= revision, unusual)
    ids = list(connection.execute(query).scalars())
    return UnusualIds(history, revision, compacted_revision(connection), ids)


def _revision(change: Change) -> int:
    return change.revision


def _conditions(criteria: ChangeFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if criteria.created_by is not None:
        conditions.append(changes.c.created_by == criteria.created_by)
    if criteria.kinds:
        conditions.append(changes.c.type.in_([kind.value for kind in criteria.kinds]))
    if criteria.begin is not None:
        conditions.append(changes.c.at_ms >= criteria.begin)
    if criteria.end is not None:
        conditions.append(changes.c.at_ms < criteria.end)
    return conditions


def oldest_change(connection: Connection) -> tuple[int, int] | None:
    """Revision and time (Unix ms) of the oldest change in the log; None if the log was never compacted."""
    if compacted_revision(connection) == 0:
        return None
    row = connection.execute(select(changes).order_by(changes.c.revision).limit(1)).one_or_none()
    if row is None:
        raise missing_row(changes)
    oldest = change_from_row(row)
    return oldest.revision, oldest.at


def list_at(connection: Connection, timestamp: int) -> PastList:
    """The list at `timestamp` (Unix ms), which must not be before the log begins.

    It is the list after the last revision that was made until then, also if the clock was set back in between.
    """
    before = select(changes.c.revision).where(changes.c.at_ms <= timestamp).order_by(changes.c.revision.desc()).limit(1)
    revision = connection.execute(before).scalar() or 0
    found = (*_base_nodes(connection, revision), *_changed_nodes(connection, revision))
    blocked = [it for it in found if it.node.end > timestamp]
    return PastList(
        at=timestamp,
        revision=revision,
        nodes={it.node.id: it.node for it in blocked},
        last_changes={it.node.id: it.last_change for it in blocked},
        claims={it.node.id: it.claims for it in blocked},
    )


class _PastNode(NamedTuple):
    node: BlockedNode
    last_change: LastChange
    claims: Claims


def _base_nodes(connection: Connection, revision: int) -> Iterator[_PastNode]:
    for row in connection.execute(_unchanged_base(revision)):
        node, claims = read_row(log_base, row, listed_from_row)
        yield _PastNode(node, LastChange(row.created_by, row.revision), claims)


def _changed_nodes(connection: Connection, revision: int) -> Iterator[_PastNode]:
    for row in connection.execute(_last_changes_of_nodes(revision, changes.c)):
        change = change_from_row(row)
        last_change = LastChange(change.created_by, change.revision)
        yield _PastNode(change.node, last_change, change.claims)


def _last_changes_of_nodes(revision: int, columns: Iterable[ColumnElement[Any]]) -> Select[Any]:
    """These columns of the last change of each node up to a revision, without nodes that are free then."""
    # The lower bound lets the database use the primary key instead of scanning the whole index by node.
    log = changes.c.revision > select(log_head.c.compacted).scalar_subquery(), changes.c.revision <= revision
    last = select(func.max(changes.c.revision)).where(*log).group_by(changes.c.node_id)
    return select(*columns).where(changes.c.revision.in_(last), not_(frees_node(changes.c.type)))


def _unchanged_base(revision: int) -> Select[Any]:
    """Nodes that were blocked when the log begins, and have no change up to a revision."""
    changed = select(changes.c.revision).where(changes.c.node_id == log_base.c.id, changes.c.revision <= revision)
    return select(log_base).where(~changed.exists())


def advance_base(connection: Connection, revision: int) -> None:
    """Advance the list on which the log begins to `revision`, before the changes up to it are removed."""
    changed = select(changes.c.node_id).where(changes.c.revision <= revision)
    connection.execute(delete(log_base).where(log_base.c.id.in_(changed)))
    columns = [changes.c.node_id.label("id"), *(changes.c[name] for name in log_base.c.keys()[1:])]
    connection.execute(insert(log_base).from_select(log_base.c.keys(), _last_changes_of_nodes(revision, columns)))


SLICE: Final = 1000
"""Number of ids added in one turn of the event loop."""


class LoggedNames:
    """Finds the ids that a search by the usual spellings of a name misses. Belongs to the event loop.

    The database compares ids exactly, so the ids in the log with an unusual spelling (`Node-7.Example.com`) are kept in
    memory: few, as a rule. They are read once, then only from new changes; and once more when all changes that they
    were first read from have been compacted.
    """

    def __init__(self, store: Store, aliases: Aliases) -> None:
        self._store = store
        self._aliases = aliases
        self._lock = asyncio.Lock()
        self._history = ""
        self._unusual = NameSet()
        self._revision = 0
        self._first_revision = 0

    async def others(self, node_id: str) -> frozenset[str]:
        """Ids of the machine beside the usual spellings of `node_id`; some may not be in the log.

        Raises UnavailableError.
        """
        async with self._lock:
            await self._read_new()
        known = (name for alias in self._aliases(node_id) for name in usual_spellings(alias)[0])
        return frozenset((*known, *self._unusual.matching(node_id)))

    async def _read_new(self) -> None:
        found = await self._read_since(self._revision)
        if found.history != self._history or found.compacted >= self._first_revision:
            self._unusual = NameSet(aliases=self._aliases)
            found = await self._read_since(0)
            self._history, self._first_revision = found.history, found.revision + 1
        for number, node_id in enumerate(found.ids):
            self._unusual.add(node_id)
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
        self._revision = found.revision

    async def _read_since(self, revision: int) -> UnusualIds:
        return await self._store.read(lambda connection: unusual_ids(connection, revision))
