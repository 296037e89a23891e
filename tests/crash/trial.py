"""KillTrial: kills the service at random times, and checks the changes after each start."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import httpx
from httpx_sse import ServerSentEvent

from tests.crash.writer import RETRY_SECONDS, Writer
from tests.integration.bodies import all_changes, block, current_list, now_ms
from tests.integration.event_stream import watching
from tests.integration.process import ServiceProcess, wait_until

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


UNBLOCKING = {"unblocked", "expired"}


@dataclass
class Replay:
    """Applies changes in order; `changes` has them all, `blocked` the nodes that are blocked after them."""

    changes: list[Any] = field(default_factory=list)
    blocked: dict[str, Any] = field(default_factory=dict)

    def apply(self, change: Any) -> None:
        """Apply the next change. Raises AssertionError if it cannot follow."""
        assert change["revision"] == len(self.changes) + 1, f"{change} follows {self.changes[-1:]}"
        node = dict(change["node"])
        before = self.blocked.pop(node.pop("id"), None)
        assert (before is None) == (change["type"] == "blocked"), f"{change} cannot follow {before}"
        if change["type"] in UNBLOCKING:
            assert node == before, f"{change} frees another node than {before}"
        else:
            self.blocked[change["node"]["id"]] = node
        self.changes.append(change)

    def check_list(self, listed: Mapping[str, Any], begin: int, end: int) -> None:
        """Assert that `listed` is the list at the last revision, from a GET between `begin` and `end` (Unix ms).

        A block that expires in between may be listed or not; an expired one is not, even before its change is logged.
        """
        nodes = {node_id: {**node} for node_id, node in listed.items()}
        for node in nodes.values():
            assert node.pop("taskManagers") == []
        assert nodes.items() <= self.blocked.items()
        missing = [self.blocked[node_id] for node_id in self.blocked.keys() - nodes.keys()]
        assert all(int(node["endTimestamp"]) <= end for node in missing), missing
        assert all(int(node["endTimestamp"]) > begin for node in nodes.values())


WRITERS = 4
WATCHERS = 2
CHANGES_BETWEEN = 50
"""Minimum number of changes acknowledged between a start and the next kill."""
MAX_PAUSE_SECONDS = 0.4
"""Maximum random delay of a kill after those changes, or after a start that is killed too."""


@dataclass
class TrialStats:
    """Statistics of a trial; `starts` are the seconds from each start to readiness."""

    kills: int = 0
    kills_in_start: int = 0
    changes: int = 0
    acknowledged: int = 0
    unanswered: int = 0
    resumed: int = 0
    starts: list[float] = field(default_factory=list)


@dataclass
class KillTrial:
    """Writers and watchers use a service whose list is empty at first; a violation is an AssertionError.

    Every third start is killed too, before or soon after readiness, to test the recovery.
    """

    service: ServiceProcess
    stats: TrialStats = field(default_factory=TrialStats)

    def __post_init__(self) -> None:
        self._writers = [Writer(f"w{n}") for n in range(WRITERS)]
        self._watchers = [Watcher() for _ in range(WATCHERS)]
        self._replay = Replay()
        self._pause = threading.Event()

    def run(self, kills: int) -> TrialStats:
        """Kill the service `kills` times. It runs before and after."""
        with self._running(self._watchers), self.service.client() as client:
            with self._running(self._writers) as writing:
                for _ in range(kills):
                    self._wait_for_changes(writing)
                    self._kill()
                    self._check(client)
            client.put("/blocklist/nodes/the-end", json=block()).raise_for_status()
            self._check(client)
            listed = all_changes(client)[: len(self._replay.changes)]
            assert listed == self._replay.changes, "the log is the same after every start"
        if self.service.database.exists():
            self._check_file()
        return self._final_stats()

    @contextmanager
    def _running(self, clients: list[Writer] | list[Watcher]) -> Iterator[list[Future[None]]]:
        """Run each client in a thread; raise their errors at the end."""
        stop = threading.Event()
        with ThreadPoolExecutor(len(clients)) as pool:
            working = [pool.submit(client.run, self.service, stop) for client in clients]
            try:
                yield working
            finally:
                stop.set()
                self._wake_watches()
            for done in working:
                done.result(60)

    def _wake_watches(self) -> None:
        """Make a change, because watchers check after each change whether to stop."""
        with suppress(httpx.TransportError), self.service.client() as client:
            client.put(f"/blocklist/nodes/wake-{now_ms()}", json=block())

    def _wait_for_changes(self, writing: list[Future[None]]) -> None:
        goal = self._acknowledged() + CHANGES_BETWEEN
        wait_until(lambda: self._acknowledged() >= goal or any(done.done() for done in writing))
        assert not any(done.done() for done in writing), [done.exception() for done in writing if done.done()]
        self._pause.wait(random.uniform(0, MAX_PAUSE_SECONDS))

    def _kill(self) -> None:
        self.service.kill()
        self.stats.kills += 1
        if self.stats.kills % 3 == 0:
            self.service.launch()
            self._pause.wait(random.uniform(0, 2 * MAX_PAUSE_SECONDS))
            self.service.kill()
            self.stats.kills_in_start += 1
        begin = time.monotonic()
        self.service.start()
        self.stats.starts.append(time.monotonic() - begin)

    def _check(self, client: httpx.Client) -> None:
        """Check list, log and watches while writers and watchers go on."""
        acknowledged = [dict(writer.acknowledged) for writer in self._writers]
        checked, begin = len(self._replay.changes), now_ms()
        revision, listed = current_list(client)
        self._read_log(client, revision)
        log = self._replay.changes
        self._replay.check_list(listed, begin, now_ms())
        for number, made in chain.from_iterable(changes.items() for changes in acknowledged):
            assert number <= len(log), f"revision {number} was acknowledged and is lost: {made}"
            change = log[number - 1]
            assert made == (change["type"], change["node"]["id"]), "another change has its revision"
        wait_until(lambda: all(len(watcher.changes) >= revision for watcher in self._watchers))
        for watcher in self._watchers:
            assert watcher.changes[checked:revision] == log[checked:], "a watcher has each change once, in order"

    def _read_log(self, client: httpx.Client, until: int) -> None:
        """Replay the log up to this revision."""
        while (since := len(self._replay.changes)) < until:
            params = {"since": since, "limit": min(1000, until - since)}
            for change in client.get("/blocklist/changes", params=params).raise_for_status().json()["changes"]:
                self._replay.apply(change)

    def _check_file(self) -> None:
        """SQLite's own integrity check, if the list is in a SQLite file."""
        if not self.service.database.exists():
            return
        self.service.stop()
        with closing(sqlite3.connect(self.service.database)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        self.service.start()

    def _acknowledged(self) -> int:
        return sum(len(writer.acknowledged) for writer in self._writers)

    def _final_stats(self) -> TrialStats:
        self.stats.acknowledged = self._acknowledged()
        self.stats.changes = len(self._replay.changes)
        self.stats.unanswered = sum(writer.unanswered for writer in self._writers)
        self.stats.resumed = sum(watcher.connections - 1 for watcher in self._watchers)
        return self.stats
