"""Durations as text: `90s`, `2h`, `1d12h`. Pure."""

from __future__ import annotations

import re
from typing import Final

from blocklist.model.node import PERMANENT

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
