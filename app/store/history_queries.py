"""SQL that looks back: changes by node, author, kind and time; the list as it was. Inside somebody's transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, delete, func, insert, select
from sqlalchemy.engine import Connection

from app.store.queries import LastChange, change_from_row, compacted_revision, node_from_row
from app.store.tables import changes, log_base, log_head
from blocklist.model.changes import Change, ChangeType
from blocklist.model.node import BlockedNode

_FREEING: Final = [kind.value for kind in ChangeType if kind.frees]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangeFilter:
    """Which changes: of a node, by somebody, of some kinds, made at `begin` or later and before `end` (Unix ms)."""

    node_id: str | None = None
    created_by: str | None = None
    kinds: tuple[ChangeType, ...] = ()
    begin: int | None = None
    end: int | None = None


ALL: Final = ChangeFilter()


@dataclass(frozen=True, kw_only=True, slots=True)
class PastList:
    """The list at a moment, with the revision that it then had."""

    revision: int
    nodes: Mapping[str, BlockedNode]
    last_changes: Mapping[str, LastChange]


def changes_matching(connection: Connection, criteria: ChangeFilter, since: int, limit: int) -> list[Change]:
    """At most `limit` of these changes after revision `since`, in order."""
    query = select(changes).where(changes.c.revision > since, *_conditions(criteria))
    return [change_from_row(row) for row in connection.execute(query.order_by(changes.c.revision).limit(limit))]


def latest_changes(connection: Connection, criteria: ChangeFilter, before: int | None, limit: int) -> list[Change]:
    """At most `limit` of these changes, the newest first, from before revision `before` where that is given."""
    earlier = [] if before is None else [changes.c.revision < before]
    query = select(changes).where(*_conditions(criteria), *earlier)
    return [change_from_row(row) for row in connection.execute(query.order_by(changes.c.revision.desc()).limit(limit))]


def _conditions(criteria: ChangeFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if criteria.node_id is not None:
        conditions.append(changes.c.node_id == criteria.node_id)
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
    """Revision and moment (Unix ms) of the oldest change in the log; None if the log is whole."""
    if compacted_revision(connection) == 0:
        return None
    row = connection.execute(select(changes.c.revision, changes.c.at_ms).order_by(changes.c.revision).limit(1)).one()
    return row.revision, row.at_ms


def list_at(connection: Connection, timestamp: int) -> PastList:
    """The list as it was at `moment` (Unix ms), which the log reaches: of each node the last change until then.

    Until then by revision: after the last change that the clock saw until that moment, also if it was set back.
    """
    before = select(changes.c.revision).where(changes.c.at_ms <= timestamp).order_by(changes.c.revision.desc()).limit(1)
    revision = connection.execute(before).scalar() or 0
    nodes: dict[str, BlockedNode] = {}
    last_changes: dict[str, LastChange] = {}
    for row in (*connection.execute(_unchanged_base(revision)), *connection.execute(_last_changes_of_nodes(revision))):
        if row.end_ms > timestamp:
            nodes[row.id] = node_from_row(row, row.id)
            last_changes[row.id] = LastChange(row.created_by, row.revision)
    return PastList(revision=revision, nodes=nodes, last_changes=last_changes)


def _last_changes_of_nodes(revision: int) -> Select[Any]:
    """Of each node the last change up to a revision, unless that frees it."""
    # From the first on: without a begin the whole index by node is searched, however long the log is.
    log = changes.c.revision > select(log_head.c.compacted).scalar_subquery(), changes.c.revision <= revision
    last = select(func.max(changes.c.revision)).where(*log).group_by(changes.c.node_id)
    columns = [changes.c.node_id.label("id"), *(changes.c[name] for name in log_base.c.keys()[1:])]
    return select(*columns).where(changes.c.revision.in_(last), changes.c.type.not_in(_FREEING))


def _unchanged_base(revision: int) -> Select[Any]:
    """What was blocked when the log begins, and not changed from then on up to a revision."""
    changed = select(changes.c.revision).where(changes.c.node_id == log_base.c.id, changes.c.revision <= revision)
    return select(log_base).where(~changed.exists())


def advance_base(connection: Connection, revision: int) -> None:
    """The log is about to begin after `revision`: bring the list on which it begins up to that."""
    changed = select(changes.c.node_id).where(changes.c.revision <= revision)
    connection.execute(delete(log_base).where(log_base.c.id.in_(changed)))
    connection.execute(insert(log_base).from_select(log_base.c.keys(), _last_changes_of_nodes(revision)))
