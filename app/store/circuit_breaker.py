"""Presence: whether the database is there."""

from __future__ import annotations

import time

import structlog

from app.store.error_translation import advice, said, unavailable
from blocklist.model.errors import UnavailableError

log = structlog.get_logger(__name__)


class Presence:
    """As the last transaction found it. Belongs to the event loop. The log hears when it goes, and when it is back."""

    def __init__(self) -> None:
        self._why: str | None = None
        self._worked = time.monotonic()
        self._back = 0.0

    @property
    def away(self) -> bool:
        return self._why is not None

    def over(self, begun: float) -> bool:
        """Whether what began then (of the monotonic clock) ends too late to tell: the database is back since."""
        return begun < self._back

    def worked(self) -> None:
        """It took a transaction."""
        if self.away:
            log.info("the database is back", away_seconds=self.age())
            self._back = time.monotonic()
        self._why, self._worked = None, time.monotonic()

    def failed(self, error: Exception) -> None:
        """It did not."""
        if self._why is None:
            self._why = unavailable(error).detail
            log.warning("the database is away", reason=said(error), advice=self._why)
        elif (known := advice(error)) is not None:
            # Others tell less: transactions are cut off because it is away.
            self._why = known

    def check(self) -> None:
        """Raises UnavailableError, with what is wrong, while it is away."""
        if self._why is not None:
            raise UnavailableError(self._why, retry_after=1)

    def age(self) -> int | None:
        """Whole seconds since it last took a transaction, while it is away; None while it is there."""
        return int(time.monotonic() - self._worked) if self.away else None
