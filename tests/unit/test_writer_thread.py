"""WriterThread: order, exceptions, cancellation and shutdown."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from app.store.sqlite import WriterThread

NAME = "test-thread"


@pytest.fixture
def thread() -> Iterator[WriterThread]:
    thread = WriterThread(NAME)
    yield thread
    thread.close()
    assert NAME not in {thread.name for thread in threading.enumerate()}


def test_jobs_run_in_order_in_one_thread(thread: WriterThread) -> None:
    done: list[tuple[int, str]] = []

    def work(number: int) -> None:
        done.append((number, threading.current_thread().name))

    async def scenario() -> None:
        await asyncio.gather(*(thread.run(partial(work, number)) for number in range(9)))

    asyncio.run(scenario())
    assert done == [(number, NAME) for number in range(9)]


def test_an_exception_is_raised_to_the_caller_and_the_next_job_runs(thread: WriterThread) -> None:
    async def scenario() -> None:
        with pytest.raises(ZeroDivisionError):
            await thread.run(lambda: 1 / 0)
        assert await thread.run(lambda: 7) == 7

    asyncio.run(scenario())


def test_a_cancelled_caller_does_not_affect_the_next_job(thread: WriterThread) -> None:
    go_on = threading.Event()

    async def scenario() -> None:
        waiting = asyncio.create_task(thread.run(go_on.wait))
        after_it = asyncio.create_task(thread.run(lambda: 7))
        await asyncio.sleep(0)
        waiting.cancel()
        go_on.set()
        assert await after_it == 7
        assert waiting.cancelled()

    asyncio.run(scenario())


def test_close_runs_queued_jobs_and_rejects_new_ones(thread: WriterThread) -> None:
    go_on, done = threading.Event(), threading.Event()

    async def scenario() -> None:
        waiting = [asyncio.create_task(thread.run(work)) for work in (go_on.wait, done.set)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(asyncio.to_thread(thread.close))
        go_on.set()
        await closing
        assert done.is_set()
        await asyncio.gather(*waiting)
        with pytest.raises(RuntimeError, match="the writer thread is closed"):
            await thread.run(done.set)

    asyncio.run(scenario())


def test_a_job_that_outlives_its_event_loop_is_harmless(thread: WriterThread) -> None:
    """For example if the service is stopped while the disk hangs."""
    go_on = threading.Event()

    async def scenario() -> None:
        waiting = asyncio.create_task(thread.run(go_on.wait))
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(scenario())
    go_on.set()
    assert asyncio.run(thread.run(lambda: 7)) == 7
