"""Broadcast: each waiter is woken, whatever the others do."""

from __future__ import annotations

import asyncio

import pytest

from app.engine.broadcast import Broadcast


def test_a_waiter_that_was_cancelled_or_fails_does_not_keep_the_others_waiting() -> None:
    def fail() -> bool:
        raise RuntimeError("a bug")

    async def scenario() -> None:
        broadcast, happened = Broadcast(), False
        cancelled = asyncio.ensure_future(broadcast.wait_for(lambda: happened, 60))
        completed = broadcast.subscribe()
        failing = asyncio.ensure_future(broadcast.wait_for(lambda: happened and fail(), 60))
        waiting = asyncio.ensure_future(broadcast.wait_for(lambda: happened, 60))
        await asyncio.sleep(0)
        cancelled.cancel()
        completed.set_result(None)
        happened = True
        broadcast.notify_all()
        assert await waiting
        with pytest.raises(RuntimeError, match="a bug"):
            await failing
        assert cancelled.cancelled()

    asyncio.run(scenario())
