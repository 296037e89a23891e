"""Bell: tasks wait for the next event of one kind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Broadcast:
    """Rung by one side, waited for by any number. A ring wakes those who wait now and nobody later."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def notify_all(self) -> None:
        """Wake all who wait."""
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def subscribe(self) -> asyncio.Future[None]:
        """A future that the next ring completes; its owner may complete it too, and must `leave` afterwards."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        return waiter

    def unsubscribe(self, waiter: asyncio.Future[None]) -> None:
        """Wait no more."""
        self._waiters.discard(waiter)

    async def wait(self, seconds: float) -> None:
        """Wait for the next ring, at most so long."""
        waiter = self.subscribe()
        try:
            await asyncio.wait((waiter,), timeout=max(0.0, seconds))
        finally:
            self.unsubscribe(waiter)

    async def wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until a ring after which `done()` is true, at most so long; whether it is true."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not condition():
            left = deadline - loop.time()
            if left <= 0:
                return False
            await self.wait(left)
        return True
