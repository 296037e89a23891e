"""Formats times and durations for people. Pure; Unix milliseconds in, UTC out."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from blocklist.model.node import PERMANENT

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_MAX_MILLIS: Final = 253_402_300_799_999
"""The end of the year 9999, the last that datetime supports."""


def utc(millis: int) -> str:
    """`2026-11-21 18:14:12`; a word for times that datetime does not support."""
    if 0 <= millis <= _MAX_MILLIS:
        return datetime.fromtimestamp(millis / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return "permanent" if millis == PERMANENT else "out of range"


def short(millis: int) -> str:
    """`21 Nov 18:14`: for charts, where the year is obvious."""
    return datetime.fromtimestamp(millis / 1000, UTC).strftime("%d %b %H:%M").removeprefix("0")


def rfc3339(millis: int) -> str:
    """RFC 3339, for `<time datetime>`; empty for times that datetime does not support."""
    return utc(millis).replace(" ", "T") + "Z" if 0 <= millis <= _MAX_MILLIS else ""


def duration(millis: int) -> str:
    """The two largest units of a duration, as in `1 h 59 min`, to the nearest second."""
    seconds = (max(0, millis) + 500) // 1000
    for place, (size, unit) in enumerate(_UNITS):
        if seconds >= size:
            whole, rest = divmod(seconds, size)
            text = f"{whole:,} {unit}"
            smaller = _UNITS[place + 1 : place + 2]
            more = [f"{rest // size} {unit}" for size, unit in smaller if rest >= size]
            return " ".join([text, *more])
    return "0 s"


def left(end: int, now: int) -> str:
    """The time left until the end of a block."""
    return "permanent" if end == PERMANENT else f"{duration(end - now)} left"


def ago(millis: int, now: int) -> str:
    """The time since `millis`."""
    return f"{duration(now - millis)} ago"


def count(number: int, noun: str) -> str:
    """`1 node`, `2,000 nodes`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
