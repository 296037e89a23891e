"""Charts as coordinates: what the templates draw. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from app.page.block_intervals import Bucket

WIDTH: Final = 640
HEIGHT: Final = 200
LEFT: Final = 44
TOP: Final = 12
BOTTOM: Final = 24
_AXIS_STEPS: Final = (1, 2, 5)
_DAY: Final = 86_400_000
_MAX_LABELS: Final = 7
_UNITS: Final = (_DAY // 24, _DAY // 6, _DAY, 5 * _DAY, 15 * _DAY)


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle, and what it is for the style sheet."""

    kind: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockedChart:
    """Blocked nodes over time: for each piece a box of all that are blocked, and before it one of those to evacuate.

    `lines` are heights and what they say, `moments` places and what they say.
    """

    boxes: Sequence[Box]
    gridlines: Sequence[tuple[float, int]]
    time_labels: Sequence[tuple[float, str]]
    maximum: int


def blocked_chart(buckets: Sequence[Bucket]) -> BlockedChart:
    """The pieces from left to right."""
    maximum = max((bucket.blocked for bucket in buckets), default=0)
    top = axis_maximum(maximum)
    wide, high = (WIDTH - LEFT) / max(1, len(buckets)), HEIGHT - TOP - BOTTOM
    boxes = []
    for place, bucket in enumerate(buckets):
        # The first reaches down to the ground behind the second: one on top of the other they would leave gaps.
        for kind, count in (("mark", bucket.blocked if bucket.marked else 0), ("evacuate", bucket.evacuated)):
            if count:
                tall = high * count / top
                boxes.append(
                    Box(
                        kind,
                        _rounded(LEFT + place * wide),
                        _rounded(HEIGHT - BOTTOM - tall),
                        _rounded(wide + 0.2),
                        _rounded(tall),
                    )
                )
    values = sorted({0, top // 2, top} if top % 2 == 0 else {0, top})
    return BlockedChart(
        boxes=boxes,
        gridlines=[(_rounded(HEIGHT - BOTTOM - high * value / top), value) for value in values],
        time_labels=_time_labels(buckets),
        maximum=maximum,
    )


def causes_chart(rows: Sequence[tuple[str, float, int]]) -> list[tuple[str, float, float]]:
    """Name, hours, and the length of the bar, of 1 for the longest."""
    longest = max((hours for _, hours, _ in rows), default=0) or 1
    return [(name, hours, _rounded(hours / longest, 4)) for name, hours, _ in rows]


def axis_maximum(number: int) -> int:
    """The next number that looks well on an axis: 1, 2, 5, 10, 20, …; at least 1."""
    size = 1
    while True:
        for nice in _AXIS_STEPS:
            if nice * size >= number:
                return nice * size
        size *= 10


def _time_labels(buckets: Sequence[Bucket]) -> list[tuple[float, str]]:
    """Where moments are written, and what: round ones, at most eight, none so near an end that it would be cut."""
    if not buckets:
        return []
    begin, end = buckets[0].begin, buckets[-1].end
    unit = next((each for each in _UNITS if (end - begin) // each <= _MAX_LABELS), _UNITS[-1])
    format_ = "%H:%M" if unit < _DAY else "%d %b"
    places = [
        (timestamp, LEFT + (WIDTH - LEFT) * (timestamp - begin) / (end - begin))
        for timestamp in _round_timestamps(begin, end, unit)
    ]
    return [
        (
            _rounded(x),
            datetime.fromtimestamp(timestamp / 1000, UTC).strftime(format_).removeprefix("0" if unit >= _DAY else ""),
        )
        for timestamp, x in places
        if LEFT + 15 <= x <= WIDTH - 20
    ]


def _round_timestamps(begin: int, end: int, unit: int) -> range:
    return range(-(-begin // unit) * unit, end, unit)


def _rounded(value: float, digits: int = 1) -> float:
    return round(value, digits)
