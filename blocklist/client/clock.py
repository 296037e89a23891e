"""The clock of the service, by which blocks end, as a client of it knows it."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Final

MIN_OFFSET: Final = 5_000
"""Smaller differences, in milliseconds, count as none: a Date header has whole seconds, and a response takes time."""
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
# The format in which servers must send it (RFC 9110). `email.utils` reads others as well, but is slow to import.
_DATE: Final = re.compile(r"[A-Z][a-z]{2}, ([0-9]{2}) ([A-Z][a-z]{2}) ([0-9]{4}) ([0-9]{2}):([0-9]{2}):([0-9]{2}) GMT")


class ServiceClock:
    """The service's time. It is this machine's as long as the two differ by less than MIN_OFFSET.

    Otherwise it is the Date of the last response, and the time that has passed since: the clock of this machine may be
    set meanwhile.

    THREADING: all methods may be called from any thread.
    """

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None

    def on_date(self, date: str | None) -> None:
        """Take the Date header of a response that has just come."""
        if (at := _parse_date(date)) is not None:
            self._last = at, time.monotonic()

    def now(self) -> int:
        """Unix milliseconds; by the clock of this machine before the first response."""
        return _own_now() + self.ahead()

    def ahead(self) -> int:
        """By how many milliseconds it is ahead of the clock of this machine; 0 before the first response."""
        if self._last is None:
            return 0
        at, received = self._last
        return _significant(at + round((time.monotonic() - received) * 1000) - _own_now())


def clock_offset(date: str | None) -> int:
    """By how many milliseconds the service's clock is ahead, by the Date header of a response that has just come.

    0 for a small difference or without the header.
    """
    at = _parse_date(date)
    return 0 if at is None else _significant(at - _own_now())


def _significant(offset: int) -> int:
    return offset if abs(offset) >= MIN_OFFSET else 0


def _parse_date(date: str | None) -> int | None:
    match = _DATE.fullmatch(date or "")
    if match is None:
        return None
    day, month, year, hour, minute, second = match.groups()
    try:
        number = _MONTHS.index(month) + 1
        at = datetime(int(year), number, int(day), int(hour), int(minute), int(second), tzinfo=UTC)
    except ValueError:
        return None
    return round(at.timestamp() * 1000)


def _own_now() -> int:
    return time.time_ns() // 1_000_000
