"""Noticing that a client has left while something else is awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive


async def run_until_disconnect(receive: Receive, work: Coroutine[Any, Any, object]) -> None:
    """Do `work`, but stop it when the client leaves: a server tells that only to those who ask."""
    task = asyncio.current_task()
    assert task is not None
    listener = asyncio.create_task(_listen(receive, task))
    try:
        await work
    except asyncio.CancelledError:
        if not listener.done():
            raise
        task.uncancel()
    finally:
        listener.cancel()


async def _listen(receive: Receive, task: asyncio.Task[Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    task.cancel()
