"""LoggedNames: other ids in the change log that mean the same machine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from app.store.history_queries import UnusualIds, unusual_ids
from blocklist.model.host_matching import Aliases, NameIndex, usual_spellings

if TYPE_CHECKING:
    from app.store.store import Store

SLICE: Final = 1000
"""Number of ids added in one turn of the event loop."""


class LoggedNames:
    """Finds the ids that a search by the usual spellings of a name misses. Belongs to the event loop.

    The database compares ids exactly, so the ids in the log with an unusual spelling (`Node-7.Example.com`) are kept in
    memory: few, as a rule. They are read once, then only from new changes; and once more when all changes that they
    were first read from have been compacted.
    """

    def __init__(self, store: Store, aliases: Aliases) -> None:
        self._store = store
        self._aliases = aliases
        self._lock = asyncio.Lock()
        self._history = ""
        self._unusual = NameIndex()
        self._revision = 0
        self._first_revision = 0

    async def others(self, node_id: str) -> frozenset[str]:
        """Ids of the machine beside the usual spellings of `node_id`; some may not be in the log.

        Raises UnavailableError.
        """
        async with self._lock:
            await self._read_new()
        known = (name for alias in self._aliases(node_id) for name in usual_spellings(alias)[0])
        return frozenset((*known, *self._unusual.matching(node_id)))

    async def _read_new(self) -> None:
        found = await self._read_since(self._revision)
        if found.history != self._history or found.compacted >= self._first_revision:
            self._unusual = NameIndex(aliases=self._aliases)
            found = await self._read_since(0)
            self._history, self._first_revision = found.history, found.revision + 1
        for number, node_id in enumerate(found.ids):
            self._unusual.add(node_id)
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
        self._revision = found.revision

    async def _read_since(self, revision: int) -> UnusualIds:
        return await self._store.read(lambda connection: unusual_ids(connection, revision))
