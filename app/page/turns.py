"""Long work in turns of the event loop, so that other requests are served in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

PER_TURN: Final = 200
"""Nodes or names that are looked up in a turn of the event loop: some milliseconds."""


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """The items, with a pause after each PER_TURN of them."""
    for count, item in enumerate(items, 1):
        yield item
        if count % PER_TURN == 0:
            await asyncio.sleep(0)
