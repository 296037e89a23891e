"""Presence: whether the database is there."""

from __future__ import annotations

import time

import structlog

from app.store.error_translation import driver_message, operator_advice, to_unavailable
from blocklist.model.errors import UnavailableError

log = structlog.get_logger(__name__)


class CircuitBreaker:
    """As the last transaction found it. Belongs to the event loop. The log hears when it goes, and when it is back."""

    def __init__(self) -> None:
        self._reason: str | None = None
        self._last_success = time.monotonic()
        self._closed_at = 0.0

    @property
    def is_open(self) -> bool:
        return self._reason is not None

    def is_stale_failure(self, started_at: float) -> bool:
        """Whether what began then (of the monotonic clock) ends too late to tell: the database is back since."""
        return started_at < self._closed_at

    def record_success(self) -> None:
        """It took a transaction."""
        if self.is_open:
            log.info("the database is back", away_seconds=self.open_seconds())
            self._closed_at = time.monotonic()
        self._reason, self._last_success = None, time.monotonic()

    def record_failure(self, error: Exception) -> None:
        """It did not."""
        if self._reason is None:
            self._reason = to_unavailable(error).detail
            log.warning("the database is away", reason=driver_message(error), advice=self._reason)
        elif (advice := operator_advice(error)) is not None:
            # Others tell less: transactions are cut off because it is away.
            self._reason = advice

    def check(self) -> None:
        """Raises UnavailableError, with what is wrong, while it is away."""
        if self._reason is not None:
            raise UnavailableError(self._reason, retry_after=1)

    def open_seconds(self) -> int | None:
        """Whole seconds since it last took a transaction, while it is away; None while it is there."""
        return int(time.monotonic() - self._last_success) if self.is_open else None
