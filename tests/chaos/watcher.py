"""A watcher that moves from replica to replica, and resumes where it was."""

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
"""Seconds without an event after which it turns to another replica."""
_STREAM_SECONDS: Final = (0.2, 4.0)
"""Seconds that it stays at a replica, at least and at most."""


class Watcher:
    """Keeps every change that it is told from the first one on, and what it should not have been told."""

    def __init__(self, number: int, urls: Sequence[str]) -> None:
        self.received: list[Any] = []
        self.anomalies: list[str] = []
        self.streams = 0
        self._number = number
        self._urls = urls
        self._cursor: str | None = None

    def run(self, seed: str, stop: threading.Event) -> None:
        """Watch until the end."""
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
    """All events before the goodbye."""
    for event in events:
        if event.event == "bye":
            return
        yield event
