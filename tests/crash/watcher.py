"""A client that watches, and resumes after each disconnection."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
from httpx_sse import ServerSentEvent

from tests.crash.writer import RETRY_SECONDS
from tests.integration.event_stream import watching
from tests.integration.process import ServiceProcess

_CHANGES = {"blocked", "merged", "narrowed", "unblocked", "expired"}


@dataclass
class Watcher:
    """Reads every change from the first; `connections` counts its connections."""

    changes: list[Any] = field(default_factory=list)
    connections: int = 0

    def run(self, service: ServiceProcess, stop: threading.Event) -> None:
        cursor: str | None = None
        with service.client() as client:
            while not stop.is_set():
                since = 0 if cursor is None else None
                with suppress(httpx.TransportError), watching(client, since=since, last_event_id=cursor) as events:
                    self.connections += 1
                    for event in self._until(events, stop):
                        cursor = event.id
                stop.wait(RETRY_SECONDS)

    def _until(self, events: Iterator[ServerSentEvent], stop: threading.Event) -> Iterator[ServerSentEvent]:
        for event in events:
            if event.event == "bye":
                return
            assert event.event in _CHANGES, "a cursor of this history never needs a snapshot"
            change = event.json()
            assert change["revision"] == len(self.changes) + 1, f"{change} came after {self.changes[-1:]}"
            self.changes.append(change)
            yield event
            if stop.is_set():
                return
