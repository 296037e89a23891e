"""ChangeFeed: the change log for watches, each of which reads from its own cursor."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, Protocol

from app.engine.list_view import ListView
from app.logs.isolation import isolated
from app.store.rows import UnreadableRowError, log_once
from app.store.store import Store
from blocklist.model.changes import Change
from blocklist.model.errors import UnavailableError
from blocklist.wire.body import dump_json
from blocklist.wire.changes import change_body, dump_snapshot

MAX_RECENT_CHANGES: Final = 4096
"""Number of changes kept in memory; a cursor further behind reads from the database."""
PAGE_CHANGES: Final = 250
"""Number of changes read from the database at once: limits the cost of a watch that is far behind."""
CHUNK_BYTES: Final = 64 * 1024
"""Maximum size of what is rendered and sent at once, unless one event is larger: limits the memory of a slow watch."""
STREAMS_PER_TURN: Final = 250
"""Number of streams woken before the event loop runs other tasks."""


class WaitingStream(Protocol):
    """A stream that is up to date and waits for changes."""

    def wake(self) -> None: ...


class ChangeFeed:
    """The recent changes, rendered on demand and once for all streams at the same cursor.

    Nothing is queued per stream: a slow one is a cursor that is behind. `streams` are woken when there are changes.
    Belongs to the event loop.
    """

    def __init__(self, store: Store, view: ListView) -> None:
        self.revision = view.tracker.revision
        self.history = view.tracker.history
        self.closed = False
        self.open_watches = 0
        self.streams: set[WaitingStream] = set()
        self._store = store
        self._view = view
        self._recent: deque[Change] = deque(maxlen=MAX_RECENT_CHANGES)
        self._events_cache: tuple[int, int, bytes, int] = (-1, -1, b"", -1)
        self._snapshot_cache: tuple[int, int, list[bytes]] = (0, -1, [])

    def publish(self, changes: Sequence[Change]) -> None:
        """Add changes that were committed."""
        self._recent.extend(changes)
        self.revision = changes[-1].revision
        if self.streams:
            # Later: the requests that made the changes get their responses before a thousand streams are woken.
            asyncio.get_running_loop().call_soon(self._wake_streams)

    def reset(self) -> None:
        """The list was reloaded. Streams of another history end; their clients reconnect and get a snapshot."""
        self.revision, self.history = self._view.tracker.revision, self._view.tracker.history
        self._recent.clear()
        self._events_cache = (-1, -1, b"", -1)
        self._snapshot_cache = (0, -1, [])
        asyncio.get_running_loop().call_soon(self._wake_streams)

    def close(self) -> None:
        """The service stops: streams end with a `bye` event."""
        self.closed = True
        self._wake_streams()

    async def read(self, cursor: int) -> tuple[bytes, int] | None:
        """Events after `cursor`, and the cursor after them; None if they are no longer in the log.

        Raises UnavailableError if they are only in the database, and that is unavailable.
        """
        if (recent := self.recent_events(cursor)) is not None:
            return recent
        history = self.history
        changes = await self._stored(cursor, PAGE_CHANGES)
        if not changes or history != self.history or changes[0].revision != cursor + 1:
            return None
        return self._events(changes)

    async def changes(self, cursor: int, end: int) -> list[Change] | None:
        """The changes after `cursor` up to `end`; None if they are no longer in the log, or too many.

        Raises UnavailableError if they are only in the database, and that is unavailable.
        """
        first = self.revision - len(self._recent)
        if cursor >= first:
            return list(islice(self._recent, cursor - first, end - first))
        if end - cursor > MAX_RECENT_CHANGES:
            return None
        changes = await self._stored(cursor, end - cursor)
        return changes if changes and changes[0].revision == cursor + 1 else None

    async def was_never_issued(self, revision: int) -> bool:
        """Whether a revision ahead of this replica does not exist; False if it cannot be known."""
        try:
            return not await self._store.changes(revision - 1, 1)
        except UnavailableError:
            return False

    def timestamp_of(self, revision: int) -> int | None:
        """When a revision was committed (Unix ms); None if it is not in memory."""
        first = self.revision - len(self._recent)
        return self._recent[revision - first - 1].at if first < revision <= self.revision else None

    def recent_events(self, cursor: int) -> tuple[bytes, int] | None:
        """Events after `cursor`, and the cursor after them; None if they are not in memory."""
        first = self.revision - len(self._recent)
        if cursor < first:
            return None
        if cursor >= self.revision:
            return b"", cursor
        if self._events_cache[:2] != (cursor, self.revision):
            self._events_cache = (cursor, self.revision, *self._events(islice(self._recent, cursor - first, None)))
        return self._events_cache[2:]

    def snapshot(self) -> tuple[list[bytes], int]:
        """The whole list as an event in chunks, and the cursor after it; rendered once per state of the list."""
        until, revision, event = self._snapshot_cache
        if revision != self.revision or until <= self._view.clock():
            until, snapshot = self._view.snapshot()
            revision = snapshot.revision
            event = list(_chunks(sse_parts("snapshot", dump_snapshot(snapshot), f"{revision}-{self.history}")))
            self._snapshot_cache = (until, revision, event)
        return event, revision

    async def _stored(self, cursor: int, limit: int) -> list[Change]:
        """Changes in the database; none if one of them cannot be read, as if they had been compacted."""
        try:
            return await self._store.changes(cursor, limit)
        except UnreadableRowError as error:
            log_once(error.detail)
            return []

    def _wake_streams(self, streams: Sequence[WaitingStream] = ()) -> None:
        streams = streams or tuple(self.streams)
        isolated_stream = isolated("stream")
        for stream in streams[:STREAMS_PER_TURN]:
            with isolated_stream:
                stream.wake()
        if len(streams) > STREAMS_PER_TURN:
            asyncio.get_running_loop().call_soon(self._wake_streams, streams[STREAMS_PER_TURN:])

    def _events(self, changes: Iterable[Change]) -> tuple[bytes, int]:
        """The events of as many of these changes as fit into a chunk, and the cursor after them."""
        events: list[bytes] = []
        size = cursor = 0
        for change in changes:
            event = sse(change.type.value, dump_json(change_body(change)), f"{change.revision}-{self.history}")
            size += len(event)
            if events and size > CHUNK_BYTES:
                break
            events.append(event)
            cursor = change.revision
        return b"".join(events), cursor


def sse(event: str, data: bytes, event_id: str | None = None) -> bytes:
    """A server-sent event; the data must be one line, such as compact JSON."""
    return b"".join(sse_parts(event, (data,), event_id))


def sse_parts(event: str, data: Iterable[bytes], event_id: str | None = None) -> Iterator[bytes]:
    """The same, in parts, from data in parts."""
    identity = f"id: {event_id}\n" if event_id is not None else ""
    yield b"%bevent: %b\ndata: " % (identity.encode(), event.encode())
    yield from data
    yield b"\n\n"


def _chunks(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The parts, joined to chunks of at most CHUNK_BYTES."""
    chunk: list[bytes] = []
    size = 0
    for part in parts:
        if size + len(part) > CHUNK_BYTES:
            yield b"".join(chunk)
            chunk, size = [], 0
        chunk.append(part)
        size += len(part)
    yield b"".join(chunk)
