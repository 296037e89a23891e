"""The pictures of the report as coordinates, which the template draws. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import Final

from blocklist.detection.node_summary import FailureClass, Metric
from blocklist.detection.report_data import BINS, Spread, StageFailures, StageTimes

WIDTH: Final = 300
"""Width of a picture of a stage."""
LEFT: Final = 6
SPAN: Final = 1000
"""Width of a row of the timeline."""
BAR_HEIGHT: Final = 16
MIN_WIDTH: Final = 6.0
"""Minimum width of a bar in the timeline: shorter ones would not be seen."""
_SHOWN: Final = 38
"""The quantile up to which the axis reaches at least, of INTERVALS: 95 %. A few stragglers would squeeze all others."""
_STEPS: Final = (1, 2, 5, 10)
_MAX_TICKS: Final = 5
_UNITS: Final = ((1.0, 1000.0, "ms"), (1200.0, 1.0, "s"), (float("inf"), 1 / 60, "min"))
"""Up to how many seconds a unit is used, and how many of it are a second."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Strip:
    """One row of a picture: its text, lines for the tasks (an SVG path) and the x coordinate of the median.

    `beyond`: the slowest task, if it is beyond the axis.
    """

    text: str
    path: str
    median: float
    beyond: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """Ticks as x coordinates and texts, and the caption with the unit."""

    ticks: Sequence[tuple[float, str]]
    caption: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TimesPicture:
    """The task times of a node in a stage, above those of its peers; `summary` is for those who cannot see it."""

    own: Strip
    peers: Strip
    axis: Axis
    summary: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CountsPicture:
    """The failures of a node in a stage, above those of the worst of its peers: texts and lengths of bars."""

    own_text: str
    own: float
    peers_text: str
    peers: float
    axis: Axis
    summary: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A bar of the timeline: a rectangle with its CSS class and what it stands for."""

    kind: str
    x: float
    width: float
    title: str
    y: float = 0
    height: float = BAR_HEIGHT


def times_picture(stage: StageTimes, subject: Metric | FailureClass) -> TimesPicture:
    """Draw the quantiles of both groups on one axis, which begins at zero."""
    end = 1.08 * max(it for spread in (stage.own, stage.peers) for it in (spread.quantiles[_SHOWN], spread.median))
    factor, unit = next((factor, unit) for limit, factor, unit in _UNITS if end < limit)
    what, per = _TIMES[subject]
    unit += per

    def text(seconds: float) -> str:
        return f"{_short(seconds * factor)} {unit}"

    def strip(name: str, spread: Spread) -> Strip:
        slowest = spread.quantiles[-1]
        return Strip(
            text=f"{name}: {count_of(spread.tasks, 'task')}, median {text(spread.median)}",
            path="".join(f"M{_x(it, end)} 0v14" for it in dict.fromkeys(spread.quantiles) if it <= end),
            median=_x(spread.median, end),
            beyond=f"slowest {text(slowest)}" if slowest > end else None,
        )

    own, peers = strip("this host", stage.own), strip(count_of(stage.peers.hosts, "peer"), stage.peers)
    ranges = [f"{text(it.quantiles[0])} to {text(it.quantiles[-1])}" for it in (stage.own, stage.peers)]
    return TimesPicture(
        own=own,
        peers=peers,
        axis=Axis(ticks=_ticks(end, factor), caption=f"{what}, in {unit}"),
        summary=f"{what}. {own.text}, {ranges[0]}; {peers.text}, {ranges[1]}.",
    )


_TIMES: Final = {
    Metric.COMPUTE: ("task time without GC and fetch wait", ""),
    Metric.NETWORK: ("time of a task to fetch shuffle blocks", "/GB"),
    Metric.DISK: ("time of a task to write shuffle blocks", "/GB"),
    FailureClass.SLOW_SERVER: ("time that a task waited for shuffle blocks", ""),
}
"""What the pictures show, and what the unit is of."""


def counts_picture(stage: StageFailures, failure: FailureClass, most: int) -> CountsPicture:
    """Draw the failures of both on an axis that ends at `most`, as in all stages of the finding."""
    end, what = 1.08 * max(1, most), _COUNTED.get(failure, "failed tasks on one host")
    of_own, of_peers = "", ""
    if failure not in _COUNTED:
        of_own = f" of its {stage.own_tasks:,}"
        of_peers = f" of {stage.peer_tasks:,}"
    own_text = f"this host: {stage.own:,}{of_own} tasks" if of_own else f"this host: {count_of(stage.own, 'task')}"
    peers_text = f"worst of {count_of(stage.peer_hosts, 'peer')}: {stage.peer_max:,}"
    return CountsPicture(
        own_text=own_text,
        own=_x(stage.own, end) - LEFT,
        peers_text=peers_text,
        peers=_x(stage.peer_max, end) - LEFT,
        axis=Axis(ticks=_ticks(end, 1, whole=True), caption=what),
        summary=f"{what}. {own_text}; {peers_text}, {stage.others:,}{of_peers} on all of them.",
    )


_COUNTED: Final = {FailureClass.FETCH: "failed tasks that fetched from one host"}
"""What is counted, if the tasks ran elsewhere."""


def bar(kind: str, begin: int, end: int, span: tuple[int, int], title: str) -> Bar | None:
    """A bar from `begin` to `end` in a span of time, cut at its edges; None if it is outside."""
    low, high = max(begin, span[0]), min(end, span[1])
    if low > high:
        return None
    scale = SPAN / max(1, span[1] - span[0])
    width = max(MIN_WIDTH, (high - low) * scale)
    return Bar(
        kind=kind,
        x=round(min((low - span[0]) * scale, SPAN - width), 1),
        width=round(width, 1),
        title=title,
    )


def failure_bars(counts: Iterable[tuple[int, int]], highest: int) -> list[Bar]:
    """Numbers of failures by bin as bars, of which one of `highest` failures has the full height."""
    wide = SPAN / BINS
    return [
        Bar(
            kind="failed",
            x=round(column * wide, 1),
            width=round(wide, 1),
            title=count_of(count, "task"),
            y=round(BAR_HEIGHT - tall, 1),
            height=round(tall, 1),
        )
        for column, count in counts
        if count and (tall := max(2.0, BAR_HEIGHT * count / highest))
    ]


def _ticks(end: float, factor: float, *, whole: bool = False) -> list[tuple[float, str]]:
    """Round numbers from zero on."""
    size = 10 ** floor(log10(end * factor))
    steps = (it * size / 10 for it in (*_STEPS, 20, 50, 100))
    step = next(it for it in steps if end * factor / it < _MAX_TICKS and (it >= 1 or not whole))
    return [
        (_x(number * step / factor, end), _short(number * step)) for number in range(floor(end * factor / step) + 1)
    ]


def _x(value: float, end: float) -> float:
    return round(LEFT + (WIDTH - 2 * LEFT) * value / end, 1)


def _short(number: float) -> str:
    """Three significant digits, without needless zeros."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def count_of(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
