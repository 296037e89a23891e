"""By how much the clock of the service is ahead of that of this machine."""

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


def clock_offset(date: str | None) -> int:
    """Milliseconds, from the Date header of a response that has just come; 0 for a small difference or without one."""
    match = _DATE.fullmatch(date or "")
    if match is None:
        return 0
    day, month, year, hour, minute, second = match.groups()
    try:
        number = _MONTHS.index(month) + 1
        at = datetime(int(year), number, int(day), int(hour), int(minute), int(second), tzinfo=UTC)
    except ValueError:
        return 0
    offset = round(at.timestamp() * 1000) - time.time_ns() // 1_000_000
    return offset if abs(offset) >= MIN_OFFSET else 0
