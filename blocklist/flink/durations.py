"""Durations as Flink writes them. Pure."""

from __future__ import annotations

import re
from typing import Final

# The units of Flink's TimeUtils; a number without a unit is in milliseconds.
_UNITS: Final = {
    name: seconds
    for seconds, names in (
        (86400.0, "d day days"),
        (3600.0, "h hour hours"),
        (60.0, "m min minute minutes"),
        (1.0, "s sec secs second seconds"),
        (1e-3, "ms milli millis millisecond milliseconds"),
        (1e-6, "\u00b5s \u03bcs micro micros microsecond microseconds"),
        (1e-9, "ns nano nanos nanosecond nanoseconds"),
    )
    for name in names.split()
}
_ISO: Final = re.compile(r"P(?:([0-9]+)D)?(?:T(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9]+(?:\.[0-9]+)?)S)?)?")


def duration_seconds(text: str) -> float:
    """A duration of Flink, such as `15 s`, `1 hour` or `P1DT2H`; 0 if it is not understood."""
    iso = _ISO.fullmatch(text.strip().upper())
    if iso is not None:
        days, hours, minutes, seconds = (float(part or 0) for part in iso.groups())
        return days * 86400 + hours * 3600 + minutes * 60 + seconds
    found = re.fullmatch(r"([0-9]+)\s*(\D*)", text.strip().lower())
    return float(found[1]) * _UNITS.get(found[2] or "ms", 0.0) if found is not None else 0.0
