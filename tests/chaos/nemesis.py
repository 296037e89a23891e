"""What makes things go wrong, by dice."""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import Final

from tests.chaos.cluster import Victim

_LONGEST: Final = 5.0
_SHORTEST: Final = 0.05
"""Seconds that a fault lasts: short ones are as frequent as long ones, by orders of magnitude."""


class Nemesis:
    """Torments one victim, and counts how often by which fault."""

    def __init__(self, victim: Victim) -> None:
        self.victim = victim
        self.caused = Counter[str]()

    def run(self, seed: str, stop: threading.Event) -> None:
        """One fault after the other until the end; then the victim is well."""
        dice = random.Random(f"{seed} {self.victim.name}")
        while not stop.wait(dice.uniform(0, self.victim.peace)):
            name = dice.choice(sorted(self.victim.faults))
            self.caused[name] += 1
            with self.victim.faults[name]():
                stop.wait(_SHORTEST * (_LONGEST / _SHORTEST) ** dice.random())
