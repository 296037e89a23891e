"""WriterThread: runs functions for the event loop, one after another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")
_Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class WriterThread:
    """Runs functions in the order of the calls of `run`.

    An executor of one thread would do, but needs two chained futures for each call: a fifth of the CPU time of a small
    commit.
    """

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._closed = False
        self._thread = Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    async def run(self, function: Callable[[], T]) -> T:
        """Return or raise what `function` does. Raises RuntimeError after `close`."""
        if self._closed:
            raise RuntimeError("the writer thread is closed")
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((function, done))
        return await done

    def close(self) -> None:
        """Run the queued functions, and stop. Blocks until then."""
        self._closed = True
        self._jobs.put(None)
        self._thread.join()

    def _loop(self) -> None:
        while (job := self._jobs.get()) is not None:
            _execute(*job)
            del job  # or it stays referenced until the next job


def _execute(function: Callable[[], Any], done: asyncio.Future[Any]) -> None:
    try:
        result, error = function(), None
    except BaseException as raised:
        result, error = None, raised
    # The event loop may be closed by now.
    with suppress(RuntimeError):
        done.get_loop().call_soon_threadsafe(_resolve_future, done, result, error)


def _resolve_future(done: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if done.done():  # The caller was cancelled.
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)
