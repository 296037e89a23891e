"""SQL on what automatic owners have done: their blocks, dismissals, and the events of alerts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Row, Table, delete, insert, select
from sqlalchemy.engine import Connection

from app.store.tables import alerts, automatic_blocks, dismissals, readable_rows
from blocklist.model.automatic_blocks import AutomaticBlock, BlockRows, Dismissal, dismissals_of
from blocklist.model.changes import Change

MAX_LOADED: Final = 50_000
"""Maximum number of blocks, and of dismissals, that are read at the start: the newest."""
KEPT_MS: Final = 400 * 86_400_000
"""How long rows are kept: longer than any sensible BLOCKLIST_REPEAT_WINDOW."""
MAX_ALERTS: Final = 100_000
"""Maximum number of alerts that are remembered; beyond it, those posted longest ago are forgotten."""
_ROWS_AT_ONCE: Final = 1000
"""Rows in one statement: both databases bound the number of its parameters."""


class CommitRows(NamedTuple):
    """What a commit writes beside the log and the list, as rows in the order of the columns."""

    blocks: Sequence[tuple[object, ...]]
    removed: Sequence[int]
    dismissals: Sequence[tuple[object, ...]]

    def __bool__(self) -> bool:
        return bool(self.blocks or self.removed or self.dismissals)


def commit_rows(changes: Sequence[Change], blocks: BlockRows) -> CommitRows:
    """The rows of these changes."""
    # Of several dismissals of one owner the last one counts: a statement can write a row once.
    dismissed = {
        (change.node.id, it.owner): it for change in changes if change.dismissed for it in dismissals_of(change)
    }
    return CommitRows(
        blocks=[(it.revision, node_id, it.begin, it.end, it.is_claimed) for node_id, it in blocks.put],
        removed=blocks.removed,
        dismissals=[(*key, it.at, it.dismissed_by, it.revision) for key, it in dismissed.items()],
    )


def load_blocks(connection: Connection) -> list[tuple[str, AutomaticBlock]]:
    """The newest blocks by automatic owners with the ids of their nodes, by revision."""

    def read(row: Row[Any]) -> tuple[str, AutomaticBlock]:
        return row.node_id, AutomaticBlock(row.revision, row.begin_ms, row.end_ms, row.is_claimed)

    return list(readable_rows(automatic_blocks, _newest(connection, automatic_blocks), read))


def load_dismissals(connection: Connection) -> list[tuple[str, Dismissal]]:
    """The newest dismissals with the ids of their nodes, by revision."""

    def read(row: Row[Any]) -> tuple[str, Dismissal]:
        return row.node_id, Dismissal(row.owner, row.at_ms, row.dismissed_by, row.revision)

    return list(readable_rows(dismissals, _newest(connection, dismissals), read))


def _newest(connection: Connection, table: Table) -> Sequence[Row[Any]]:
    return connection.execute(select(table).order_by(table.c.revision.desc()).limit(MAX_LOADED)).all()[::-1]


def forget_old(connection: Connection, now: int) -> None:
    """Remove what no longer counts at `now` (Unix ms)."""
    before = now - KEPT_MS
    connection.execute(delete(automatic_blocks).where(automatic_blocks.c.end_ms < before))
    connection.execute(delete(dismissals).where(dismissals.c.at_ms < before))
    connection.execute(delete(alerts).where(alerts.c.seen_ms < before))
    newest = select(alerts.c.seen_ms).order_by(alerts.c.seen_ms.desc()).offset(MAX_ALERTS).limit(1)
    connection.execute(delete(alerts).where(alerts.c.seen_ms <= newest.scalar_subquery()))


class AlertEvent(NamedTuple):
    """The last event of an alert. `started` and `ended` are its startsAt and endsAt: Unix ms by the sender's clock.

    `resolved_at` is when the service saw that it had ended (Unix ms by its own clock), None while it fires. `revision`
    is that of the list when the alert was last seen to end, 0 if never.
    """

    started: int | None
    ended: int | None = None
    resolved_at: int | None = None
    revision: int = 0


def read_events(connection: Connection, owners: Iterable[str]) -> dict[str, AlertEvent]:
    """The events of the alerts with these owners, by owner."""
    found: dict[str, AlertEvent] = {}
    for part in _parts(owners):
        rows = connection.execute(select(alerts).where(alerts.c.owner.in_(part)))
        found |= readable_rows(alerts, rows, lambda row: (row.owner, _event(row)))
    return found


def _event(row: Row[Any]) -> AlertEvent:
    return AlertEvent(row.started_ms, row.ended_ms, row.resolved_ms, row.revision)


def write_events(connection: Connection, events: Mapping[str, AlertEvent], now: int) -> None:
    """Replace the events of these alerts. For transactions on Topic.ALERTS, which run one after another."""
    for part in _parts(events):
        connection.execute(delete(alerts).where(alerts.c.owner.in_(part)))
        rows = [dict(zip(alerts.c.keys(), (owner, *events[owner], now), strict=True)) for owner in part]
        connection.execute(insert(alerts).values(rows))


def _parts(owners: Iterable[str]) -> Iterator[Sequence[str]]:
    given = list(owners)
    return (given[start : start + _ROWS_AT_ONCE] for start in range(0, len(given), _ROWS_AT_ONCE))
