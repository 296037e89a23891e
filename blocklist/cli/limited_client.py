"""A time limit on each whole request of the command. Those of the HTTP client are for each read, however small."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import httpx

from blocklist.client.answers import ApiResponse
from blocklist.client.client import BlocklistClient
from blocklist.client.transport import unreachable_message
from blocklist.model.errors import UnavailableError
from blocklist.model.node import format_duration

if TYPE_CHECKING:
    from blocklist.wire.tokens import IdentityBody


class LimitedClient(BlocklistClient):
    """A client whose requests take at most twice its timeout, from connecting to the end of the response.

    Twice the timeout, so that the client's own error comes first. Who it is, and what the service recommends to it, is
    asked once.
    """

    product = "blocklist-command"
    _known: IdentityBody | None = None

    def _request(self, method: str, path: str, *, wait: int | None = None, **options: Any) -> ApiResponse:
        try:
            with _time_limit(2 * self._timeout + (wait or 0)):
                return super()._request(method, path, wait=wait, **options)
        except httpx.ReadTimeout as error:
            # It came when the client had just finished.
            raise UnavailableError(unreachable_message(self.url, error)) from error

    def identity(self) -> IdentityBody:
        self._known = self._known or super().identity()
        return self._known


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise httpx.ReadTimeout after this time. Only in the main thread, and not on Windows."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise httpx.ReadTimeout(f"the response is not complete after {format_duration(round(seconds * 1000))}")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
