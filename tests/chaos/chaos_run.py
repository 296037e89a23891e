"""One run: actors, watchers and faults on running replicas; a checker reads the log meanwhile and afterwards."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx

from blocklist.model.node import PERMANENT
from tests.chaos.actors import Actor, Alertmanager, Application, Detection, Maintainer, Operator, Reader
from tests.chaos.checker import MAX_LATE_MS, Checker
from tests.chaos.cluster import Cluster
from tests.chaos.evidence import EvidenceReports
from tests.chaos.faults import FaultLog, inject, watch_stalls
from tests.chaos.model import read_block
from tests.chaos.operation import HighestRevision, Operation, RecordingClient, WallClock
from tests.chaos.watcher import Watcher
from tests.integration.bodies import all_changes
from tests.integration.process import NO_TLS, wait_until

_CHECK_SECONDS: Final = 1.0
_SETTLE_SECONDS: Final = 120.0


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """How many there are of some actors. `pace` multiplies all rates; `timeouts` of requests are in seconds."""

    operators: int
    readers: int
    watchers: int
    applications: int
    pace: float
    timeouts: tuple[float, float]


STORM: Final = Crowd(operators=11, readers=3, watchers=3, applications=0, pace=15, timeouts=(0.2, 3.0))
"""Many requests. No evidence: a replica that is killed forgets what was reported."""
OWNERS: Final = Crowd(operators=2, readers=2, watchers=2, applications=2, pace=1, timeouts=(10.0, 10.0))
"""Several owners against each other, with evidence."""


class ChaosRun:
    """A run on a cluster; `seed` determines requests and faults, but not their timing."""

    def __init__(self, cluster: Cluster, seed: str, crowd: Crowd = STORM, *, max_late_ms: int = MAX_LATE_MS) -> None:
        self._cluster, self._seed, self._crowd = cluster, seed, crowd
        self._clock, self._highest = WallClock(), HighestRevision()
        self._seen: deque[Operation] = deque()
        self.faults = FaultLog(self._clock)
        self._watchers = [Watcher(number, cluster.urls) for number in range(crowd.watchers)]
        reports = EvidenceReports()
        self.checker = Checker(self.faults, reports, max_late_ms)
        self._last = Operator("last", seed, self._client("last"))
        kinds: dict[str, type[Actor]] = {
            "maintainer": Maintainer,
            "detection": Detection,
            "alertmanager": Alertmanager,
            **{f"operator-{number}": Operator for number in range(crowd.operators)},
            **{f"reader-{number}": Reader for number in range(crowd.readers)},
        }
        self._actors = [kind(name, seed, self._client(name)) for name, kind in kinds.items()]
        for name in (f"app-{number}" for number in range(crowd.applications)):
            self._actors.append(Application(name, seed, self._client(name), reports))
        self._log: list[Any] = []

    def run(self, seconds: float, on_progress: Callable[[str], None] = lambda line: None) -> list[str]:
        """Run for so long, or until a violation; return all violations. Exceptions have a note with the seed."""
        try:
            return self._run(seconds, on_progress)
        except BaseException as error:
            error.add_note(f"The seed was {self._seed}.")
            raise

    def summary(self) -> Iterator[str]:
        """Figures of the run, one per line."""
        yield f"seed {self._seed}"
        for name, number in sorted((self.checker.figures + self.faults.kinds).items()):
            yield f"{number:>8} {name}"
        yield f"{len(self.checker.entries):>8} revisions"
        yield f"{sum(it.streams for it in self._watchers):>8} streams of {len(self._watchers)} watchers"
        yield f"{self.checker.latest_ms:>8} ms late was the latest expiry without a fault"

    def save(self, folder: Path) -> None:
        """Write the log to a file."""
        (folder / "log.jsonl").write_text("\n".join(map(json.dumps, self._log)))

    def _client(self, name: str) -> RecordingClient:
        return RecordingClient(name, self._cluster.urls, self._clock, self._highest, self._seen, self._crowd.timeouts)

    def _run(self, seconds: float, on_progress: Callable[[str], None]) -> list[str]:
        watch_over = threading.Event()
        with ExitStack() as stack:
            for actor in (*self._actors, self._last):
                stack.callback(actor.client.close)
            pool = stack.enter_context(ThreadPoolExecutor(len(self._watchers)))
            stack.callback(watch_over.set)
            watching = [pool.submit(watcher.run, self._seed, watch_over) for watcher in self._watchers]
            self._act(seconds, on_progress)
            violations = self.checker.violations or list(self._compare_in_the_end())
            watch_over.set()
            for watched in watching:
                watched.result()
        assert self._clock.error() < 2, "the clock of this machine was set meanwhile"
        return violations

    def _act(self, seconds: float, on_progress: Callable[[str], None]) -> None:
        """Run actors and faults, and check meanwhile; the actors stop after the last fault."""
        acting, faulty = threading.Event(), threading.Event()
        targets = self._cluster.fault_targets
        with ThreadPoolExecutor(len(self._actors) + len(targets) + 1) as pool, ExitStack() as stack:
            stack.callback(acting.set)
            stack.callback(faulty.set)
            running = [pool.submit(actor.run, acting, self._crowd.pace) for actor in self._actors]
            causing = [pool.submit(inject, target, self.faults, self._seed, faulty) for target in targets]
            causing.append(pool.submit(watch_stalls, self.faults, faulty))
            self._check_until(seconds, [*running, *causing], on_progress)
            faulty.set()
            for caused in causing:
                caused.result()
        for ended in running:
            ended.result()

    def _check_until(self, seconds: float, futures: Sequence[Future[None]], on_progress: Callable[[str], None]) -> None:
        begin = self.faults.now()
        progress = begin
        while (now := self.faults.now()) < begin + 1000 * seconds and not self.checker.violations:
            if now >= progress:
                on_progress(f"{(now - begin) // 1000} s: {len(self.checker.entries)} revisions")
                progress = now + 60_000
            self._check(now)
            if wait(futures, timeout=_CHECK_SECONDS, return_when=FIRST_EXCEPTION).done:
                return

    def _check(self, turn: int) -> bool:
        """Read what is new in the log of one replica, and check it; False if that replica cannot be read."""
        operations = [self._seen.popleft() for _ in range(len(self._seen))]
        client = self._last.client.unrecorded(turn // 1000 % len(self._cluster.urls))
        now = self.faults.now()
        params = {"since": len(self._log), "limit": 1000}
        try:
            answer = client.get("/blocklist/changes", params=params)
        except httpx.TransportError:
            answer = None
        complete = answer is not None and answer.status_code == 200 and "age" not in answer.headers
        if answer is not None and complete:
            for change in answer.json()["changes"]:
                self._log.append(change)
                self.checker.apply(change)
            if answer.json()["next"] is None:
                self.checker.require_swept(now)
        self.checker.check(operations)
        return complete

    def _compare_in_the_end(self) -> Iterator[str]:
        """Each replica must accept changes, and all replicas and watchers come to one list and one log."""
        known = len(self.checker.violations)
        for number in range(len(self._cluster.urls)):
            if not _holds(partial(self._accepts_changes, number), 60):
                yield f"replica {number} accepts no changes"
        if not _holds(self._is_settled, _SETTLE_SECONDS):
            yield "the replicas do not come to one list, or what has ended is not swept"
        while self._check(self.faults.now()) and len(self._log) < self._revision():
            pass
        self.checker.require_swept(self.faults.now())
        self.checker.finish()
        yield from self.checker.violations[known:]
        yield from self._differences()

    def _differences(self) -> Iterator[str]:
        """Between the log that was checked and what replicas and watchers have."""
        for number, url in enumerate(self._cluster.urls):
            with httpx.Client(base_url=url, timeout=30, trust_env=False, verify=NO_TLS) as client:
                if all_changes(client) != self._log:
                    yield f"replica {number} has another log"
                yield from self._list_faults(number, client.get("/blocklist").json())
        for number, watcher in enumerate(self._watchers):
            yield from watcher.anomalies
            if watcher.received != self._log:
                yield f"watcher {number} received {len(watcher.received)} of {len(self._log)} changes, or other ones"
        for number, replica in enumerate(self._cluster.replicas):
            yield from (f"replica {number} logged a traceback: {line}" for line in replica.tracebacks())

    def _accepts_changes(self, replica: int) -> bool:
        return not self._last.client.send(self._last.put_merged(), replica).unknown

    def _list_faults(self, number: int, shown: dict[str, Any]) -> Iterator[str]:
        blocks = {node: self.checker.state(node, len(self._log)).block for node in self.checker.nodes}
        if {node: read_block(it) for node, it in shown.items()} != {n: b for n, b in blocks.items() if b is not None}:
            yield f"replica {number} ends with the list {shown}, but the claims make {blocks}"

    def _is_settled(self) -> bool:
        """Whether nothing with an end is left, and everybody knows all changes."""
        self._check(self.faults.now())
        answers = [self._get(url) for url in self._cluster.urls]
        revisions = {int(it.headers["blocklist-revision"]) for it in answers if "age" not in it.headers}
        ends = {int(it["endTimestamp"]) for answer in answers for it in answer.json().values()}
        claims = {b.end for n in self.checker.nodes for b in self.checker.state(n, len(self._log)).claims.values()}
        received = {len(watcher.received) for watcher in self._watchers}
        return ends | claims <= {PERMANENT} and revisions == received == {len(self._log)}

    def _revision(self) -> int:
        return int(self._get(self._cluster.urls[0]).headers["blocklist-revision"])

    def _get(self, url: str) -> httpx.Response:
        return httpx.get(f"{url}/blocklist", timeout=30, trust_env=False, verify=NO_TLS)


def _holds(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether it does within this time."""
    try:
        wait_until(condition, seconds=seconds)
    except AssertionError:
        return False
    return True
