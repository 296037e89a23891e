"""Charts as coordinates: what the templates draw. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from app.page.block_intervals import Step

WIDTH: Final = 640
HEIGHT: Final = 200
LEFT: Final = 44
TOP: Final = 12
BOTTOM: Final = 24
_NICE: Final = (1, 2, 5)
_DAY: Final = 86_400_000
_MARKS: Final = 7
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
class Levels:
    """Blocked nodes over time: for each piece a box of all that are blocked, and before it one of those to evacuate.

    `lines` are heights and what they say, `moments` places and what they say.
    """

    boxes: Sequence[Box]
    lines: Sequence[tuple[float, int]]
    moments: Sequence[tuple[float, str]]
    most: int


def levels_chart(pieces: Sequence[Step]) -> Levels:
    """The pieces from left to right."""
    most = max((piece.blocked for piece in pieces), default=0)
    top = ceiling(most)
    wide, high = (WIDTH - LEFT) / max(1, len(pieces)), HEIGHT - TOP - BOTTOM
    boxes = []
    for place, piece in enumerate(pieces):
        # The first reaches down to the ground behind the second: one on top of the other they would leave gaps.
        for kind, count in (("mark", piece.blocked if piece.marked else 0), ("evacuate", piece.evacuated)):
            if count:
                tall = high * count / top
                boxes.append(Box(kind, _r(LEFT + place * wide), _r(HEIGHT - BOTTOM - tall), _r(wide + 0.2), _r(tall)))
    values = sorted({0, top // 2, top} if top % 2 == 0 else {0, top})
    return Levels(
        boxes=boxes,
        lines=[(_r(HEIGHT - BOTTOM - high * value / top), value) for value in values],
        moments=_moments(pieces),
        most=most,
    )


def causes_chart(rows: Sequence[tuple[str, float, int]]) -> list[tuple[str, float, float]]:
    """Name, hours, and the length of the bar, of 1 for the longest."""
    longest = max((hours for _, hours, _ in rows), default=0) or 1
    return [(name, hours, _r(hours / longest, 4)) for name, hours, _ in rows]


def ceiling(number: int) -> int:
    """The next number that looks well on an axis: 1, 2, 5, 10, 20, …; at least 1."""
    size = 1
    while True:
        for nice in _NICE:
            if nice * size >= number:
                return nice * size
        size *= 10


def _moments(pieces: Sequence[Step]) -> list[tuple[float, str]]:
    """Where moments are written, and what: round ones, at most eight, none so near an end that it would be cut."""
    if not pieces:
        return []
    begin, end = pieces[0].begin, pieces[-1].end
    unit = next((own for own in _UNITS if (end - begin) // own <= _MARKS), _UNITS[-1])
    format_ = "%H:%M" if unit < _DAY else "%d %b"
    places = [(moment, LEFT + (WIDTH - LEFT) * (moment - begin) / (end - begin)) for moment in _round(begin, end, unit)]
    return [
        (_r(x), datetime.fromtimestamp(moment / 1000, UTC).strftime(format_).removeprefix("0" if unit >= _DAY else ""))
        for moment, x in places
        if LEFT + 15 <= x <= WIDTH - 20
    ]


def _round(begin: int, end: int, unit: int) -> range:
    return range(-(-begin // unit) * unit, end, unit)


def _r(value: float, digits: int = 1) -> float:
    return round(value, digits)
