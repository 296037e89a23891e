"""Broadcast: each waiter is woken, whatever the others do."""

from __future__ import annotations

import asyncio
import time

import pytest

from app.engine.list_view import TURN_SECONDS, WOKEN_PER_TURN, Broadcast

pytestmark = pytest.mark.anyio


async def test_a_waiter_that_was_cancelled_or_fails_does_not_keep_the_others_waiting() -> None:
    def fail() -> bool:
        raise RuntimeError("a bug")

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


async def test_a_task_is_woken_only_when_its_condition_is_true() -> None:
    """Hundreds of requests wait, each for another revision: a task each time costs a thousand times its condition."""
    broadcast, asked, notified = Broadcast(), 0, 0

    def is_reached() -> bool:
        nonlocal asked
        asked += 1
        return notified == 3

    waiting = asyncio.ensure_future(broadcast.wait_for(is_reached, 60))
    await asyncio.sleep(0)
    for _ in range(3):
        assert not waiting.done()
        notified += 1
        broadcast.notify_all()
        await asyncio.sleep(0)
    assert await waiting
    # Once before it waits, at each notification, and once when it goes on.
    assert asked == 5


async def test_thousands_are_woken_in_turns_between_which_others_run() -> None:
    broadcast, happened = Broadcast(), False
    tasks = [asyncio.ensure_future(broadcast.wait_for(lambda: happened, 60)) for _ in range(1000)]
    await asyncio.sleep(0)
    happened, turns, done = True, 0, 0
    broadcast.notify_all()
    while done < len(tasks):
        await asyncio.sleep(0)
        turns, before, done = turns + 1, done, sum(map(asyncio.Task.done, tasks))
        assert done - before <= WOKEN_PER_TURN
        assert turns < 100


async def test_one_that_waits_slowly_has_a_turn_of_its_own() -> None:
    broadcast, asked = Broadcast(), 0

    def ask_slowly() -> bool:
        nonlocal asked
        asked += 1
        until = time.monotonic() + 2 * TURN_SECONDS
        while time.monotonic() < until:
            pass
        return asked > 3

    waiting = [asyncio.ensure_future(broadcast.wait_for(ask_slowly, 60)) for _ in range(3)]
    await asyncio.sleep(0)
    before = asked
    broadcast.notify_all()
    assert asked == before + 1
    await asyncio.wait(waiting)
