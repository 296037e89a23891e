"""Unix milliseconds: conversion to and from datetime, and as text. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from blocklist.model.node import PERMANENT


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


# Durations as text: `90s`, `2h`, `1d12h`. Pure.

FOREVER: Final = "forever"
DEFAULT_DURATION: Final = "4h"
"""Duration of a block for which the operator gives no end."""
_UNITS: Final = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_PART: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|[smhdw])", re.ASCII)


def parse_duration(text: str) -> int:
    """The duration in milliseconds, at least 1. Raises ValueError for an invalid one."""
    parts = _PART.findall(text)
    millis = round(sum(float(number) * _UNITS[unit] for number, unit in parts))
    if "".join(number + unit for number, unit in parts) != text or millis < 1:
        raise ValueError(f"{text[:64]!a} is not a duration: give one such as 90s, 2h, 1d12h or 7d.")
    return millis


def parse_duration_or_forever(text: str) -> int:
    """Milliseconds, PERMANENT for `forever`. Raises ValueError with a sentence."""
    return PERMANENT if text == FOREVER else parse_duration(text)


def format_duration(millis: int) -> str:
    """`1d 12h`, `4h`, `45s`: rounded to seconds, the two largest units."""
    if 0 < millis < 1000:
        return f"{millis}ms"
    left = round(millis / 1000) * 1000
    parts: list[tuple[int, str]] = []
    for unit, size in _UNITS.items():
        count, left = divmod(left, size)
        if count or parts:
            parts.append((count, unit))
    return " ".join(f"{count}{unit}" for count, unit in parts[:2] if count) or "0s"


def exact_duration(millis: int) -> str:
    """The duration as in settings, in the largest unit up to days that gives a whole number: `7d`, `36h`, `90s`."""
    unit = next(unit for unit, size in _UNITS.items() if unit != "w" and millis % size == 0)
    return f"{millis // _UNITS[unit]}{unit}"


# Retry delays. Pure; the caller provides the random number.


@dataclass(frozen=True, kw_only=True, slots=True)
class Backoff:
    """Exponential backoff with full jitter, in seconds: from `floor` to min(cap, initial * 2^(failures - 1))."""

    initial: float = 0.2
    cap: float = 10.0
    floor: float = 0.05

    def delay(self, failures: int, jitter: float, retry_after: float | None = None) -> float:
        """Seconds to wait after `failures` consecutive failures (at least 1).

        `jitter` is a random number in [0, 1). `retry_after` is the minimum that the server requested (Retry-After, or
        `retry:` of an event stream), limited to the cap.
        """
        if failures < 1:
            raise ValueError("failures must be at least 1")
        ceiling = min(self.cap, self.initial * 2.0 ** min(failures - 1, 32))
        wait = self.floor + jitter * max(0.0, ceiling - self.floor)
        return max(wait, min(retry_after, self.cap)) if retry_after else wait
