"""Turns: replicas that contend for the end of the log commit one after another."""

from __future__ import annotations

import asyncio
from typing import Final

WAIT_COMMITS: Final = 4
"""A replica waits for each other one at most this many times as long as its own last commit took, within the limits."""
MIN_WAIT_SECONDS: Final = 0.02
MAX_WAIT_SECONDS: Final = 0.1
"""A commit that took seconds says nothing about the next one of another replica."""


class Turns:
    """A hint, not a lock: a replica that does not wait for its turn can only lose time.

    After a stale commit the replicas that commit form a ring, in the order of their names: after a commit of one it is
    the turn of the next. A replica with nothing to commit is waited for once; then nobody waits until a commit is stale
    again.
    """

    def __init__(self, replica: str) -> None:
        self._replica = replica
        self._last = replica
        self._others: set[str] = set()
        self._contended = False
        self._wait_seconds = MIN_WAIT_SECONDS
        self._committed = asyncio.Event()

    def note_stale_commit(self) -> None:
        """A commit of this replica lost to another one's."""
        if not self._contended:
            self._others.clear()  # Replicas that committed long ago may have ended since.
        self._contended = True

    def note_own_commit(self, seconds: float) -> None:
        """The replica itself has committed, which took `seconds`."""
        self._last = self._replica
        self._wait_seconds = max(MIN_WAIT_SECONDS, min(MAX_WAIT_SECONDS, WAIT_COMMITS * seconds))

    def note_commit(self, replica: str) -> None:
        """Another replica has committed."""
        self._last = replica
        self._others.add(replica)
        self._committed.set()

    async def wait(self) -> None:
        """Return when it is this replica's turn, or after some time."""
        if not self._contended:
            return
        try:
            async with asyncio.timeout(self._wait_seconds * max(1, len(self._others))):
                while not self._is_next():
                    self._committed.clear()
                    await self._committed.wait()
        except TimeoutError:
            self._contended = False

    def _is_next(self) -> bool:
        ring = sorted({self._replica, self._last, *self._others})
        return ring[(ring.index(self._last) + 1) % len(ring)] == self._replica
