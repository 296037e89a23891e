"""Watch: an endless iterator over the changes of the list."""

from __future__ import annotations

import json
import logging
import random
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Final, Self

import httpx
from httpx_sse import EventSource, ServerSentEvent, SSEError

from blocklist.client.transport import (
    TRANSPORT_ERRORS,
    AbortableSocket,
    BearerAuth,
    http_client,
    retry_after,
    service_url,
)
from blocklist.model.changes import Change, ChangeType, Snapshot
from blocklist.model.draft import BlocklistTracker, OutOfOrderError
from blocklist.model.errors import InvalidError
from blocklist.model.node import Backoff
from blocklist.wire.changes import ChangeBody, SnapshotBody

log = logging.getLogger(__name__)

IDLE_TIMEOUT: Final = 40.0
"""Seconds without data after which a stream counts as lost; the service sends a comment every 15 s."""
_ITEM_EVENTS: Final = frozenset({"snapshot", *(kind.value for kind in ChangeType)})
_CURSOR: Final = re.compile(r"([0-9]{1,16})(-[0-9a-f]{8})?", re.ASCII)
_MAX_RETRY_MS: Final = 3_600_000


class Watch(Iterator[Snapshot | Change]):
    """Yields snapshots and changes in order, without duplicates or gaps, endlessly.

    A Snapshot replaces everything before it; a Change follows the previous item. If the service is unavailable or sends
    invalid data, the watch reconnects with jittered backoff and resumes where it was. Outages raise nothing: each is
    logged once, and visible in `connected` and `last_error`. `close()` may be called from any thread and ends the
    iteration at once, or within `timeout` seconds while connecting.
    """

    def __init__(
        self,
        url: str,
        since: str | None = None,
        *,
        token: str | BearerAuth | None = None,
        timeout: float = 5.0,
        idle_timeout: float = IDLE_TIMEOUT,
        backoff: Backoff | None = None,
        on_date: Callable[[str | None], None] | None = None,
    ) -> None:
        """Does not connect yet. `token` is as in BlocklistClient; timeouts are in seconds.

        `on_date` is called with the Date header of the service's response whenever the watch has connected.

        Raises InvalidError for an invalid URL or `since`, or a malformed token.
        """
        self.url = service_url(url)
        if since is not None and not _CURSOR.fullmatch(since):
            raise InvalidError("since: give a revision, or <revision>-<history> as in event ids.")
        self.last_event_id = since
        self.connected = False
        self.last_error: str | None = None
        self._backoff = backoff or Backoff()
        self._on_date = on_date
        self._failures = 0
        self._received_invalid = False
        self._retry_after: float | None = None
        self._iterating = threading.Lock()
        self._socket = AbortableSocket()
        # No idle connections: the socket of a reused one would be unknown.
        self._http = http_client(self.url, httpx.Timeout(timeout, read=idle_timeout), max_idle=0, token=token)
        self._response: httpx.Response | None = None
        self._events: Iterator[ServerSentEvent] = iter(())
        # After `break`, the garbage collector may be what closes the watch.
        weakref.finalize(self, self._http.close).atexit = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Snapshot | Change:
        with self._iterating:
            while not self._socket.aborted.is_set():
                try:
                    return self._receive()
                except (*TRANSPORT_ERRORS, SSEError, _StreamLostError) as error:
                    self._on_error(error)
            self._disconnect()
            raise StopIteration

    def close(self) -> None:
        """End the iteration: a `next()` waiting in another thread raises StopIteration."""
        self._socket.abort()
        # Otherwise the thread in next() disconnects.
        if self._iterating.acquire(blocking=False):
            try:
                self._disconnect()
            finally:
                self._iterating.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _receive(self) -> Snapshot | Change:
        if self._response is None:
            self._connect()
        for event in self._events:
            if event.retry is not None:
                self._retry_after = min(event.retry, _MAX_RETRY_MS) / 1000
            if (item := _parse_event(event)) is not None:
                self._on_success()
                self.last_event_id = event.id
                return item
            if self._socket.aborted.is_set():
                break
        raise _StreamLostError("the service ended the stream")

    def _connect(self) -> None:
        # A proxy that compresses the stream may hold it back until it has enough of it.
        headers = {"Accept": "text/event-stream", "Accept-Encoding": "identity", "Cache-Control": "no-store"}
        if self.last_event_id is not None:
            headers["Last-Event-ID"] = self.last_event_id
        hook = {"trace": self._socket.trace}
        request = self._http.build_request("GET", f"{self.url}/blocklist/watch", headers=headers, extensions=hook)
        self._response = response = self._http.send(request, stream=True)
        if response.status_code != 200:
            self._retry_after = retry_after(response)
            raise _StreamLostError(f"HTTP {response.status_code} {response.reason_phrase}")
        if "Blocklist-Revision" not in response.headers:
            raise _StreamLostError("the server is not a blocklist service")
        if self._on_date is not None:
            self._on_date(response.headers.get("Date"))
        response.encoding = "utf-8"
        if not self._received_invalid:
            assert isinstance(response.stream, httpx.SyncByteStream)
            response.stream = _BeginningStream(response.stream, self._on_success)
        self._events = EventSource(response).iter_sse()

    def _on_success(self) -> None:
        if self._failures:
            log.info("Watch on %s restored.", self.url)
        self._failures, self._received_invalid, self._retry_after = 0, False, None
        self.connected, self.last_error = True, None

    def _on_error(self, error: Exception) -> None:
        if self._socket.aborted.is_set():
            return
        self.last_error = (str(error) or type(error).__name__)[:200]
        self._disconnect()
        self._failures += 1
        # After invalid data, a stream that opens is not a recovery until it delivers a valid event.
        self._received_invalid = self._received_invalid or isinstance(error, _InvalidEventError)
        if self._failures == 1:
            log.warning("Watch on %s lost (%s); retrying.", self.url, self.last_error)
        retry_after, self._retry_after = self._retry_after, None
        self._socket.aborted.wait(self._backoff.delay(self._failures, random.random(), retry_after))  # noqa: S311

    def _disconnect(self) -> None:
        self.connected = False
        self._events = iter(())
        if self._response is not None:
            self._response.close()
            self._response = None
        if self._socket.aborted.is_set():
            self._http.close()


