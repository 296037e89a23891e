"""Stops work for a client that has disconnected."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive


async def run_until_disconnect(receive: Receive, work: Coroutine[Any, Any, object]) -> None:
    """Await `work`; cancel it when the client disconnects. ASGI servers report that only through `receive`."""
    task = asyncio.current_task()
    assert task is not None
    watcher = asyncio.create_task(_cancel_on_disconnect(receive, task))
    try:
        await work
    except asyncio.CancelledError:
        if not watcher.done():
            raise
        task.uncancel()
    finally:
        watcher.cancel()


async def _cancel_on_disconnect(receive: Receive, task: asyncio.Task[Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    task.cancel()
