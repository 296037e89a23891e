"""Watch: the list's changes as an iterator that never gives up."""

from __future__ import annotations

import contextlib
import json
import logging
import random
import socket
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Self

import httpx
from httpx_sse import EventSource, ServerSentEvent, SSEError
from pydantic import ValidationError

from blocklist.changes import Change, Snapshot
from blocklist.errors import InvalidError
from blocklist.retry import Backoff
from blocklist.wire import ChangeBody, SnapshotBody

log = logging.getLogger(__name__)

QUIET: Final = 40.0
"""Seconds without a byte after which a stream is taken for dead; the service comments every 15."""
_CHANGES: Final = frozenset({"blocked", "merged", "unblocked", "expired"})


class Watch(Iterator[Snapshot | Change]):
    """Yields what the service says, in order, none twice and none missing, for ever.

    A Snapshot replaces all that was said before; a Change follows the one before it. When the service is away or
    answers garbage it reconnects with jittered back-off and resumes where it was: outages raise nothing. They are
    logged once each, and seen in `connected` and `last_error`. `close()` may be called from any thread and ends the
    iteration at once.
    """

    def __init__(
        self, url: str, since: str | None = None, *, timeout: float = 5.0, backoff: Backoff | None = None
    ) -> None:
        self.url = url
        self.last_id = since
        self.connected = False
        self.last_error: str | None = None
        self._asked_retry: float | None = None
        self._timeout = httpx.Timeout(timeout, read=QUIET)
        self._backoff = backoff or Backoff()
        self._failures = 0
        self._closed = threading.Event()
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._items = self._run()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Snapshot | Change:
        return next(self._items)

    def close(self) -> None:
        """End the iteration: a `next()` that waits in another thread raises StopIteration."""
        with self._lock:
            self._closed.set()
            if self._socket is not None:
                # A thread that waits in recv() wakes when the socket is shut down, not when it is closed.
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> Iterator[Snapshot | Change]:
        with httpx.Client(timeout=self._timeout) as http:
            while not self._closed.is_set():
                try:
                    yield from self._stream(http)
                    self._lost("the service ended the stream", self._asked_retry)
                except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, SSEError, _GarbageError) as error:
                    self._lost(str(error) or type(error).__name__)
                except OSError as error:
                    self._lost(str(error))

    def _stream(self, http: httpx.Client) -> Iterator[Snapshot | Change]:
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if self.last_id is not None:
            headers["Last-Event-ID"] = self.last_id
        with http.stream("GET", f"{self.url}/blocklist/watch", headers=headers) as response:
            self._hold(response)
            if response.status_code != 200:
                raise _GarbageError(f"HTTP {response.status_code} {response.reason_phrase}")
            for event in EventSource(response).iter_sse():
                if event.retry is not None:
                    self._asked_retry = event.retry / 1000
                if (item := _item(event)) is not None:
                    self._heard()
                    self.last_id = event.id
                    yield item
                if self._closed.is_set():
                    return

    def _hold(self, response: httpx.Response) -> None:
        stream = response.extensions.get("network_stream")
        with self._lock:
            self._socket = stream.get_extra_info("socket") if stream is not None else None
            if self._closed.is_set():
                raise _GarbageError("closed")

    def _heard(self) -> None:
        if self._failures:
            log.info("Watching %s again.", self.url)
        self._failures = 0
        self.connected, self.last_error, self._asked_retry = True, None, None

    def _lost(self, why: str, asked: float | None = None) -> None:
        with self._lock:
            self._socket = None
        if self._closed.is_set():
            return
        self._failures += 1
        self.connected, self.last_error = False, why
        if self._failures == 1:
            log.warning("Lost the watch on %s (%s); trying again.", self.url, why)
        self._closed.wait(self._backoff.delay(self._failures, random.random(), asked))  # noqa: S311


class _GarbageError(Exception):
    """What came is not what a blocklist service sends."""


def _item(event: ServerSentEvent) -> Snapshot | Change | None:
    """The event's value; None for an event that is none of ours to understand (a newer service may send more)."""
    if event.event not in _CHANGES and event.event != "snapshot":
        return None
    body: type[SnapshotBody | ChangeBody] = SnapshotBody if event.event == "snapshot" else ChangeBody
    try:
        return body.model_validate(json.loads(event.data)).value()
    except (ValueError, ValidationError, InvalidError, RecursionError) as error:
        raise _GarbageError(f"unreadable {event.event} event: {error}") from error
