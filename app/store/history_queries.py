"""SQL on the past: changes by node, author, type and time; the list at a time. Runs in the caller's transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Select, and_, delete, func, insert, or_, select
from sqlalchemy.engine import Connection

from app.store.queries import (
    LastChange,
    change_from_row,
    compacted_revision,
    head,
    ids_in_log,
    listed_from_row,
)
from app.store.rows import missing_row, read_row
from app.store.tables import changes, log_base, log_head
from blocklist.model.changes import Change, ChangeType
from blocklist.model.claims import Claims
from blocklist.model.names import Aliases, NameIndex, usual_spellings
from blocklist.model.node import BlockedNode

if TYPE_CHECKING:
    from app.store.store import Store


_FREEING: Final = [kind.value for kind in ChangeType if kind.frees]


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
    return select(*columns).where(changes.c.revision.in_(last), changes.c.type.not_in(_FREEING))


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
        self._unusual = NameIndex()
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
            self._unusual = NameIndex(aliases=self._aliases)
            found = await self._read_since(0)
            self._history, self._first_revision = found.history, found.revision + 1
        for number, node_id in enumerate(found.ids):
            self._unusual.add(node_id)
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
        self._revision = found.revision

    async def _read_since(self, revision: int) -> UnusualIds:
        return await self._store.read(lambda connection: unusual_ids(connection, revision))
