"""Unix milliseconds: conversion to and from datetime, and as text. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def to_utc(millis: int) -> datetime | None:
    """The time as a datetime in UTC; None after the year 9999, which datetime cannot represent."""
    try:
        return datetime.fromtimestamp(millis / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def to_millis(duration: timedelta) -> int:
    """The duration in milliseconds, rounded to the nearest."""
    return round(duration.total_seconds() * 1000)


def format_utc(millis: int) -> str:
    """The time in UTC to the second: `2026-11-21T03:12:00Z`; in milliseconds if datetime cannot represent it."""
    time = to_utc(millis)
    return f"{millis} (Unix milliseconds)" if time is None else f"{time:%Y-%m-%dT%H:%M:%SZ}"
