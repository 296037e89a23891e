"""Faults of replicas, of their connections and of the database, and when they were."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final

from tests.chaos.operation import WallClock

_RECOVERY_MS: Final = 3_000
"""How long after a fault a change may be late: a connection is made anew, a replica reads the log."""
_STALL_MS: Final = 200
_CHECK_SECONDS: Final = 0.05
_MIN_SECONDS: Final = 0.05
"""Minimum duration of a fault; its logarithm is uniformly distributed."""

Fault = Callable[[], AbstractContextManager[None]]
"""A context manager: the fault lasts while it is entered."""


@dataclass(frozen=True)
class FaultTarget:
    """A process or connection that has one fault at a time, with at most `max_interval_seconds` between two."""

    name: str
    max_interval_seconds: float
    faults: Mapping[str, Fault]
    max_fault_seconds: float = 5.0


class FaultLog:
    """The faults so far. `kinds` counts them; a time without end has not ended yet."""

    def __init__(self, clock: WallClock) -> None:
        self.kinds = Counter[str]()
        self.now = clock.now
        self._spans: list[list[int]] = []

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


def inject(target: FaultTarget, faults: FaultLog, seed: str, stop: threading.Event) -> None:
    """Inject one fault after another into a target until `stop` is set; the last one is ended."""
    rng = random.Random(f"{seed} {target.name}")
    while not stop.wait(rng.uniform(0, target.max_interval_seconds)):
        name = rng.choice(sorted(target.faults))
        with faults.during(f"{target.name} {name}"), target.faults[name]():
            stop.wait(_MIN_SECONDS * (target.max_fault_seconds / _MIN_SECONDS) ** rng.random())


def watch_stalls(faults: FaultLog, stop: threading.Event) -> None:
    """Record when this machine did not run a thread in time: the service cannot have been in time either."""
    while not stop.is_set():
        before = faults.now()
        time.sleep(_CHECK_SECONDS)
        if (after := faults.now()) > before + 1000 * _CHECK_SECONDS + _STALL_MS:
            faults.kinds["stalls of the machine"] += 1
            faults.add(before, after + _STALL_MS)
