"""A thread that works for the event loop."""

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
    """Does one thing after the other, in the order in which they are asked for.

    An executor does the same by two futures, which watch each other, and a lock for each: a fifth of the interpreter's
    time for a commit of one change.
    """

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._closed = False
        self._thread = Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    async def run(self, function: Callable[[], T]) -> T:
        """What `work` returns or raises. Raises RuntimeError after `close`."""
        if self._closed:
            raise RuntimeError("nobody works here any more")
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((function, done))
        return await done

    def close(self) -> None:
        """Wait until all that was asked for is done."""
        self._closed = True
        self._jobs.put(None)
        self._thread.join()

    def _loop(self) -> None:
        while (job := self._jobs.get()) is not None:
            _execute(*job)
            del job  # which keeps what it knows alive until something else is asked


def _execute(function: Callable[[], Any], done: asyncio.Future[Any]) -> None:
    try:
        result, error = function(), None
    except BaseException as raised:
        result, error = None, raised
    # The loop may have ended without waiting for us.
    with suppress(RuntimeError):
        done.get_loop().call_soon_threadsafe(_resolve_future, done, result, error)


def _resolve_future(done: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    """Whoever waited may have been cancelled."""
    if done.done():
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)
