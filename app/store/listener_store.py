"""ListenerStore: stored listeners, and the replicas that push to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from sqlalchemy import BigInteger, cast, delete, extract, func, or_, select, text, update
from sqlalchemy.engine import Connection

from app.store import listener_reports, listeners, tables
from app.store.listener_reports import ReportPart
from app.store.listeners import ListenerUpdates, StoredListener
from app.store.queries import current_version
from app.store.tables import replicas
from app.store.tokens import RunQuery
from blocklist.model.errors import UnavailableError
from blocklist.model.listener import Listener

MAX_ATTEMPTS: Final = 10

_DATABASE_CLOCK: Final = cast(extract("epoch", func.clock_timestamp()) * 1000, BigInteger)
"""PostgreSQL's clock in Unix ms: the same for all replicas."""

# One statement: separate INSERT and UPDATE would conflict with earlier ones whose answers were lost.
_RENEW_LEASE: Final = text(
    "INSERT INTO replicas (id, end_ms) VALUES (:id, CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint) + :ms)"
    " ON CONFLICT (id) DO UPDATE SET end_ms = excluded.end_ms"
)


class ListenerStore:
    """Every method raises UnavailableError if the database cannot be used.

    `write` serializes the transactions of all replicas and notifies the other replicas; `write_unordered` does neither.
    """

    def __init__(self, read: RunQuery, write: RunQuery, write_unordered: RunQuery, replica: str) -> None:
        self._read = read
        self._write = write
        self._write_unordered = write_unordered
        self._replica = replica

    async def updates_since(self, since: int) -> ListenerUpdates:
        """What was written after version `since`; -1 is everything."""
        return await self._read(lambda connection: listeners.updates_since(connection, since))

    async def ids(self) -> set[str]:
        """The ids of all registered listeners."""
        return await self._read(listeners.ids)

    async def update(
        self, listener_id: str, change: Callable[[StoredListener | None], StoredListener], history: str
    ) -> StoredListener:
        """Store what `change` makes of the stored listener (None if it is new). Raises what `change` raises.

        `change` may run more than once. The cursor is stored only if it belongs to the current history.
        """
        for _ in range(MAX_ATTEMPTS):
            current = await self._read(lambda connection: listeners.get(connection, listener_id))
            stored = await self._save(change(current), current, history)
            if stored is not None:
                return stored
        raise UnavailableError(
            f"Listener {listener_id} kept changing its registration at other replicas; try again.", retry_after=1
        )

    async def _save(
        self, stored: StoredListener, expected: StoredListener | None, history: str
    ) -> StoredListener | None:
        return await self._write(lambda connection: listeners.save(connection, stored, expected, history))

    async def remove(
        self, ids: Collection[str], lease_ended_before: int | None = None, session: str | None = None
    ) -> set[str]:
        """Remove listeners and return their ids; with `lease_ended_before` (Unix ms) only those whose lease ended
        before that, with `session` only those with this session.
        """
        return await self._write(lambda connection: listeners.remove(connection, ids, lease_ended_before, session))

    async def save_heartbeats(self, updated: Sequence[Listener], reports: Sequence[ReportPart], history: str) -> None:
        """Store cursors, leases and reports. Cursors are stored only if they belong to the current history."""

        def save(connection: Connection) -> None:
            listeners.save_heartbeats(connection, updated, history)
            if reports:
                listener_reports.save(connection, reports)

        await self._write(save)

    async def save_expired(self, listener_ids: Sequence[str], now: int, lease_ended_before: int) -> set[str]:
        """Mark as expired at `now` those whose lease ended until `lease_ended_before` (Unix ms); return their ids."""
        return await self._write(
            lambda connection: listeners.save_expired(connection, listener_ids, now, lease_ended_before)
        )

    async def live_replicas(self) -> set[str]:
        """The ids of the replicas whose lease has not ended."""
        return await self._read(_live_replicas)

    async def renew_replica_lease(self, seconds: float) -> set[str]:
        """Extend this replica's lease to `seconds` from now; return the ids of all live replicas."""
        milliseconds = round(seconds * 1000)
        return await self._write_unordered(lambda connection: _renew_lease(connection, self._replica, milliseconds))

    async def claim_listeners(self, orphans: Collection[str]) -> None:
        """Make this replica the owner of those listeners that no live replica owns."""
        await self._write(lambda connection: _claim_listeners(connection, self._replica, orphans))

    async def remove_replica(self) -> None:
        """Remove this replica, and its ownership of listeners."""
        await self._write(lambda connection: _remove_replica(connection, self._replica))


def _live_replicas(connection: Connection) -> set[str]:
    return set(connection.execute(select(replicas.c.id).where(replicas.c.end_ms > _DATABASE_CLOCK)).scalars())


def _renew_lease(connection: Connection, replica: str, milliseconds: int) -> set[str]:
    connection.execute(delete(replicas).where(replicas.c.id != replica, replicas.c.end_ms < _DATABASE_CLOCK))
    connection.execute(_RENEW_LEASE, {"id": replica, "ms": milliseconds})
    return set(connection.execute(select(replicas.c.id)).scalars())


def _claim_listeners(connection: Connection, replica: str, orphans: Collection[str]) -> None:
    columns = tables.listeners.c
    live = select(replicas.c.id).where(replicas.c.end_ms > _DATABASE_CLOCK)
    unowned = or_(columns.owner.is_(None), columns.owner.not_in(live))
    statement = update(tables.listeners).where(columns.id.in_(orphans), unowned)
    connection.execute(statement.values(owner=replica, version=current_version()))


def _remove_replica(connection: Connection, replica: str) -> None:
    statement = update(tables.listeners).where(tables.listeners.c.owner == replica)
    connection.execute(statement.values(owner=None, version=current_version()))
    connection.execute(delete(replicas).where(replicas.c.id == replica))
