"""A thread that works for the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from app.store.writer_thread import Worker

NAME = "test-worker"


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker(NAME)
    yield worker
    worker.close()
    assert NAME not in {thread.name for thread in threading.enumerate()}


def test_it_does_one_thing_after_the_other_in_its_own_thread(worker: Worker) -> None:
    done: list[tuple[int, str]] = []

    def work(number: int) -> None:
        done.append((number, threading.current_thread().name))

    async def scenario() -> None:
        await asyncio.gather(*(worker.do(partial(work, number)) for number in range(9)))

    asyncio.run(scenario())
    assert done == [(number, NAME) for number in range(9)]


def test_what_the_work_raises_is_raised_and_the_next_is_done(worker: Worker) -> None:
    async def scenario() -> None:
        with pytest.raises(ZeroDivisionError):
            await worker.do(lambda: 1 / 0)
        assert await worker.do(lambda: 7) == 7

    asyncio.run(scenario())


def test_who_stops_waiting_disturbs_nobody(worker: Worker) -> None:
    go_on = threading.Event()

    async def scenario() -> None:
        waiting = asyncio.create_task(worker.do(go_on.wait))
        after_it = asyncio.create_task(worker.do(lambda: 7))
        await asyncio.sleep(0)
        waiting.cancel()
        go_on.set()
        assert await after_it == 7
        assert waiting.cancelled()

    asyncio.run(scenario())


def test_what_was_asked_for_is_done_before_it_closes(worker: Worker) -> None:
    go_on, done = threading.Event(), threading.Event()

    async def scenario() -> None:
        asked = [asyncio.create_task(worker.do(work)) for work in (go_on.wait, done.set)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(asyncio.to_thread(worker.close))
        go_on.set()
        await closing
        assert done.is_set()
        await asyncio.gather(*asked)
        with pytest.raises(RuntimeError, match="nobody works here any more"):
            await worker.do(done.set)

    asyncio.run(scenario())


def test_a_loop_that_ended_before_the_work_is_no_harm(worker: Worker) -> None:
    """As when the service is stopped and the disk hangs."""
    go_on = threading.Event()

    async def scenario() -> None:
        asking = asyncio.create_task(worker.do(go_on.wait))
        await asyncio.sleep(0)
        asking.cancel()

    asyncio.run(scenario())
    go_on.set()
    assert asyncio.run(worker.do(lambda: 7)) == 7
