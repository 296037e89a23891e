"""Faults of replicas and of the database, and when they were."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from tests.chaos.operation import WallClock
from tests.chaos.replica import ChaosReplica

_RECOVERY_MS: Final = 3_000
"""How long after a fault a change may be late: a connection is made anew, a replica reads the log."""
_STALL_MS: Final = 200
_CHECK_SECONDS: Final = 0.05


class FaultLog:
    """The faults so far. `kinds` counts them; a time without end has not ended yet."""

    def __init__(self, clock: WallClock) -> None:
        self.kinds = Counter[str]()
        self._clock = clock
        self._spans: list[list[int]] = []

    def now(self) -> int:
        return self._clock.now() // 1_000_000

    @contextmanager
    def during(self, kind: str) -> Iterator[None]:
        self.kinds[kind] += 1
        span = [self.now(), 2**63]
        self._spans.append(span)
        try:
            yield
        finally:
            span[1] = self.now() + _RECOVERY_MS

    def add(self, begin: int, end: int) -> None:
        self._spans.append([begin, end])

    def excused(self, begin: int, end: int) -> int:
        """For how many milliseconds between these times there was a fault."""
        spans = sorted((max(begin, span[0]), min(end, span[1])) for span in list(self._spans))
        total, done = 0, begin
        for since, until in spans:
            total += max(0, until - max(done, since))
            done = max(done, until)
        return total


def watch_stalls(faults: FaultLog, stop: threading.Event) -> None:
    """Record when this machine did not run a thread in time: the service cannot have been in time either."""
    while not stop.is_set():
        before = faults.now()
        time.sleep(_CHECK_SECONDS)
        if (after := faults.now()) > before + 1000 * _CHECK_SECONDS + _STALL_MS:
            faults.kinds["stalls of the machine"] += 1
            faults.add(before, after + _STALL_MS)


class ProcessFaults:
    """Pauses replicas, and every minute kills one and starts it again; one at a time."""

    def __init__(self, replicas: Sequence[ChaosReplica], faults: FaultLog, seed: str) -> None:
        self._replicas = replicas
        self._faults = faults
        self._rng = random.Random(f"{seed} processes")

    def run(self, stop: threading.Event, pace: float) -> None:
        turn = 0
        while not stop.wait(20 / pace):
            turn += 1
            replica = self._replicas[turn // 3 % len(self._replicas)]
            if turn % 3:
                self._pause(replica, stop)
            else:
                self._kill(replica, stop)

    def _pause(self, replica: ChaosReplica, stop: threading.Event) -> None:
        with self._faults.during("replica paused"):
            replica.pause()
            stop.wait(self._rng.uniform(0.2, 3))
            replica.resume()

    def _kill(self, replica: ChaosReplica, stop: threading.Event) -> None:
        with self._faults.during("replica killed"):
            replica.kill()
            stop.wait(self._rng.uniform(0, 3))
            replica.start_supervised()


class ConnectionFaults:
    """Severs all connections of the database."""

    def __init__(self, sever: Callable[[], object], faults: FaultLog, seed: str) -> None:
        self._sever = sever
        self._faults = faults
        self._rng = random.Random(f"{seed} connections")

    def run(self, stop: threading.Event, pace: float) -> None:
        while not stop.wait(self._rng.uniform(10, 40) / pace):
            with self._faults.during("connections severed"):
                self._sever()
