"""ListenerStore: listeners as they are kept, for all replicas, and which replicas there are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from sqlalchemy.engine import Connection

from app.store import listener_reports, listeners, replicas
from app.store.listener_reports import Said
from app.store.listeners import News, StoredListener
from app.store.tokens import Run
from blocklist.model.errors import UnavailableError
from blocklist.model.listener import Listener

TRIES: Final = 10


class ListenerStore:
    """Every method raises UnavailableError while the database cannot be used.

    `write` orders the transactions of all replicas and tells them of each; `write_alone` does not.
    """

    def __init__(self, read: Run, write: Run, write_alone: Run, replica: str) -> None:
        self._read = read
        self._write = write
        self._write_alone = write_alone
        self._replica = replica

    async def news(self, since: int) -> News:
        """What was written of listeners after a version; -1 is everything."""
        return await self._read(lambda connection: listeners.news(connection, since))

    async def ids(self) -> set[str]:
        """Who is registered."""
        return await self._read(listeners.ids)

    async def change(
        self, listener_id: str, change: Callable[[StoredListener | None], StoredListener], history: str
    ) -> StoredListener:
        """Keep what becomes of a listener as it is kept, None if it is new. Raises what `change` raises.

        Its cursor counts only if it is of the present history.
        """
        for _ in range(TRIES):
            kept = await self._read(lambda connection: listeners.get(connection, listener_id))
            stored = await self._save(change(kept), kept, history)
            if stored is not None:
                return stored
        raise UnavailableError(f"Listener {listener_id} registers elsewhere all the time; try again.", retry_after=1)

    async def _save(
        self, stored: StoredListener, instead: StoredListener | None, history: str
    ) -> StoredListener | None:
        return await self._write(lambda connection: listeners.save(connection, stored, instead, history))

    async def remove(self, ids: Collection[str], before: int | None = None) -> None:
        """Forget listeners; with `before` only those whose lease has ended before that."""
        await self._write(lambda connection: listeners.remove(connection, ids, before))

    async def save_heard(self, heard: Sequence[Listener], said: Sequence[Said], history: str) -> None:
        """Keep cursors and leases, and what was said; cursors only if they are of the present history."""

        def save(connection: Connection) -> None:
            listeners.save_heard(connection, heard, history)
            if said:
                listener_reports.save(connection, said)

        await self._write(save)

    async def save_lapsed(self, ended: Sequence[str], now: int, before: int) -> set[str]:
        """Keep that those of these leases have lapsed that ended until `before` (Unix ms); which did."""
        return await self._write(lambda connection: listeners.save_lapsed(connection, ended, now, before))

    async def living(self) -> set[str]:
        """Which replicas live."""
        return await self._read(replicas.living)

    async def live(self, seconds: float) -> set[str]:
        """Say that this replica lives for so long; who else does."""
        milliseconds = round(seconds * 1000)
        return await self._write_alone(lambda connection: replicas.live(connection, self._replica, milliseconds))

    async def claim(self, orphans: Collection[str]) -> None:
        """Push to these from this replica, unless one that lives does already."""
        await self._write(lambda connection: replicas.claim(connection, self._replica, orphans))

    async def release(self) -> None:
        """Push to nobody any more: this replica is gone."""
        await self._write(lambda connection: replicas.release(connection, self._replica))
