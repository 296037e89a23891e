"""EndQueue: which of many things ends first. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from typing import Final

from blocklist.model.node import PERMANENT

_SLACK: Final = 64


class EndQueue:
    """Ends, in Unix milliseconds, by id. `end_of` returns the end of one of the `ids`; None if it has none.

    An end that has changed is pushed again; the former entry is stale, and skipped.
    """

    def __init__(self, ids: Collection[str], end_of: Callable[[str], int | None]) -> None:
        self._ids = ids
        self._end_of = end_of
        self._heap: list[tuple[int, str]] = []
        self._rebuild()

    def push(self, end: int, id_: str) -> None:
        """The end of an id is now this one."""
        if end == PERMANENT:
            return
        heapq.heappush(self._heap, (end, id_))
        if len(self._heap) > 2 * len(self._ids) + _SLACK:  # bounds the stale entries
            self._rebuild()

    def next(self) -> int:
        """The earliest end; PERMANENT if nothing ends."""
        while self._heap and self._end_of(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else PERMANENT

    def ended(self, now: int) -> list[str]:
        """The ids whose end has passed at `now`."""
        if self.next() > now:
            return []
        return [id_ for id_ in self._ids if (end := self._end_of(id_)) is not None and end <= now]

    def _rebuild(self) -> None:
        ends = ((self._end_of(id_), id_) for id_ in self._ids)
        self._heap = [(end, id_) for end, id_ in ends if end is not None and end != PERMANENT]
        heapq.heapify(self._heap)
