"""KillTrial: kills the service at random times, and checks the changes after each start."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain

import httpx

from tests.crash.replay import Replay
from tests.crash.watcher import Watcher
from tests.crash.writer import Writer
from tests.integration.bodies import all_changes, block, current_list, now_ms
from tests.integration.process import ServiceProcess, wait_until

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
