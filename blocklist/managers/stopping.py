"""Stopping: the request to stop this process; what waits for it, and what is called then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

from blocklist.managers.plan import ManagerError

T = TypeVar("T")
_CHECK_SECONDS: Final = 0.1
"""How soon a stop is obeyed. A signal handler may run in the waiting thread, so it cannot wait on a lock."""


class StoppedError(ManagerError):
    """The manager is to stop."""


class Stopping:
    """Set once, by any thread or signal handler; threads wait for it. What `calls` registers is called then.

    Reentrant: a signal may arrive in the thread that registers.
    """

    def __init__(self) -> None:
        self._set = threading.Event()
        self._lock = threading.RLock()
        self._calls: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        return self._set.is_set()

    def wait(self, seconds: float) -> bool:
        """Whether it was set within this time."""
        return self._set.wait(seconds)

    def set(self) -> None:
        """Stop for good."""
        self._set.set()
        self.interrupt()

    def interrupt(self) -> None:
        """Call what is registered, without stopping for good."""
        with self._lock:
            for call in self._calls:
                call()

    @contextmanager
    def calls(self, stop: Callable[[], None]) -> Iterator[None]:
        """Call `stop` once it is set; at once if it is set already."""
        with self._lock:
            self._calls.append(stop)
        if self.is_set():
            stop()
        try:
            yield
        finally:
            with self._lock:
                self._calls.remove(stop)

    def check(self) -> None:
        """Raises StoppedError if it is set."""
        self.sleep(0)

    def sleep(self, seconds: float) -> None:
        """Raises StoppedError as soon as it is set."""
        if self.wait(seconds):
            raise StoppedError("The manager is stopping.")

    def call(self, function: Callable[[], T], seconds: float, abandon: Callable[[], None] = lambda: None) -> T:
        """The result of a function that may block, such as a name look-up, from a thread of its own.

        After `seconds`, or when this is set, `abandon` is called, and TimeoutError or StoppedError raised; the thread
        ends on its own, or with the process.
        """
        call = _Call(function)
        deadline = time.monotonic() + seconds
        while not call.done.wait(_CHECK_SECONDS):
            if self.is_set():
                abandon()
                raise StoppedError("The manager is stopping.")
            if time.monotonic() >= deadline:
                abandon()
                raise TimeoutError(f"no complete response within {seconds:g} s")
        return call.result()


class _Call(Generic[T]):
    def __init__(self, function: Callable[[], T]) -> None:
        self.done = threading.Event()
        self._function = function
        self._outcome: list[T] = []
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="blocklist-call", daemon=True).start()

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._outcome[0]

    def _run(self) -> None:
        try:
            self._outcome.append(self._function())
        except BaseException as error:
            self._error = error
        finally:
            self.done.set()
