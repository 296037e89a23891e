"""Moments and durations as Unix milliseconds, and their conversion to and from datetime's. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def to_utc(millis: int) -> datetime | None:
    """The moment in UTC; None for a year that datetime does not know: the last is 9999."""
    try:
        return datetime.fromtimestamp(millis / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def to_millis(duration: timedelta) -> int:
    """The duration in milliseconds, to the nearest."""
    return round(duration.total_seconds() * 1000)