class _BeginningStream(httpx.SyncByteStream):
    """Calls `on_first` at its first byte: the head alone may be that of a proxy which holds the stream back."""

    def __init__(self, stream: httpx.SyncByteStream, on_first: Callable[[], None]) -> None:
        self._stream = stream
        self._on_first = on_first

    def __iter__(self) -> Iterator[bytes]:
        chunks = iter(self._stream)
        for first in chunks:
            self._on_first()
            yield first
            break
        yield from chunks

    def close(self) -> None:
        self._stream.close()


class _StreamLostError(Exception):
    """The stream is lost."""


class _InvalidEventError(_StreamLostError):
    """An event is invalid."""


def _parse_event(event: ServerSentEvent) -> Snapshot | Change | None:
    """The item of an event; None for one that is neither a snapshot nor a change, of a known or a later type."""
    body: type[SnapshotBody | ChangeBody] = SnapshotBody if event.event == "snapshot" else ChangeBody
    try:
        item = body.parse(json.loads(event.data)).value()
    except (ValueError, RecursionError) as error:
        if event.event not in _ITEM_EVENTS:
            return None
        raise _InvalidEventError(f"invalid {event.event} event: {error}") from error
    cursor = _CURSOR.fullmatch(event.id)
    if cursor is None or cursor[2] is None or int(cursor[1]) != item.revision:
        raise _InvalidEventError(f"the {event.event} event of revision {item.revision} has the id {event.id[:64]!a}")
    return item


# WatchThread: keeps a tracker up to date from a watch that a background thread reads.


class WatchThread:
    """Receives a watch in a daemon thread; `apply_pending` applies what was received to `tracker`.

    `tracker` is None until the first snapshot. It belongs to the thread that calls `apply_pending`. `on_update` is
    called in the daemon thread for each received item.
    """

    def __init__(self, open_watch: Callable[[], Watch], on_update: Callable[[], None]) -> None:
        self.tracker: BlocklistTracker | None = None
        self._open_watch = open_watch
        self._on_update = on_update
        self._received: SimpleQueue[tuple[Watch, Snapshot | Change]] = SimpleQueue()
        self._closed = threading.Event()
        self._watch = self._open_watch()
        threading.Thread(target=self._run, name="blocklist-watch", daemon=True).start()

    @property
    def connected(self) -> bool:
        return self._watch.connected

    @property
    def last_error(self) -> str | None:
        """The error of the current outage; None while connected."""
        return self._watch.last_error

    def apply_pending(self) -> bool:
        """Apply everything received; return whether the tracker changed."""
        updated = False
        while True:
            try:
                watch, item = self._received.get_nowait()
            except Empty:
                return updated
            # Items of a replaced watch are part of the next watch's snapshot.
            if watch is self._watch:
                updated |= self._apply(item)

    def close(self) -> None:
        """End the watch; the tracker remains as it is."""
        self._closed.set()
        self._watch.close()

    def _apply(self, item: Snapshot | Change) -> bool:
        if isinstance(item, Snapshot):
            if self.tracker is None:
                self.tracker = BlocklistTracker(item)
            else:
                self.tracker.reset(item)
            return True
        if self.tracker is None:
            return False
        try:
            self.tracker.apply(item)
        except OutOfOrderError:
            # A change is missing. A new watch starts with a snapshot; until then the tracker remains as it is.
            old, self._watch = self._watch, self._open_watch()
            old.close()
            return False
        return True

    def _run(self) -> None:
        while not self._closed.is_set():
            watch = self._watch
            try:
                for item in watch:
                    self._received.put((watch, item))
                    self._on_update()
            except Exception:
                # Whatever happens, the thread goes on: a new watch starts with a snapshot.
                log.exception("Reading the watch failed; retrying.")
            if watch is self._watch and not self._closed.wait(1):
                self._watch = self._open_watch()
