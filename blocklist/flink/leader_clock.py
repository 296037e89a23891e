"""By how much the JobManager's clock is ahead of this machine's. Pure.

Flink ends a block by the JobManager's clock: if that is ahead, a lease is shorter than it was meant to be, and a node
may be free in Flink while the service shows its block as applied. The JobManager notes when it received each
TaskManager's last heartbeat: its clock shows at least that time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

MIN_AHEAD: Final = 500
"""Milliseconds; less is no difference that matters, and each would notify Flink again."""
WARN_AHEAD: Final = 5_000
"""Milliseconds from which the operator should know."""
WINDOW: Final = 60.0
"""Seconds for which an observation counts: a clock may be set, and TaskManagers send a heartbeat every 10 s."""


class LeaderClock:
    """Memory: the observations of one window, and of these only those that no later one exceeds."""

    def __init__(self) -> None:
        self._observed: deque[tuple[float, int]] = deque()

    def observe(self, heartbeats: Iterable[int], now: int, monotonic: float) -> None:
        """`heartbeats` are in Unix milliseconds of the JobManager's clock, `now` in those of this machine's, read
        afterwards.
        """
        while self._observed and self._observed[0][0] < monotonic - WINDOW:
            self._observed.popleft()
        ahead = max(heartbeats, default=0) - now
        while self._observed and self._observed[-1][1] <= ahead:
            self._observed.pop()
        self._observed.append((monotonic, ahead))

    def ahead(self) -> int:
        """Milliseconds, at most by a round too few; 0 while the clock is not known to be ahead."""
        found = self._observed[0][1] if self._observed else 0
        return found if found >= MIN_AHEAD else 0
