"""Moments: Unix milliseconds inside, RFC 3339 in UTC outside."""

from __future__ import annotations

import time
from datetime import datetime

from blocklist.model.durations import format_duration
from blocklist.model.node import PERMANENT
from blocklist.model.time import to_utc


def now_ms() -> int:
    """The present in Unix milliseconds."""
    return time.time_ns() // 1_000_000


def parse_timestamp(text: str) -> int:
    """Unix milliseconds of an RFC 3339 time. Raises ValueError with a sentence, also for one without a zone."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text[:64]!a} is not a time: give one such as 2026-11-21T18:00:00Z.") from None
    if parsed.tzinfo is None:
        raise ValueError(f"{text[:64]!a} has no time zone: end it with Z for UTC, or with one such as +01:00.")
    return round(parsed.timestamp() * 1000)


def format_timestamp(millis: int) -> str:
    """`2026-11-21T18:00:00Z`, for tables: it can be given back to an option."""
    if millis == PERMANENT:
        return "never"
    moment = to_utc(millis)
    return str(millis) if moment is None else f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def format_end(end: int, now: int) -> str:
    """`until 2026-11-21 18:00:00 UTC (in 4h)`, seen `at` a moment; `forever` for a block without end."""
    if end == PERMANENT:
        return "forever"
    moment = to_utc(end)
    shown = str(end) if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"
    return f"until {shown} (in {format_duration(max(0, end - now))})"
