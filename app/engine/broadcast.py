"""Broadcast: tasks wait for the next event of one kind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Broadcast:
    """Any number of tasks wait for a notification. It wakes the tasks that wait now, not those that wait later.

    Unlike asyncio.Condition it has no lock: it belongs to the event loop.
    """

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def notify_all(self) -> None:
        """Wake all waiting tasks."""
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def subscribe(self) -> asyncio.Future[None]:
        """A future that the next notification completes. The caller may complete it, too, and must `unsubscribe`."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        return waiter

    def unsubscribe(self, waiter: asyncio.Future[None]) -> None:
        """Remove a future that `subscribe` returned."""
        self._waiters.discard(waiter)

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
            await self.wait(remaining)
        return True
