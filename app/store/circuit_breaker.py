"""CircuitBreaker: whether the database is available."""

from __future__ import annotations

import time

import structlog

from app.store.error_translation import driver_message, operator_advice, to_unavailable
from blocklist.model.errors import UnavailableError

log = structlog.get_logger(__name__)


class CircuitBreaker:
    """Opens at the first failure, closes at the next success; logs both. Belongs to the event loop."""

    def __init__(self) -> None:
        self._reason: str | None = None
        self._last_success = time.monotonic()
        self._closed_at = 0.0

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
