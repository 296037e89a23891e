"""One run: clients, watchers and a nemesis for each target; its result is a RunRecord."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx

from tests.chaos.attribution import attribute
from tests.chaos.change_log import read_log
from tests.chaos.client import Client, HighestRevision
from tests.chaos.cluster import Cluster, FaultTarget
from tests.chaos.contract import violations
from tests.chaos.operation import Kind, Operation, WallClock
from tests.chaos.watcher import Watcher
from tests.chaos.workload import NODES, Request, Workload
from tests.integration.bodies import all_changes, now_ms
from tests.integration.process import NO_TLS, wait_until


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """`logs` are the change logs of the replicas at the end, `watched_changes` what each watcher received."""

    seed: str
    operations: Sequence[Operation]
    logs: Sequence[list[Any]]
    watched_changes: Sequence[list[Any]]
    anomalies: Sequence[str]
    streams: int
    faults: Counter[str]

    def violations(self) -> list[str]:
        """Violations of the contract."""
        log = self.logs[0]
        different = [f"replica {n} has another log" for n, other in enumerate(self.logs) if other != log]
        return [*different, *self.anomalies, *violations(self.operations, log, self.watched_changes, NODES)]

    def summary(self) -> Iterator[str]:
        """Figures of the run, one per line."""
        yield f"seed {self.seed}"
        for (kind, what), number in sorted(Counter(map(_outcome, self.operations)).items()):
            yield f"{number:>8} {kind}: {what}"
        yield f"{len(self.operations):>8} operations in all"
        yield f"{len(self.logs[0]):>8} revisions"
        unknown = [operation for operation in self.operations if operation.unknown]
        yield f"{len(unknown):>8} changes without an answer or with a 503, happened: {self._committed_unknown()}"
        yield f"{self.streams:>8} streams of {len(self.watched_changes)} watchers"
        for fault, number in sorted(self.faults.items()):
            yield f"{number:>8} times {fault}"

    def save(self, folder: Path) -> None:
        """Write the record to files in a folder."""
        (folder / "operations.txt").write_text("\n".join(map(str, self.operations)))
        for number, log in enumerate(self.logs):
            (folder / f"log-{number}.jsonl").write_text("\n".join(map(json.dumps, log)))

    def _committed_unknown(self) -> int:
        made = attribute(self.operations, read_log(self.logs[0])).by_revision.values()
        return len({id(change.operation) for change in made if change.operation.unknown})


def _outcome(operation: Operation) -> tuple[str, str]:
    return operation.kind, "no answer" if operation.status is None else str(operation.status)


_MIN_SECONDS: Final = 0.05
"""Minimum duration of a fault; its logarithm is uniformly distributed."""


class Nemesis:
    """Injects faults into one target, and counts them by name."""

    def __init__(self, target: FaultTarget) -> None:
        self.target = target
        self.injected = Counter[str]()

    def run(self, seed: str, stop: threading.Event) -> None:
        """Inject one fault after another until `stop` is set; the last one is ended."""
        rng = random.Random(f"{seed} {self.target.name}")
        while not stop.wait(rng.uniform(0, self.target.max_interval_seconds)):
            name = rng.choice(sorted(self.target.faults))
            self.injected[name] += 1
            with self.target.faults[name]():
                stop.wait(_MIN_SECONDS * (self.target.max_fault_seconds / _MIN_SECONDS) ** rng.random())


CLIENTS: Final = 16
WATCHERS: Final = 3
_CALM_SECONDS: Final = 2.0
"""How long clients continue after the last fault."""
_MIN_REMAINING_MS: Final = 600_000
"""Minimum remaining duration of blocks when the replicas are compared."""
_MILLISECOND: Final = 1_000_000


class ChaosRun:
    """A run on a cluster; `seed` determines requests and faults, but not their timing."""

    def __init__(self, cluster: Cluster, seed: str) -> None:
        self._cluster = cluster
        self._seed = seed
        self._clock = WallClock()
        horizon = HighestRevision()
        *self._clients, self._final_client = [Client(n, cluster.urls, self._clock, horizon) for n in range(CLIENTS + 1)]
        self._watchers = [Watcher(number, cluster.urls) for number in range(WATCHERS)]
        self._anomalies: list[str] = []
        self._nemeses = [Nemesis(victim) for victim in cluster.fault_targets]

    def run(self, seconds: float) -> RunRecord:
        """Run for `seconds`. Exceptions have a note with the seed."""
        try:
            return self._run(seconds)
        except BaseException as error:
            error.add_note(f"The seed was {self._seed}.")
            raise
        finally:
            for client in (*self._clients, self._final_client):
                client.close()

    def _run(self, seconds: float) -> RunRecord:
        watch_over = threading.Event()
        with ThreadPoolExecutor(len(self._watchers)) as pool:
            watching = [pool.submit(watcher.run, self._seed, watch_over) for watcher in self._watchers]
            try:
                self._inject_faults(seconds)
                logs = self._wait_for_recovery()
            finally:
                watch_over.set()
        for watched in watching:
            watched.result()
        assert self._clock.error() < _MILLISECOND, "the clock of this machine was set meanwhile"
        return self._record(logs)

    def _inject_faults(self, seconds: float) -> None:
        """Run clients and faults; clients continue a little longer."""
        faults_over, load_over = threading.Event(), threading.Event()
        with ThreadPoolExecutor(len(self._clients) + len(self._nemeses)) as pool, ExitStack() as stack:
            stack.callback(load_over.set)
            stack.callback(faults_over.set)
            asking = [pool.submit(client.run, self._seed, load_over) for client in self._clients]
            causing = [pool.submit(nemesis.run, self._seed, faults_over) for nemesis in self._nemeses]
            ended = wait([*asking, *causing], timeout=seconds, return_when=FIRST_EXCEPTION).done
            faults_over.set()
            # Failed futures first: the others may wait for ever.
            for caused in [*ended, *causing]:
                caused.result()
            load_over.wait(_CALM_SECONDS)
        for future in asking:
            future.result()

    def _wait_for_recovery(self) -> list[list[Any]]:
        """Check that each replica accepts changes, and that all return one list; return their logs."""
        workload = Workload("last", random.Random(self._seed), now_ms)
        for replica in range(len(self._cluster.replicas)):
            takes_changes = partial(self._accepts_changes, workload, replica)
            self._expect_within_a_minute(takes_changes, f"replica {replica} accepts no changes")
        self._expect_within_a_minute(self._lists_are_equal, "the replicas do not come to one list")
        for replica in range(len(self._cluster.replicas)):
            self._final_client.request(Request(Kind.LIST), replica, with_min_revision=True, timeout_seconds=30)
        logs = [self._log(url) for url in self._cluster.urls]
        all_received = lambda: all(len(watcher.received) >= len(logs[0]) for watcher in self._watchers)  # noqa: E731
        self._expect_within_a_minute(all_received, "a watcher does not receive all changes")
        return logs

    def _expect_within_a_minute(self, holds: Callable[[], bool], otherwise: str) -> None:
        try:
            wait_until(holds)
        except AssertionError:
            self._anomalies.append(otherwise)

    def _accepts_changes(self, workload: Workload, replica: int) -> bool:
        request = next(request for request in iter(workload.next, None) if request.kind is Kind.PUT)
        return self._final_client.request(request, replica, with_min_revision=True, timeout_seconds=30).status in {
            201,
            202,
            409,
        }

    def _lists_are_equal(self) -> bool:
        """Whether all replicas return the same list, in which no block ends soon."""
        answers = [
            httpx.get(f"{url}/blocklist", timeout=30, trust_env=False, verify=NO_TLS) for url in self._cluster.urls
        ]
        if any("age" in answer.headers or not answer.is_success for answer in answers):
            return False
        states = {(answer.headers["etag"], answer.headers["blocklist-revision"]) for answer in answers}
        ends = [int(node["endTimestamp"]) for node in answers[0].json().values()]
        return len(states) == 1 and all(end > now_ms() + _MIN_REMAINING_MS for end in ends)

    def _log(self, url: str) -> list[Any]:
        with httpx.Client(base_url=url, timeout=30, trust_env=False, verify=NO_TLS) as client:
            return all_changes(client)

    def _record(self, logs: list[list[Any]]) -> RunRecord:
        clients = [*self._clients, self._final_client]
        return RunRecord(
            seed=self._seed,
            operations=[operation for client in clients for operation in client.operations],
            logs=logs,
            watched_changes=[watcher.received for watcher in self._watchers],
            anomalies=[*self._anomalies, *self._collect_anomalies()],
            streams=sum(watcher.streams for watcher in self._watchers),
            faults=Counter(
                {f"{n.target.name} {name}": times for n in self._nemeses for name, times in n.injected.items()}
            ),
        )

    def _collect_anomalies(self) -> Iterator[str]:
        for watcher in self._watchers:
            yield from watcher.anomalies
        for number, replica in enumerate(self._cluster.replicas):
            yield from (f"replica {number} logged a traceback: {line}" for line in replica.tracebacks())
