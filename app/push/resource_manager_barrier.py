"""ManagersFirst: a JobMaster is told of a revision when every live ResourceManager has it, or after a bounded wait.

FLIP-224, Blocklist synchronisation: else a job might ask for slots and be given those of the node just blocked.
"""

from __future__ import annotations

import asyncio

from app.listeners.directory import Roll


class ManagersFirst:
    """Belongs to the event loop; all who wait for one revision share one task."""

    def __init__(self, roll: Roll, seconds: float) -> None:
        self._roll = roll
        self._seconds = seconds
        self._opening: dict[int, asyncio.Task[None]] = {}

    async def passed(self, revision: int) -> None:
        """Return when JobMasters may be told of `revision`."""
        if self._roll.managers_have(revision):
            return
        task = self._opening.get(revision)
        if task is None:
            task = self._opening[revision] = asyncio.create_task(self._open(revision))
        await asyncio.shield(task)

    async def _open(self, revision: int) -> None:
        try:
            await self._roll.acks.until(lambda: self._roll.managers_have(revision), self._seconds)
        finally:
            # Kept for a moment after it has opened: a JobMaster that comes late does not wait once more.
            asyncio.get_running_loop().call_later(self._seconds + 1, self._opening.pop, revision, None)
