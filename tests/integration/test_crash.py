"""Killed again and again while clients write and watch: nothing acknowledged is lost, no revision is used twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
from httpx_sse import ServerSentEvent

from tests.integration.bodies import all_changes, block, held, revision_of
from tests.integration.event_stream import watching
from tests.integration.process import ServiceProcess, wait_until

ROUNDS = 8
WRITES_A_ROUND = 150


@dataclass
class Writer:
    """Blocks one node after the other and frees every third, and keeps what was acknowledged."""

    name: str
    acknowledged: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Revision -> (type, node id)."""

    def run(self, service: ServiceProcess, stop: threading.Event) -> None:
        number = 0
        with service.client() as client:
            while not stop.is_set():
                number += 1
                node_id = f"{self.name}-{number}"
                if self._ask(client, "PUT", node_id, "blocked", stop) and number % 3 == 0:
                    self._ask(client, "DELETE", node_id, "unblocked", stop)

    def _ask(self, client: httpx.Client, method: str, node_id: str, kind: str, stop: threading.Event) -> bool:
        """Whether it was acknowledged; without an answer nobody knows, and the next node is taken."""
        try:
            body = block() if method == "PUT" else None
            answer = client.request(method, f"/blocklist/nodes/{node_id}", json=body)
        except httpx.TransportError:
            stop.wait(0.02)
            return False
        assert answer.status_code in {200, 201, 503}, answer.text
        if answer.status_code == 503:
            return False
        revision = revision_of(answer)
        assert revision not in self.acknowledged
        self.acknowledged[revision] = (kind, node_id)
        return True


@dataclass
class Watcher:
    """Watches from the first change on and resumes where it was cut off."""

    seen: list[Any] = field(default_factory=list)

    def run(self, service: ServiceProcess, stop: threading.Event) -> None:
        cursor: str | None = None
        with service.client() as client:
            while not stop.is_set():
                with suppress(httpx.TransportError):
                    since = 0 if cursor is None else None
                    with watching(client, since=since, last_event_id=cursor) as events:
                        for event in self._until(events, stop):
                            cursor = event.id
                stop.wait(0.02)

    def _until(self, events: Iterator[ServerSentEvent], stop: threading.Event) -> Iterator[ServerSentEvent]:
        for event in events:
            if event.event == "bye":
                return
            assert event.event in {"blocked", "unblocked"}, "a cursor of this history never needs a snapshot"
            self.seen.append(event.json())
            yield event
            if stop.is_set():
                return


def test_nothing_acknowledged_is_lost_and_the_watch_has_neither_gap_nor_repeat(fresh: ServiceProcess) -> None:
    writers, watchers = [Writer(f"w{n}") for n in range(4)], [Watcher(), Watcher()]
    stop_writing, stop_watching = threading.Event(), threading.Event()
    with ThreadPoolExecutor(6) as pool:
        writing = [pool.submit(writer.run, fresh, stop_writing) for writer in writers]
        watching = [pool.submit(watcher.run, fresh, stop_watching) for watcher in watchers]
        try:
            for _ in range(ROUNDS):
                goal = _written(writers) + WRITES_A_ROUND
                wait_until(lambda goal=goal: _written(writers) >= goal or any(f.done() for f in writing), seconds=60)  # type: ignore[misc]
                fresh.kill()
                fresh.start()
        finally:
            stop_writing.set()
        for done in writing:
            done.result(60)
        with fresh.client() as client:
            _the_last_change_is_seen(client, watchers, stop_watching)
        for done in watching:
            done.result(60)
    with fresh.client() as client:
        _nothing_is_lost(client, writers, watchers)


def _written(writers: list[Writer]) -> int:
    return sum(len(writer.acknowledged) for writer in writers)


def _the_last_change_is_seen(client: httpx.Client, watchers: list[Watcher], stop: threading.Event) -> None:
    """Wait for the watchers to catch up; then one change more, to wake them for the end."""
    last = held(client)[0]
    try:
        wait_until(lambda: all(len(watcher.seen) >= last for watcher in watchers), seconds=60)
    finally:
        stop.set()
        client.put("/blocklist/nodes/the-end", json=block())


def _nothing_is_lost(client: httpx.Client, writers: list[Writer], watchers: list[Watcher]) -> None:
    log = all_changes(client)
    assert [change["revision"] for change in log] == list(range(1, len(log) + 1))
    logged = {change["revision"]: (change["type"], change["node"]["id"]) for change in log}
    for writer in writers:
        assert writer.acknowledged.items() <= logged.items()
    for watcher in watchers:
        assert watcher.seen == log[: len(watcher.seen)]
        assert len(watcher.seen) >= len(log) - 1
    listed: set[str] = set()
    for kind, node_id in logged.values():
        (listed.add if kind == "blocked" else listed.discard)(node_id)
    assert set(held(client)[1]) == listed
