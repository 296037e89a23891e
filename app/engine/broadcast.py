"""Broadcast: tasks wait for the next event of one kind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Final

TURN_SECONDS: Final = 0.005
WOKEN_PER_TURN: Final = 100
"""Maximum number of tasks that are woken, or asked for their condition, before the event loop runs others."""


class Broadcast:
    """Any number of tasks wait for a notification. It wakes the tasks that wait now, not those that wait later.

    Unlike asyncio.Condition it has no lock: it belongs to the event loop.
    """

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], Callable[[], bool] | None] = {}

    def notify_all(self) -> None:
        """Wake all waiting tasks; of those that wait for a condition, those for which it is true now.

        If that takes longer than a few milliseconds, the event loop runs other tasks in between.
        """
        waiters, self._waiters = self._waiters, {}
        self._notify(iter(waiters.items()))

    def _notify(self, waiters: Iterator[tuple[asyncio.Future[None], Callable[[], bool] | None]]) -> None:
        until = monotonic() + TURN_SECONDS
        for number, (waiter, condition) in enumerate(waiters, 1):
            if waiter.done():
                continue
            if condition is None or _is_due(condition):
                waiter.set_result(None)
            else:
                self._waiters[waiter] = condition
            if number >= WOKEN_PER_TURN or monotonic() > until:
                asyncio.get_running_loop().call_soon(self._notify, waiters)
                return

    def subscribe(self, condition: Callable[[], bool] | None = None) -> asyncio.Future[None]:
        """A future that the next notification completes at which the condition, if there is one, is true.

        The caller may complete it, too, and must `unsubscribe`.
        """
        waiter = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = condition
        return waiter

    def unsubscribe(self, waiter: asyncio.Future[None]) -> None:
        """Remove a future that `subscribe` returned."""
        waiter.cancel()
        self._waiters.pop(waiter, None)

    async def wait(self, seconds: float) -> None:
        """Return at the next notification, or after `seconds`."""
        waiter = self.subscribe()
        try:
            await asyncio.wait((waiter,), timeout=max(0.0, seconds))
        finally:
            self.unsubscribe(waiter)

    async def wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until `condition()` is true, checked at each notification; False if it is not after `seconds`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not condition():
            remaining = deadline - loop.time()
            if remaining <= 0:
                return False
            waiter = self.subscribe(condition)
            try:
                await asyncio.wait((waiter,), timeout=remaining)
            finally:
                self.unsubscribe(waiter)
        return True


def _is_due(condition: Callable[[], bool]) -> bool:
    try:
        return condition()
    except Exception:
        return True  # The task asks again, and fails on its own.
