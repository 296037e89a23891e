"""ManagersFirst: a JobMaster is told of a revision when every live ResourceManager has it, or after a bounded wait.

FLIP-224, Blocklist synchronisation: else a job might ask for slots and be given those of the node just blocked.
"""

from __future__ import annotations

import asyncio

from app.listeners.directory import ListenerDirectory


class ResourceManagerBarrier:
    """Belongs to the event loop; all who wait for one revision share one task."""

    def __init__(self, directory: ListenerDirectory, seconds: float) -> None:
        self._directory = directory
        self._seconds = seconds
        self._waits: dict[int, asyncio.Task[None]] = {}

    async def wait(self, revision: int) -> None:
        """Return when JobMasters may be told of `revision`."""
        if self._directory.resource_managers_applied(revision):
            return
        task = self._waits.get(revision)
        if task is None:
            task = self._waits[revision] = asyncio.create_task(self._wait_for_acks(revision))
        await asyncio.shield(task)

    async def _wait_for_acks(self, revision: int) -> None:
        try:
            await self._directory.acks.wait_for(
                lambda: self._directory.resource_managers_applied(revision), self._seconds
            )
        finally:
            # Kept for a moment after it has opened: a JobMaster that comes late does not wait once more.
            asyncio.get_running_loop().call_later(self._seconds + 1, self._waits.pop, revision, None)
