"""ResourceManagerBarrier: a JobMaster gets a revision once every live ResourceManager has applied it, or after a limit.

FLIP-224, Blocklist synchronisation: otherwise a job could request slots and be given some on the node just blocked.
"""

from __future__ import annotations

import asyncio

from app.listeners.directory import ListenerDirectory


class ResourceManagerBarrier:
    """Waits at most `seconds` per revision; all waiters for a revision share one task. Belongs to the event loop."""

    def __init__(self, directory: ListenerDirectory, seconds: float) -> None:
        self._directory = directory
        self._seconds = seconds
        self._waits: dict[tuple[str, int], asyncio.Task[None]] = {}

    async def wait(self, history: str, revision: int) -> None:
        """Return when JobMasters may get `revision` of the current history."""
        if self._directory.resource_managers_applied(revision):
            return
        task = self._waits.get((history, revision))
        if task is None:
            task = self._waits[history, revision] = asyncio.create_task(self._wait_for_acks(history, revision))
        await asyncio.shield(task)

    async def _wait_for_acks(self, history: str, revision: int) -> None:
        directory = self._directory
        try:
            await directory.acks.wait_for(lambda: directory.resource_managers_applied(revision), self._seconds)
        finally:
            # Kept for a while: a JobMaster that comes to this revision late does not wait again.
            asyncio.get_running_loop().call_later(self._seconds + 1, self._waits.pop, (history, revision), None)
