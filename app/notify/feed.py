"""ChangeFeed: the change log as watchers read it, each from a cursor of its own."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, Protocol

from app.bell import Bell
from blocklist.changes import Change
from blocklist.wire import change_body, dump_json

RECENT: Final = 4096
"""Changes kept in memory as bytes; a cursor further behind reads them from the database."""
PAGE: Final = 500
"""Changes read from the database, or sent, at once: bounds what a watcher that is far behind costs."""


class Log(Protocol):
    """The change log in the database."""

    async def changes(self, since: int, limit: int) -> list[Change]: ...


class ChangeFeed:
    """The recent changes, rendered when somebody reads them and once for all who stand at the same cursor.

    Nothing is queued for anybody: a watcher that is slow is a cursor that is behind. Belongs to the event loop.
    """

    def __init__(self, log: Log, *, revision: int, history: str) -> None:
        self.revision = revision
        self.history = history
        self.closed = False
        self.readers = 0
        self.bell = Bell()
        self._log = log
        self._recent: deque[Change] = deque(maxlen=RECENT)
        self._memo: tuple[int, int, bytes] = (-1, -1, b"")

    def publish(self, changes: Sequence[Change]) -> None:
        """The log has grown by these changes."""
        self._recent.extend(changes)
        self.revision = changes[-1].revision
        # Not at once: those who made the changes have their answers before a thousand watchers are served.
        asyncio.get_running_loop().call_soon(self.bell.ring)

    def close(self) -> None:
        """The service stops: watchers say bye."""
        self.closed = True
        self.bell.ring()

    async def read(self, cursor: int) -> tuple[bytes, int] | None:
        """Events after `cursor` and the cursor behind them; None when they are no longer in the log.

        Raises UnavailableError when they are only in the database and that is away.
        """
        if cursor >= self.revision - len(self._recent):
            return self._from_memory(cursor)
        changes = await self._log.changes(cursor, PAGE)
        if not changes or changes[0].revision != cursor + 1:
            return None
        return self._events(changes), changes[-1].revision

    def _from_memory(self, cursor: int) -> tuple[bytes, int]:
        end = min(cursor + PAGE, self.revision)
        if self._memo[:2] != (cursor, end):
            first = self.revision - len(self._recent)
            changes = islice(self._recent, cursor - first, end - first)
            self._memo = (cursor, end, self._events(changes))
        return self._memo[2], end

    def _events(self, changes: Iterable[Change]) -> bytes:
        return b"".join(
            sse(change.type.value, dump_json(change_body(change)), f"{change.revision}-{self.history}")
            for change in changes
        )


def sse(event: str, data: bytes, event_id: str | None = None) -> bytes:
    """A server-sent event; the data is one line, as compact JSON is."""
    identity = f"id: {event_id}\n" if event_id is not None else ""
    return b"%bevent: %b\ndata: %b\n\n" % (identity.encode(), event.encode(), data)
