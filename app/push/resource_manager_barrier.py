"""ResourceManagerBarrier: a JobMaster gets a revision once every live ResourceManager has applied it, or after a limit.

FLIP-224, Blocklist synchronisation: otherwise a job could request slots and be given some on the node just blocked.
"""

from __future__ import annotations

import asyncio
from typing import Final

from app.listeners.directory import ListenerDirectory

MAX_WAIT_SECONDS: Final = 1.0
"""For each revision: a ResourceManager that hangs must not keep jobs on a blocked node."""


class ResourceManagerBarrier:
    """All waiters for a revision share one task. Belongs to the event loop."""

    def __init__(self, directory: ListenerDirectory) -> None:
        self._directory = directory
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
            await directory.acks.wait_for(lambda: directory.resource_managers_applied(revision), MAX_WAIT_SECONDS)
        finally:
            # Kept for a while: a JobMaster that comes to this revision late does not wait again.
            asyncio.get_running_loop().call_later(MAX_WAIT_SECONDS + 1, self._waits.pop, (history, revision), None)
