"""Turns: replicas that contend for the end of the log commit one after another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

WAIT_COMMITS: Final = 4
"""A replica waits for each other one at most this many times as long as its own last commit took, within the limits."""
MIN_WAIT_SECONDS: Final = 0.02
MAX_WAIT_SECONDS: Final = 0.1
"""A commit that took seconds says nothing about the next one of another replica."""


class Turns:
    """A hint, not a lock: a replica that does not wait for its turn can only lose time.

    After a stale commit, or when another replica announces that its commits keep losing, the replicas that commit form
    a ring, in the order of their names: after a commit of one it is the turn of the next. A replica with nothing to
    commit is waited for once; then nobody waits until a commit is stale again. The same holds for a replica that had
    nothing to commit in its own turn, and when nobody has committed for as long as one waits: where there are pauses
    between changes, waiting would only delay them.
    """

    def __init__(self, replica: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._replica = replica
        self._clock = clock
        self._last = replica
        self._last_at = clock()
        self._others: set[str] = set()
        self._others_since_own: set[str] = set()
        self._contended = False
        self._announced: str | None = None
        self._idle = False
        self._wait_seconds = MIN_WAIT_SECONDS
        self._committed = asyncio.Event()

    def note_stale_commit(self) -> None:
        """A commit of this replica lost to another one's."""
        self._begin_contention()

    def note_contender(self, replica: str) -> None:
        """Another replica announces that its commits keep losing: one that always wins does not notice that."""
        self._begin_contention()
        self._announced = replica
        self._note_other(replica)

    def note_own_commit(self, seconds: float) -> None:
        """The replica itself has committed, which took `seconds`."""
        self._note_last(self._replica)
        self._idle = True
        # Those that did not commit in this round may have ended.
        self._others, self._others_since_own = self._others_since_own, set()
        self._wait_seconds = max(MIN_WAIT_SECONDS, min(MAX_WAIT_SECONDS, WAIT_COMMITS * seconds))

    def note_commit(self, replica: str) -> None:
        """Another replica has committed."""
        if self._idle and self._last != self._replica and self._is_next():
            self._end_contention()
        self._note_last(replica)
        if replica == self._announced:
            self._announced = None
        self._note_other(replica)
        self._committed.set()

    async def wait(self) -> None:
        """Return when it is this replica's turn, or after some time. Call it when there is something to commit."""
        self._idle = False
        seconds = self._wait_seconds * max(1, len(self._others))
        if self._announced is not None:
            seconds += MAX_WAIT_SECONDS  # It may be far from the database.
        if self._clock() - self._last_at > seconds:
            self._end_contention()
        if not self._contended:
            return
        try:
            async with asyncio.timeout(seconds):
                while not self._is_next():
                    self._committed.clear()
                    await self._committed.wait()
        except TimeoutError:
            self._end_contention()

    def _begin_contention(self) -> None:
        if not self._contended:
            # Replicas that committed long ago may have ended since.
            self._others.clear()
            self._others_since_own.clear()
        self._contended = True

    def _end_contention(self) -> None:
        self._contended = False
        self._announced = None

    def _note_other(self, replica: str) -> None:
        self._others.add(replica)
        self._others_since_own.add(replica)

    def _note_last(self, replica: str) -> None:
        self._last, self._last_at = replica, self._clock()

    def _is_next(self) -> bool:
        ring = sorted({self._replica, self._last, *self._others})
        return ring[(ring.index(self._last) + 1) % len(ring)] == self._replica
