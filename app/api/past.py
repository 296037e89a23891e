"""`?at=`: the list at a time in the past."""

from __future__ import annotations

from app.components import Components
from app.store.history_queries import PastList
from blocklist.model.errors import InvalidError


async def list_at(components: Components, timestamp: int) -> PastList:
    """The list at `?at=` (Unix ms). Raises InvalidError, CompactedError, UnavailableError."""
    if timestamp > (now := components.clock()):
        raise InvalidError(f"at: {timestamp} is in the future; the current time is {now}.")
    return await components.engine.store.list_at(timestamp)
