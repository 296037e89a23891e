"""By how much the clock of the service is ahead of that of this machine."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime
from typing import Final

MIN_OFFSET: Final = 5_000
"""Smaller differences, in milliseconds, count as none: a Date header has whole seconds, and a response takes time."""


def clock_offset(date: str | None) -> int:
    """Milliseconds, from the Date header of a response that has just come; 0 for a small difference or without one."""
    try:
        at = round(parsedate_to_datetime(date or "").timestamp() * 1000)
    except (TypeError, ValueError, OverflowError):
        return 0
    offset = at - time.time_ns() // 1_000_000
    return offset if abs(offset) >= MIN_OFFSET else 0
