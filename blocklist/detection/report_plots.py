"""The pictures of the report as coordinates, which the template draws. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log, log10
from typing import Final, Generic, TypeVar

from blocklist.detection.heuristics import NodeVerdict
from blocklist.detection.node_summary import CHARGED_TO_NODE, FailureClass, HostInApplication, Metric
from blocklist.detection.proposals import ActualBlock, actual_blocks, differed, manual_unblocks
from blocklist.detection.slowness import BY_METRIC, MIN_EFFECT
from blocklist.model.changes import Change

# The numbers behind the pictures of the report. Pure.

MAX_STAGES: Final = 12
"""Maximum number of stages in the pictures of a finding: those in which the node spent most time, or failed most."""
INTERVALS: Final = 40
"""Number of intervals between the quantiles of the times of a group of tasks."""
BINS: Final = 60
"""Number of bins of failures over time."""
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """The times of a group of tasks: their median, and quantiles from the smallest to the largest."""

    tasks: int
    hosts: int
    median: float
    quantiles: Sequence[float]


@dataclass(frozen=True, kw_only=True, slots=True)
class StageTimes:
    """A stage in which a node was compared with its peers.

    The times are seconds; seconds per GB by the metrics of network and disk. `slowdown` is the factor that the verdict
    counts: it divides out larger tasks. For a slow server, the times are fetch wait, and the factor that of its peers.
    """

    app: str
    stage: int
    attempt: int
    last: int
    slowdown: float
    slow: bool
    own: Spread
    peers: Spread


@dataclass(frozen=True, kw_only=True, slots=True)
class StageFailures:
    """Failures in a stage: `own` are charged to the node, `others` to its peers, at most `peer_max` to one of them.

    `own_tasks` and `peer_tasks` are all that ended there, `peer_hosts` the number of peers.
    """

    app: str
    stage: int
    attempt: int
    last: int
    own: int
    own_tasks: int
    others: int
    peer_max: int
    peer_tasks: int
    peer_hosts: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Stages(Generic[T]):
    """The stages of a finding that are shown, in the order of time; in `total` there are more, `slow` of them slow."""

    shown: Sequence[T]
    total: int
    slow: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureBin:
    """Failures in one of BINS parts of a span of time: charged to a node, to all others, and to the worst of these."""

    column: int
    own: int
    others: int
    peer_max: int


FindingKey = tuple[str, str]
"""The host and the subject of a finding."""
Runs = Mapping[str, Sequence[HostInApplication]]
"""What applications show about a host, in the order of time."""
Spans = Mapping[str, tuple[int, int]]
"""From when until when (Unix ms) a host is looked at."""


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
    Metric.START: ("time of a task to fetch and read the code of its stage", ""),
    FailureClass.SLOW_SERVER: ("time that a task waited for shuffle blocks", ""),
}
"""What the pictures show, and what the unit is of."""


def counts_picture(stage: StageFailures, failure: Metric | FailureClass, most: int) -> CountsPicture:
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


_COUNTED: Final[Mapping[Metric | FailureClass, str]] = {FailureClass.FETCH: "failed tasks that fetched from one host"}
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


# What happened on a node in the order of time: applications, blocks, manual unblocks and failures. Pure.

MAX_RUNS: Final = 30
"""Maximum number of applications in a timeline: the latest."""
MAX_BLOCKS: Final = 20
"""Maximum number of blocks and of unblocks that are listed: the latest."""

Span = tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockHistory:
    """The blocks of a node at the service, and the changes with which somebody unblocked it by hand."""

    blocks: Sequence[ActualBlock]
    unblocks: Sequence[Change]

    @classmethod
    def of(cls, changes: Sequence[Change]) -> BlockHistory:
        return cls(blocks=actual_blocks(changes)[-MAX_BLOCKS:], unblocks=list(manual_unblocks(changes))[-MAX_BLOCKS:])


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRow:
    """An application on the node: what it shows, and its bar. `lost_ms`: None if the verdict does not charge it."""

    run: HostInApplication
    found: str
    bar: Bar | None
    lost_ms: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """Rows with bars in one span of time (Unix ms). `history`: None if it is not known.

    `earlier` applications are not shown. `unblock_bars` mark manual unblocks.
    """

    span: Span
    history: BlockHistory | None
    block_bars: Sequence[Bar]
    unblock_bars: Sequence[Bar]
    own_failures: Sequence[Bar]
    peer_failures: Sequence[Bar]
    own_failed: int
    others_failed: int
    runs: Sequence[RunRow]
    earlier: int


def span_of(runs: Sequence[HostInApplication], history: BlockHistory | None) -> Span:
    """From the first application that is shown to the end of the last one.

    It is longer by up to half of that in each direction if there were blocks or unblocks.
    """
    shown = runs[-MAX_RUNS:]
    begin, end = min(it.first for it in shown), max(it.last for it in shown)
    half = max(1, (end - begin) // 2)
    blocks, unblocks = ([], []) if history is None else (history.blocks, history.unblocks)
    times = [*(time for it in blocks for time in (it.start, it.end)), *(it.at for it in unblocks)]
    return max(begin - half, min([begin, *times])), min(end + half, max([end, *times]))


def timeline(
    verdict: NodeVerdict,
    runs: Sequence[HostInApplication],
    history: BlockHistory | None,
    failures: Sequence[FailureBin],
    since: int,
    span: Span,
) -> Timeline:
    """The timeline of a node; applications that ended before `since` are no evidence any more."""
    blocks, unblocks = ([], []) if history is None else (history.blocks, history.unblocks)
    lost = {it.app: it.lost_ms for it in verdict.hurt}
    highest = max((max(it.own, it.peer_max) for it in failures), default=1)
    shown = runs[-MAX_RUNS:]
    return Timeline(
        span=span,
        history=history,
        block_bars=_present(bar("blocked", it.start, it.end, span, ", ".join(it.owners)) for it in blocks),
        unblock_bars=_present(bar("unblocked", it.at, it.at, span, "unblocked by hand") for it in unblocks),
        own_failures=failure_bars(((it.column, it.own) for it in failures), highest),
        peer_failures=failure_bars(((it.column, it.peer_max) for it in failures), highest),
        own_failed=sum(it.own for it in failures),
        others_failed=sum(it.others for it in failures),
        runs=[_run_row(it, lost, span, since) for it in shown],
        earlier=len(runs) - len(shown),
    )


def _run_row(run: HostInApplication, lost: Mapping[str, int], span: Span, since: int) -> RunRow:
    known = bool(run.comparisons or run.failures)
    kind = "differed" if differed(run) else "same" if known else "unknown"
    ignored = "; before the node was unblocked by hand, so it does not count" if run.last < since else ""
    found = f"{what_it_shows(run)}{ignored}"
    return RunRow(run=run, found=found, bar=bar(kind, run.first, run.last, span, found), lost_ms=lost.get(run.app))


def what_it_shows(run: HostInApplication) -> str:
    """What an application shows about the node, in one sentence."""
    slow = [
        f"{it.slowdown:.1f}x slower{BY_METRIC[it.metric]} in {it.slow_stages} of {count_of(it.stages, 'stage')}"
        for it in run.comparisons
        if log(it.slowdown) >= MIN_EFFECT and it.slow_stages
    ]
    failed = [
        f"{it.failure}: {count_of(it.tasks, 'task')} in {count_of(it.stages, 'stage')}"
        for it in run.failures
        if it.failure in CHARGED_TO_NODE
    ]
    if slow or failed:
        return "; ".join([*slow, *failed])
    return "as good as its peers" if run.comparisons else "not compared: too few tasks or hosts"


def _present(bars: Iterable[Bar | None]) -> list[Bar]:
    return [it for it in bars if it is not None]
