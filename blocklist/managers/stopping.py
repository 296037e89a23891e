"""Stopping: the request to stop this process, and what is called then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopping:
    """Set by a signal handler; threads wait for it. What `calls` registers is called once it is set, or interrupted.

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
