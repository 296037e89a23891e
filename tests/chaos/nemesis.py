"""Nemesis (Jepsen's term): injects random faults."""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import Final

from tests.chaos.cluster import FaultTarget

_MAX_SECONDS: Final = 5.0
_MIN_SECONDS: Final = 0.05
"""Duration of a fault; its logarithm is uniformly distributed."""


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
                stop.wait(_MIN_SECONDS * (_MAX_SECONDS / _MIN_SECONDS) ** rng.random())
