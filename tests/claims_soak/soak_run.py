"""One run: actors, watchers and faults on running replicas; a checker reads the log meanwhile and afterwards."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from blocklist.model.node import PERMANENT
from tests.chaos.operation import WallClock
from tests.chaos.replica import ChaosReplica
from tests.chaos.watcher import Watcher
from tests.claims_soak.actors import (
    ALERT_DURATION_MS,
    RACKS,
    Actor,
    Alertmanager,
    Application,
    Detection,
    Maintainer,
    Operator,
    Reader,
)
from tests.claims_soak.checker import MAX_LATE_MS, Checker
from tests.claims_soak.evidence import EvidenceReports
from tests.claims_soak.faults import ConnectionFaults, FaultLog, ProcessFaults, watch_stalls
from tests.claims_soak.model import read_block
from tests.claims_soak.operation import Operation, RecordingClient
from tests.integration.bodies import all_changes
from tests.integration.process import NO_TLS, url_of, wait_until
from tests.postgres import PostgresServer

_CHECK_SECONDS: Final = 1.0
_SEVER: Final = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'soak'"
_SETTLE_SECONDS: Final = 120.0


@dataclass(frozen=True)
class Cluster:
    """Replicas on one database; `sever` closes the connections of a PostgreSQL database."""

    replicas: Sequence[ChaosReplica]
    sever: Callable[[], object] | None

    @property
    def urls(self) -> list[str]:
        return [replica.url for replica in self.replicas]


@contextmanager
def running_cluster(folder: Path, replicas: int) -> Iterator[Cluster]:
    """A number of replicas on PostgreSQL; for 0 one service on SQLite."""
    nodes_file = folder / "nodes.csv"
    nodes_file.write_text("\n".join(["id,labels", *(f"{it},rack={rack}" for rack in RACKS for it in RACKS[rack])]))
    settings = {
        "nodes_file": str(nodes_file),
        "alertmanager_duration": f"{ALERT_DURATION_MS // 1000}s",
        "evidence_max_share": "1",
        # The reference model has no repeated blocks.
        "repeat_window": "0s",
    }
    with ExitStack() as stack:
        server = stack.enter_context(PostgresServer()) if replicas else None
        url = url_of(folder / "blocklist.db") if server is None else server.create("soak")
        running = [ChaosReplica(folder / f"replica-{n}", url, **settings) for n in range(replicas or 1)]
        running[0].migrate()
        for replica in running:
            stack.enter_context(replica)
        yield Cluster(running, None if server is None else lambda: server.execute(_SEVER))


class SoakRun:
    """A run on a cluster; `seed` determines the requests, but not their timing. `pace` multiplies all rates."""

    def __init__(self, cluster: Cluster, seed: str, *, pace: float = 1, max_late_ms: int = MAX_LATE_MS) -> None:
        self._cluster = cluster
        self._pace = pace
        self._clock = WallClock()
        self._seen: deque[Operation] = deque()
        self._faults = FaultLog(self._clock)
        self._watchers = [Watcher(number, [url]) for number, url in enumerate(cluster.urls)]
        self._seed = seed
        reports = EvidenceReports()
        self.checker = Checker(self._faults, reports, max_late_ms)
        self._actors: list[Actor] = [
            Operator("operator-1", seed, self._client()),
            Operator("operator-2", seed, self._client()),
            Maintainer("maintainer", seed, self._client()),
            Detection("detection", seed, self._client()),
            Alertmanager("alertmanager", seed, self._client()),
            *(Application(f"app-{number}", seed, self._client(), reports) for number in (1, 2)),
            *(Reader(f"reader-{n}", seed, self._client(), n) for n in range(len(cluster.urls))),
        ]
        self._log: list[Any] = []

    def run(self, seconds: float, on_progress: Callable[[str], None] = lambda line: None) -> list[str]:
        """Run for so long, or until a violation; return all violations."""
        watch_over = threading.Event()
        with ExitStack() as stack:
            for actor in self._actors:
                stack.callback(actor.client.close)
            pool = stack.enter_context(ThreadPoolExecutor(len(self._watchers)))
            stack.callback(watch_over.set)
            watching = [pool.submit(watcher.run, self._seed, watch_over) for watcher in self._watchers]
            self._act(seconds, on_progress)
            violations = self.checker.violations or list(self._compare_in_the_end())
            watch_over.set()
            for watched in watching:
                watched.result()
        assert self._clock.error() < 1_000_000, "the clock of this machine was set meanwhile"
        return violations

    def summary(self) -> Iterator[str]:
        """Figures of the run, one per line."""
        for name, number in sorted((self.checker.figures + self._faults.kinds).items()):
            yield f"{number:>8} {name}"
        yield f"{len(self.checker.entries):>8} revisions"
        yield f"{sum(it.streams for it in self._watchers):>8} streams of {len(self._watchers)} watchers"
        yield f"{self.checker.latest_ms:>8} ms late was the latest expiry without a fault"

    def save(self, folder: Path) -> None:
        """Write the log to a file."""
        (folder / "log.jsonl").write_text("\n".join(map(json.dumps, self._log)))

    def _client(self) -> RecordingClient:
        return RecordingClient(self._cluster.urls, self._clock, self._seen)

    def _act(self, seconds: float, on_progress: Callable[[str], None]) -> None:
        """Run actors and faults, and check meanwhile; the actors stop after the last fault."""
        acting, faulty = threading.Event(), threading.Event()
        processes = ProcessFaults(self._cluster.replicas, self._faults, self._seed)
        with ThreadPoolExecutor(len(self._actors) + 3) as pool, ExitStack() as stack:
            stack.callback(acting.set)
            stack.callback(faulty.set)
            running = [pool.submit(actor.run, acting, self._pace) for actor in self._actors]
            causing: list[Future[None]] = [pool.submit(processes.run, faulty, self._pace)]
            causing.append(pool.submit(watch_stalls, self._faults, faulty))
            if self._cluster.sever is not None:
                connections = ConnectionFaults(self._cluster.sever, self._faults, self._seed)
                causing.append(pool.submit(connections.run, faulty, self._pace))
            self._check_until(seconds, [*running, *causing], on_progress)
            faulty.set()
            for caused in causing:
                caused.result()
        for ended in running:
            ended.result()

    def _check_until(self, seconds: float, futures: Sequence[Future[None]], on_progress: Callable[[str], None]) -> None:
        begin = self._faults.now()
        progress = begin
        while (now := self._faults.now()) < begin + 1000 * seconds and not self.checker.violations:
            if now >= progress:
                on_progress(f"{(now - begin) // 1000} s: {len(self.checker.entries)} revisions")
                progress = now + 60_000
            self._check(now)
            if wait(futures, timeout=_CHECK_SECONDS, return_when=FIRST_EXCEPTION).done:
                return

    def _check(self, turn: int) -> bool:
        """Read what is new in the log of one replica, and check it; False if that replica cannot be read."""
        operations = [self._seen.popleft() for _ in range(len(self._seen))]
        client = self._actors[-1].client.unrecorded(turn // 1000 % len(self._cluster.urls))
        now = self._faults.now()
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
        """All replicas and watchers must come to one list and one log, in which everything that has ended is free."""
        known = len(self.checker.violations)
        try:
            wait_until(self._is_settled, seconds=_SETTLE_SECONDS)
        except AssertionError:
            yield "the replicas do not come to one list, or what has ended is not swept"
        while self._check(self._faults.now()) and len(self._log) < self._revision():
            pass
        self.checker.require_swept(self._faults.now())
        self.checker.finish()
        yield from self.checker.violations[known:]
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

    def _list_faults(self, number: int, shown: dict[str, Any]) -> Iterator[str]:
        blocks = {node: self.checker.state(node, len(self._log)).block for node in self.checker.nodes}
        if {node: read_block(it) for node, it in shown.items()} != {n: b for n, b in blocks.items() if b is not None}:
            yield f"replica {number} ends with the list {shown}, but the claims make {blocks}"

    def _is_settled(self) -> bool:
        """Whether nothing with an end is left, and everybody knows all changes."""
        self._check(self._faults.now())
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
