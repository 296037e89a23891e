"""Times as operators type them: RFC 3339, `15m` ago, `yesterday 18:00` in local time."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta
from typing import Final

from blocklist.model.durations import parse_duration

_CLOCKS_DIFFER: Final = 60_000
_DAYS: Final = {"yesterday": -1, "today": 0, "tomorrow": 1}
_DAY: Final = re.compile(r"(?:(yesterday|today|tomorrow)(?: |$))?(?:([01]?[0-9]|2[0-3]):([0-5][0-9]))?", re.ASCII)


def parse_timestamp(text: str, now: int | None = None) -> int:
    """Unix milliseconds of a time; `15m`, `-15m` and `15m ago` are before `now` (Unix ms, by default the clock's).

    `18:00` is the last one, which may be yesterday's. Raises ValueError with a sentence, also for an absolute time
    without a time zone.
    """
    moment = time.time_ns() // 1_000_000 if now is None else now
    if text == "now":
        return moment
    if (day := _parse_day(text, moment)) is not None:
        return _parse_day(f"yesterday {text}", moment) or day if day > moment and text[0].isdecimal() else day
    if text[:1].isdecimal() or text[:1] == "-":
        try:
            return moment - parse_duration(text.removesuffix(" ago").removeprefix("-"))
        except ValueError:
            pass
    return _parse_absolute(text, "15m or yesterday 18:00")


def parse_end(text: str, now: int | None = None) -> int:
    """As parse_timestamp, but for an end: `18:00` is the next one, and a duration is refused, as it would be ago."""
    try:
        parse_duration(text.removeprefix("-"))
    except ValueError:
        pass
    else:
        raise ValueError(f"{text[:64]!a} is a duration: give it as -d {text.removeprefix('-')[:64]}.")
    moment = time.time_ns() // 1_000_000 if now is None else now
    if (end := _parse_day(text, moment)) is None:
        return moment if text == "now" else _parse_absolute(text, "18:00 or tomorrow 08:00")
    return _parse_day(f"tomorrow {text}", moment) or end if end <= moment and text[0].isdecimal() else end


def parse_past(text: str, now: int | None = None) -> int:
    """As parse_timestamp; raises ValueError if it is more than a minute ahead, as clocks differ."""
    moment = time.time_ns() // 1_000_000 if now is None else now
    if (at := parse_timestamp(text, moment)) > moment + _CLOCKS_DIFFER:
        raise ValueError(f"{text[:64]!a} is in the future: give a time that has passed.")
    return at


def _parse_day(text: str, now: int) -> int | None:
    """`yesterday`, `today 09:00`, `18:00`: in local time; None for anything else."""
    match = _DAY.fullmatch(text)
    if not text or match is None:
        return None
    day, hour, minute = match.groups()
    local = datetime.fromtimestamp(now / 1000).astimezone()
    date = local.date() + timedelta(days=_DAYS.get(day or "today", 0))
    # A naive time is local: the offset of that day counts, which may differ from today's.
    naive = datetime(date.year, date.month, date.day, int(hour or 0), int(minute or 0))  # noqa: DTZ001
    return round(naive.timestamp() * 1000)


def _parse_absolute(text: str, others: str) -> int:
    """`others` are examples of other forms that are allowed."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text[:64]!a} is not a time: give one such as 2026-11-21T18:00:00Z, {others}.") from None
    if parsed.tzinfo is None:
        raise ValueError(f"{text[:64]!a} has no time zone: append Z for UTC, or an offset such as +01:00.")
    return round(parsed.timestamp() * 1000)
