"""ListenerStore: listeners as they are kept, for all replicas, and which replicas there are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from sqlalchemy.engine import Connection

from app.store import listener_reports, listeners, replicas
from app.store.listener_reports import ReportPart
from app.store.listeners import ListenerUpdates, StoredListener
from app.store.tokens import RunQuery
from blocklist.model.errors import UnavailableError
from blocklist.model.listener import Listener

MAX_ATTEMPTS: Final = 10


class ListenerStore:
    """Every method raises UnavailableError while the database cannot be used.

    `write` orders the transactions of all replicas and tells them of each; `write_alone` does not.
    """

    def __init__(self, read: RunQuery, write: RunQuery, write_unordered: RunQuery, replica: str) -> None:
        self._read = read
        self._write = write
        self._write_unordered = write_unordered
        self._replica = replica

    async def updates_since(self, since: int) -> ListenerUpdates:
        """What was written of listeners after a version; -1 is everything."""
        return await self._read(lambda connection: listeners.updates_since(connection, since))

    async def ids(self) -> set[str]:
        """Who is registered."""
        return await self._read(listeners.ids)

    async def update(
        self, listener_id: str, change: Callable[[StoredListener | None], StoredListener], history: str
    ) -> StoredListener:
        """Keep what becomes of a listener as it is kept, None if it is new. Raises what `change` raises.

        Its cursor counts only if it is of the present history.
        """
        for _ in range(MAX_ATTEMPTS):
            current = await self._read(lambda connection: listeners.get(connection, listener_id))
            stored = await self._save(change(current), current, history)
            if stored is not None:
                return stored
        raise UnavailableError(f"Listener {listener_id} registers elsewhere all the time; try again.", retry_after=1)

    async def _save(
        self, stored: StoredListener, expected: StoredListener | None, history: str
    ) -> StoredListener | None:
        return await self._write(lambda connection: listeners.save(connection, stored, expected, history))

    async def remove(self, ids: Collection[str], lease_ended_before: int | None = None) -> None:
        """Forget listeners; with `before` only those whose lease has ended before that."""
        await self._write(lambda connection: listeners.remove(connection, ids, lease_ended_before))

    async def save_heartbeats(self, updated: Sequence[Listener], reports: Sequence[ReportPart], history: str) -> None:
        """Keep cursors and leases, and what was said; cursors only if they are of the present history."""

        def save(connection: Connection) -> None:
            listeners.save_heartbeats(connection, updated, history)
            if reports:
                listener_reports.save(connection, reports)

        await self._write(save)

    async def save_expired(self, listener_ids: Sequence[str], now: int, lease_ended_before: int) -> set[str]:
        """Keep that those of these leases have lapsed that ended until `before` (Unix ms); which did."""
        return await self._write(
            lambda connection: listeners.save_expired(connection, listener_ids, now, lease_ended_before)
        )

    async def live_replicas(self) -> set[str]:
        """Which replicas live."""
        return await self._read(replicas.live_replicas)

    async def renew_replica_lease(self, seconds: float) -> set[str]:
        """Say that this replica lives for so long; who else does."""
        milliseconds = round(seconds * 1000)
        return await self._write_unordered(
            lambda connection: replicas.renew_lease(connection, self._replica, milliseconds)
        )

    async def claim_listeners(self, orphans: Collection[str]) -> None:
        """Push to these from this replica, unless one that lives does already."""
        await self._write(lambda connection: replicas.claim_listeners(connection, self._replica, orphans))

    async def remove_replica(self) -> None:
        """Push to nobody any more: this replica is gone."""
        await self._write(lambda connection: replicas.remove_replica(connection, self._replica))
