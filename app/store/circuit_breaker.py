"""CircuitBreaker: whether the database is available, and whether what was read from it may be out of date."""

from __future__ import annotations

import time
from typing import Final

import structlog

from app.store.error_translation import driver_message, operator_advice, to_unavailable
from blocklist.model.errors import UnavailableError

log = structlog.get_logger(__name__)

MAX_POLL_GAP_SECONDS: Final = 1.0
"""A longer time since the last poll means that this process, or its connection, stood still: twice the interval."""


class CircuitBreaker:
    """Opens at the first failure, closes at the next success; logs both. Belongs to the event loop.

    What is in memory stays outdated after it closes, until everything was read again: other replicas may have written
    meanwhile. The same holds after a pause of this process, which the first read or poll after it notices.
    """

    def __init__(self) -> None:
        self._reason: str | None = None
        self._last_success = time.monotonic()
        self._closed_at = 0.0
        self._outdated_since: float | None = None
        self._polled_at: float | None = None

    @property
    def is_open(self) -> bool:
        return self._reason is not None

    def is_stale_failure(self, started_at: float) -> bool:
        """Whether the failure of an operation that started then (monotonic clock) predates the last recovery."""
        return started_at < self._closed_at

    def record_success(self) -> None:
        """A transaction succeeded: close."""
        if self.is_open:
            log.info("the database is available again", outage_seconds=self.open_seconds())
            self._closed_at = time.monotonic()
        self._reason, self._last_success = None, time.monotonic()

    def record_failure(self, error: Exception) -> None:
        """A transaction failed: open. A later error replaces the reason only if there is advice for it."""
        if self._reason is None:
            self._reason = to_unavailable(error).detail
            self._outdated_since = self._outdated_since or self._last_success
            log.warning("the database is unavailable", reason=driver_message(error), advice=self._reason)
        elif (advice := operator_advice(error)) is not None:
            self._reason = advice

    def check(self) -> None:
        """Raises UnavailableError with the reason while open."""
        if self._reason is not None:
            raise UnavailableError(self._reason, retry_after=1)

    def open_seconds(self) -> int | None:
        """Whole seconds since the last successful transaction, while open; None while closed."""
        return int(time.monotonic() - self._last_success) if self.is_open else None

    def record_poll(self) -> None:
        """The database has told what other replicas have written; from now on it must do so regularly."""
        self._notice_gap()
        self._polled_at = time.monotonic()

    def record_up_to_date(self, read_at: float) -> None:
        """Everything in memory was read again, beginning at `read_at` (monotonic clock). Does nothing while open."""
        if not self.is_open:
            self._outdated_since = None
            if self._polled_at is not None:
                self._polled_at = max(self._polled_at, read_at)

    def outdated_seconds(self) -> int | None:
        """Whole seconds since what is in memory was up to date for certain; None if it is."""
        self._notice_gap()
        return None if self._outdated_since is None else int(time.monotonic() - self._outdated_since)

    def _notice_gap(self) -> None:
        if (
            self._outdated_since is None
            and self._polled_at is not None
            and time.monotonic() - self._polled_at > MAX_POLL_GAP_SECONDS
        ):
            self._outdated_since = self._polled_at
