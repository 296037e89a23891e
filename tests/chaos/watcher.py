"""A watcher that moves from replica to replica, and resumes at its cursor."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import httpx
from httpx_sse import ServerSentEvent

from tests.integration.event_stream import watching
from tests.integration.process import NO_TLS

_READ_TIMEOUT_SECONDS: Final = 3.0
"""Timeout without an event before it moves to another replica."""
_STREAM_SECONDS: Final = (0.2, 4.0)
"""Minimum and maximum duration of a stream."""


class Watcher:
    """Records every change from the first on, and events that it should not have received."""

    def __init__(self, number: int, urls: Sequence[str]) -> None:
        self.received: list[Any] = []
        self.anomalies: list[str] = []
        self.streams = 0
        self._number = number
        self._urls = urls
        self._cursor: str | None = None

    def run(self, seed: str, stop: threading.Event) -> None:
        """Watch until `stop` is set."""
        rng = random.Random(f"{seed} watcher {self._number}")
        while not stop.wait(0.05):
            url = rng.choice(self._urls)
            try:
                with httpx.Client(
                    base_url=url, timeout=_READ_TIMEOUT_SECONDS, trust_env=False, verify=NO_TLS
                ) as client:
                    self._follow(client, time.monotonic() + rng.uniform(*_STREAM_SECONDS), stop)
            except httpx.TransportError:
                continue

    def _follow(self, client: httpx.Client, until: float, stop: threading.Event) -> None:
        since = 0 if self._cursor is None else None
        with watching(client, since=since, last_event_id=self._cursor) as events:
            self.streams += 1
            for event in _changes(events):
                self._receive(event)
                if stop.is_set() or time.monotonic() > until:
                    return

    def _receive(self, event: ServerSentEvent) -> None:
        if event.event == "snapshot":
            # The log reaches back to the first change: each cursor of this history can be resumed.
            self.anomalies.append(f"watcher {self._number}, at {self._cursor}, was sent a snapshot of {event.id}")
        else:
            self.received.append(event.json())
        self._cursor = event.id


def _changes(events: Iterator[ServerSentEvent]) -> Iterator[ServerSentEvent]:
    """All events before `bye`."""
    for event in events:
        if event.event == "bye":
            return
        yield event
