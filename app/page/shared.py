"""SharedValues: what all visitors of the page share, so that its cost does not grow with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable
from typing import Any, Final, TypeVar

from fastapi import Request

T = TypeVar("T")

MAX_VALUES: Final = 100
"""Maximum number of values that are kept; the one that was used least recently goes first."""


class SharedValues:
    """Values by key. Each is computed for the first visitor who asks, and again once it is too old.

    `max_age` is in milliseconds, and may depend on the value: what takes long to compute may be older.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._values: dict[Hashable, tuple[int, Any]] = {}
        self._computing = asyncio.Lock()

    async def get(self, key: Hashable, compute: Callable[[], Awaitable[T]], max_age: Callable[[T], float]) -> T:
        """The value, computed in turns of the event loop if it is too old: one value at a time."""
        async with self._computing:
            at = self._clock()
            return self._fresh(key, max_age) or self._keep(key, at, await compute())

    def get_now(self, key: Hashable, compute: Callable[[], T], max_age: float) -> T:
        """The value, computed at once if it is too old."""
        return self._fresh(key, lambda _: max_age) or self._keep(key, self._clock(), compute())

    def _fresh(self, key: Hashable, max_age: Callable[[T], float]) -> T | None:
        at, value = self._values.get(key, (0, None))  # type: tuple[int, T | None]
        if value is None or not 0 <= self._clock() - at < max_age(value):
            return None
        return self._keep(key, at, value)

    def _keep(self, key: Hashable, at: int, value: T) -> T:
        self._values.pop(key, None)
        self._values[key] = at, value
        if len(self._values) > MAX_VALUES:
            del self._values[next(iter(self._values))]
        return value


def shared_of(request: Request) -> SharedValues:
    """The values of the service that received the request."""
    shared: SharedValues = request.app.state.shared
    return shared


# Long work in turns of the event loop, so that other requests are served in between.

PER_TURN: Final = 200
"""Nodes or names that are looked up in a turn of the event loop: some milliseconds."""


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """The items, with a pause after each PER_TURN of them."""
    for count, item in enumerate(items, 1):
        yield item
        if count % PER_TURN == 0:
            await asyncio.sleep(0)
