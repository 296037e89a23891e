"""Charts as coordinates, which the templates draw. Pure."""

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
    """A rectangle and its CSS class."""

    kind: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockedChart:
    """Blocked nodes over time: for each bucket a box of all blocked nodes, and in front of it one of evacuated nodes.

    `gridlines` are y coordinates with values, `time_labels` x coordinates with texts.
    """

    boxes: Sequence[Box]
    gridlines: Sequence[tuple[float, int]]
    time_labels: Sequence[tuple[float, str]]
    maximum: int


def blocked_chart(buckets: Sequence[Bucket]) -> BlockedChart:
    """The chart of buckets in time order."""
    maximum = max((bucket.blocked for bucket in buckets), default=0)
    top = axis_maximum(maximum)
    width, height = (WIDTH - LEFT) / max(1, len(buckets)), HEIGHT - TOP - BOTTOM
    boxes = []
    for index, bucket in enumerate(buckets):
        # The first box reaches down to zero behind the second: stacked boxes would leave gaps.
        for kind, count in (("mark", bucket.blocked if bucket.marked else 0), ("evacuate", bucket.evacuated)):
            if count:
                x, tall = _rounded(LEFT + index * width), height * count / top
                boxes.append(Box(kind, x, _rounded(HEIGHT - BOTTOM - tall), _rounded(width + 0.2), _rounded(tall)))
    values = sorted({0, top // 2, top} if top % 2 == 0 else {0, top})
    return BlockedChart(
        boxes=boxes,
        gridlines=[(_rounded(HEIGHT - BOTTOM - height * value / top), value) for value in values],
        time_labels=time_labels(buckets[0].begin, buckets[-1].end) if buckets else [],
        maximum=maximum,
    )


def causes_chart(rows: Sequence[tuple[str, float, int]]) -> list[tuple[str, float, float]]:
    """Name, hours, and length of the bar as a fraction of the longest."""
    longest = max((hours for _, hours, _ in rows), default=0) or 1
    return [(name, hours, _rounded(hours / longest, 4)) for name, hours, _ in rows]


def axis_maximum(number: int) -> int:
    """The next round number for an axis: 1, 2, 5, 10, 20, …; at least 1."""
    size = 1
    while True:
        for step in _AXIS_STEPS:
            if step * size >= number:
                return step * size
        size *= 10


def time_labels(begin: int, end: int, left: int = LEFT) -> list[tuple[float, str]]:
    """At most eight round times as x coordinate and text; none so close to an edge that it would be cut off.

    The chart begins at the x coordinate `left`.
    """
    unit = next((unit for unit in _UNITS if (end - begin) // unit <= _MAX_LABELS), _UNITS[-1])
    labels = [
        (left + (WIDTH - left) * (timestamp - begin) / (end - begin), _label(timestamp, unit))
        for timestamp in range(-(-begin // unit) * unit, end, unit)
    ]
    return [(_rounded(x), text) for x, text in labels if max(20, left + 15) <= x <= WIDTH - 20]


def _label(timestamp: int, unit: int) -> str:
    time = datetime.fromtimestamp(timestamp / 1000, UTC)
    return time.strftime("%H:%M") if unit < _DAY else time.strftime("%d %b").removeprefix("0")


def _rounded(value: float, digits: int = 1) -> float:
    return round(value, digits)
