"""ChangeFeed: the change log as watchers read it, each from a cursor of its own."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, Protocol

from app.view import ListView
from blocklist.changes import Change
from blocklist.wire import change_body, dump_json, dump_snapshot

RECENT: Final = 4096
"""Changes kept in memory; a cursor further behind reads them from the database."""
PAGE: Final = 500
"""Changes read from the database, or sent, at once: bounds what a watcher that is far behind costs."""
PIECE: Final = 64 * 1024
"""Bytes sent at once: bounds what a watcher that does not read costs."""
SLICE: Final = 250
"""Streams served before others of the event loop have their turn."""


class Log(Protocol):
    """The change log in the database."""

    async def changes(self, since: int, limit: int) -> list[Change]: ...


class Stream(Protocol):
    """A watcher that has all there is, and waits for more."""

    def offer(self) -> None: ...


class ChangeFeed:
    """The recent changes, rendered when somebody reads them and once for all who stand at the same cursor.

    Nothing is queued for anybody: a watcher that is slow is a cursor that is behind. Belongs to the event loop.
    """

    def __init__(self, log: Log, view: ListView) -> None:
        self.revision = view.tracker.revision
        self.history = view.tracker.history
        self.closed = False
        self.readers = 0
        self.waiting: set[Stream] = set()
        self._log = log
        self._view = view
        self._recent: deque[Change] = deque(maxlen=RECENT)
        self._memo: tuple[int, int, bytes] = (-1, -1, b"")
        self._snapshot: tuple[int, int, list[bytes]] = (0, -1, [])

    def publish(self, changes: Sequence[Change]) -> None:
        """The log has grown by these changes."""
        self._recent.extend(changes)
        self.revision = changes[-1].revision
        # Not at once: those who made the changes have their answers before a thousand watchers are served.
        asyncio.get_running_loop().call_soon(self._offer)

    def close(self) -> None:
        """The service stops: watchers say bye."""
        self.closed = True
        self._offer()

    async def read(self, cursor: int) -> tuple[bytes, int] | None:
        """Events after `cursor` and the cursor behind them; None when they are no longer in the log.

        Raises UnavailableError when they are only in the database and that is away.
        """
        if (recent := self.recent(cursor)) is not None:
            return recent
        changes = await self._log.changes(cursor, PAGE)
        if not changes or changes[0].revision != cursor + 1:
            return None
        return self._events(changes), changes[-1].revision

    async def changes(self, cursor: int, end: int) -> list[Change] | None:
        """The changes after `cursor` up to `end`; None if the log no longer has them, or if they are very many.

        Raises UnavailableError when they are only in the database and that is away.
        """
        first = self.revision - len(self._recent)
        if cursor >= first:
            return list(islice(self._recent, cursor - first, end - first))
        if end - cursor > RECENT:
            return None
        changes = await self._log.changes(cursor, end - cursor)
        return changes if changes and changes[0].revision == cursor + 1 else None

    def happened(self, revision: int) -> int | None:
        """When a revision was made, Unix milliseconds; None if that is not in memory."""
        first = self.revision - len(self._recent)
        return self._recent[revision - first - 1].at if first < revision <= self.revision else None

    def recent(self, cursor: int) -> tuple[bytes, int] | None:
        """Events after `cursor` and the cursor behind them; None when they are not in memory."""
        first = self.revision - len(self._recent)
        if cursor < first:
            return None
        end = min(cursor + PAGE, self.revision)
        if self._memo[:2] != (cursor, end):
            self._memo = (cursor, end, self._events(islice(self._recent, cursor - first, end - first)))
        return self._memo[2], end

    def snapshot(self) -> tuple[list[bytes], int]:
        """The whole list as an event in pieces, and the cursor behind it; rendered once for each state of the list."""
        until, revision, event = self._snapshot
        if revision != self.revision or until <= self._view.clock():
            until, snapshot = self._view.snapshot()
            revision = snapshot.revision
            event = list(_pieces(sse_parts("snapshot", dump_snapshot(snapshot), f"{revision}-{self.history}")))
            self._snapshot = (until, revision, event)
        return event, revision

    def _offer(self, streams: Sequence[Stream] = ()) -> None:
        streams = streams or tuple(self.waiting)
        for stream in streams[:SLICE]:
            stream.offer()
        if len(streams) > SLICE:
            asyncio.get_running_loop().call_soon(self._offer, streams[SLICE:])

    def _events(self, changes: Iterable[Change]) -> bytes:
        return b"".join(
            sse(change.type.value, dump_json(change_body(change)), f"{change.revision}-{self.history}")
            for change in changes
        )


def sse(event: str, data: bytes, event_id: str | None = None) -> bytes:
    """A server-sent event; the data is one line, as compact JSON is."""
    return b"".join(sse_parts(event, (data,), event_id))


def sse_parts(event: str, data: Iterable[bytes], event_id: str | None = None) -> Iterator[bytes]:
    """The same in parts, of data in parts."""
    identity = f"id: {event_id}\n" if event_id is not None else ""
    yield b"%bevent: %b\ndata: " % (identity.encode(), event.encode())
    yield from data
    yield b"\n\n"


def _pieces(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The parts, joined to pieces of at most PIECE bytes."""
    piece: list[bytes] = []
    size = 0
    for part in parts:
        if size + len(part) > PIECE:
            yield b"".join(piece)
            piece, size = [], 0
        piece.append(part)
        size += len(part)
    yield b"".join(piece)
