"""`?at=`: the list at a time in the past."""

from __future__ import annotations

from app.service import Service
from app.store.history_queries import PastList
from blocklist.model.errors import InvalidError


async def list_at(service: Service, timestamp: int) -> PastList:
    """The list at `?at=` (Unix ms). Raises InvalidError, CompactedError, UnavailableError."""
    if timestamp > (now := service.clock()):
        raise InvalidError(f"at: {timestamp} is in the future; the current time is {now}.")
    return await service.store.list_at(timestamp)
