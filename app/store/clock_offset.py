"""ClockOffset: by how much this machine's clock differs from the database's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

log = structlog.get_logger(__name__)

MAX_OFFSET_SECONDS: Final = 1.0
"""A larger difference is logged, and shown by `/readyz`: blocks and leases end that much too early or too late."""


class ClockOffset:
    """Measured whenever the database is polled. Belongs to the event loop. `clock` returns Unix ms."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.clock = clock
        self.seconds: float | None = None

    def record(self, asked_at: int, database_time: int, answered_at: int) -> None:
        """The database's clock showed `database_time` between these times of this machine (all in Unix ms).

        The least difference that explains them counts, so that a slow answer, or a pause, is not taken for one.
        """
        was_large = self.is_large
        ahead, behind = asked_at - database_time, database_time - answered_at
        self.seconds = (max(ahead, 0) - max(behind, 0)) / 1000
        if self.is_large and not was_large:
            log.warning("this machine's clock differs from the database's: check NTP", seconds_ahead=self.seconds)
        elif was_large and not self.is_large:
            log.info("this machine's clock agrees with the database's again", seconds_ahead=self.seconds)

    @property
    def is_large(self) -> bool:
        """Whether it is more than MAX_OFFSET_SECONDS, in either direction."""
        return self.seconds is not None and abs(self.seconds) > MAX_OFFSET_SECONDS
