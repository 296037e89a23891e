"""The history page: blocked nodes over time, node-hours by cause, and the latest changes."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple

from fastapi import APIRouter, Request, Response

from app.api.parameters import PageRequest
from app.page.forms import HtmlRoute, int_param
from app.page.shared import ReaderVisitor, render_page, shared_of
from app.service import Service, service_of
from app.store.queries import ChangeFilter
from blocklist.model.changes import Change, ChangeType
from blocklist.model.node import BlockAction, BlockedNode

# How long nodes were blocked, calculated from the change log. Pure; times are Unix milliseconds.
#
# An interval is a time in which a block did not change: a merge ends one interval and begins the next.

HOUR: Final = 3_600_000
OTHERS: Final = "all others"
_EVIDENCE_CAUSE: Final = re.compile(r"^[0-9]+ applications? says? so$")
"""The beginning of causes of blocks by evidence."""
_MAX_NAME: Final = 60


@dataclass(frozen=True, slots=True)
class BlockInterval:
    """The block `node` was in force in [begin, end)."""

    begin: int
    end: int
    node: BlockedNode


@dataclass(frozen=True, slots=True)
class Bucket:
    """The maximum number of nodes blocked at once in [begin, end), by action, and the node-hours."""

    begin: int
    end: int
    marked: int
    evacuated: int
    hours: float

    @property
    def blocked(self) -> int:
        return self.marked + self.evacuated


def intervals(
    changes: Iterable[Change], current: Mapping[str, BlockedNode], begin: int, now: int
) -> list[BlockInterval]:
    """The intervals in [begin, now), from all changes since `begin` in order and the `current` list."""
    result: list[BlockInterval] = []
    open_since: dict[str, tuple[int, BlockedNode]] = {}
    seen = set()
    for change in changes:
        node_id = change.node.id
        before = open_since.pop(node_id, None)
        if before is None and node_id not in seen and change.type is not ChangeType.BLOCKED:
            # Already blocked at `begin`. Its block before this change is unknown; the one after it is close enough.
            before = max(begin, change.node.start), change.node
        if before is not None:
            result.append(BlockInterval(before[0], max(before[0], change.at), before[1]))
        seen.add(node_id)
        if not change.type.frees:
            open_since[node_id] = change.at, change.node
    for node_id, node in current.items():
        if node_id not in seen:
            open_since[node_id] = max(begin, node.start), node
    result += [BlockInterval(since, now, node) for node_id, (since, node) in open_since.items() if node_id in current]
    return [interval for interval in result if interval.end > interval.begin]


def buckets(intervals: Iterable[BlockInterval], begin: int, end: int, number: int) -> list[Bucket]:
    """[begin, end) divided into `number` buckets of equal width."""
    width = max(1, -(-(end - begin) // number))
    deltas: list[list[_Delta]] = [[] for _ in range(number + 1)]
    for interval in intervals:
        marked = int(interval.node.action is BlockAction.MARK_BLOCKED)
        for at, sign in ((interval.begin, 1), (interval.end, -1)):
            deltas[min((at - begin) // width, number)].append(_Delta(at, sign * marked, sign * (1 - marked)))
    result: list[Bucket] = []
    level = (0, 0)
    for place in range(number):
        bucket, level = _bucket(begin + place * width, width, deltas[place], level)
        result.append(bucket)
    return result


def by_cause(intervals: Iterable[BlockInterval], limit: int) -> list[tuple[str, float, int]]:
    """Causes with node-hours and number of nodes, most node-hours first; those beyond `limit` are summed as OTHERS.

    A block with several causes counts for the first one.
    """
    hours: defaultdict[str, float] = defaultdict(float)
    nodes: defaultdict[str, set[str]] = defaultdict(set)
    for interval in intervals:
        name = cause_group(interval.node.cause)
        hours[name] += (interval.end - interval.begin) / HOUR
        nodes[name].add(interval.node.id)
    ordered = sorted(hours, key=lambda name: (-hours[name], name))
    shown, rest = ordered[:limit], ordered[limit:]
    rows = [(name, hours[name], len(nodes[name])) for name in shown]
    if rest:
        together = set[str]().union(*(nodes[name] for name in rest))
        rows.append((OTHERS, sum(hours[name] for name in rest), len(together)))
    return rows


def cause_group(cause: str) -> str:
    """The group of a cause: its first part up to a colon, so that details do not make a group of their own."""
    first = next((part.strip() for part in cause.split(",") if part.strip()), cause)
    name = _EVIDENCE_CAUSE.sub("Evidence of applications", first.partition(": ")[0])
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}…"


class _Delta(NamedTuple):
    at: int
    marked: int
    evacuated: int


def _bucket(begin: int, width: int, deltas: Iterable[_Delta], level: tuple[int, int]) -> tuple[Bucket, tuple[int, int]]:
    """A bucket that begins with `level` (marked, evacuated) nodes, and the level at its end."""
    maximum, (marked, evacuated), clock, lost = level, level, begin, 0
    # At the same time, ends come first: a merge is not a second blocked node.
    for delta in sorted(deltas, key=lambda delta: (delta.at, delta.marked + delta.evacuated)):
        lost += (marked + evacuated) * (delta.at - clock)
        clock, marked, evacuated = delta.at, marked + delta.marked, evacuated + delta.evacuated
        maximum = max(maximum, (marked, evacuated), key=sum)
    lost += (marked + evacuated) * (begin + width - clock)
    return Bucket(begin, begin + width, *maximum, lost / HOUR), (marked, evacuated)


# Charts as coordinates, which the templates draw. Pure.

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
                x, tall = round(LEFT + index * width, 1), height * count / top
                boxes.append(Box(kind, x, round(HEIGHT - BOTTOM - tall, 1), round(width + 0.2, 1), round(tall, 1)))
    values = sorted({0, top // 2, top} if top % 2 == 0 else {0, top})
    return BlockedChart(
        boxes=boxes,
        gridlines=[(round(HEIGHT - BOTTOM - height * value / top, 1), value) for value in values],
        time_labels=time_labels(buckets[0].begin, buckets[-1].end) if buckets else [],
        maximum=maximum,
    )


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
    return [(round(x, 1), text) for x, text in labels if max(20, left + 15) <= x <= WIDTH - 20]


def _label(timestamp: int, unit: int) -> str:
    time = datetime.fromtimestamp(timestamp / 1000, UTC)
    return time.strftime("%H:%M") if unit < _DAY else time.strftime("%d %b").removeprefix("0")


router = APIRouter(route_class=HtmlRoute, include_in_schema=False)

PAGE_SIZE: Final = 50


@router.get("/page/history")
async def get_history(request: Request, visitor: ReaderVisitor) -> Response:
    """The charts of the last days, and the latest changes."""
    days = request.query_params.get("days", "7")
    days = days if days in PERIODS else "7"
    store = service_of(request).store
    latest = await store.latest_changes(PAGE_SIZE + 1, before=int_param(request, "after"))
    changes, older = PageRequest(PAGE_SIZE).cut(latest, lambda change: change.revision)
    return render_page(
        request,
        "history.html.j2",
        visitor,
        days=days,
        width=WIDTH,
        periods={name: text for name, (text, _) in PERIODS.items()},
        max_changes=MAX_CHANGES,
        max_age_seconds=MAX_AGE_MS // 1000,
        charts=await history_charts(request, days),
        changes=changes,
        older=older,
    )


# The charts of the history page. Each period is computed at most once in MAX_AGE_MS, whatever is requested.

PERIODS: Final = {"1": ("24 hours", 24), "7": ("7 days", 7), "30": ("30 days", 30), "90": ("90 days", 30)}
"""Number of days: label, and number of rows of the table."""
MAX_CHANGES: Final = 10_000
"""Maximum number of changes read for the charts; takes a thread about a quarter of a second."""
MAX_AGE_MS: Final = 30_000
"""With MAX_CHANGES in each of the four periods, the charts take at most 4 % of a core."""
_BATCH: Final = 1000
_MAX_CAUSES: Final = 8
_BUCKETS: Final = 90


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryCharts:
    """The charts of a period, as of `now`. `rows` is the table of the chart `blocked`.

    They begin at `begin`, which is later than the start of the period unless they are `complete`.
    """

    now: int
    begin: int
    complete: bool
    blocked: BlockedChart
    rows: Sequence[Bucket]
    causes: Sequence[tuple[str, float, int]]

    @property
    def hours(self) -> float:
        """Node-hours of all causes."""
        return sum(hours for _, hours, _ in self.causes)


async def history_charts(request: Request, days: str) -> HistoryCharts:
    """The charts of a period of PERIODS, at most MAX_AGE_MS old."""
    service = service_of(request)
    return await shared_of(request).get(("charts", days), lambda: _compute(service, days), lambda _: MAX_AGE_MS)


async def _compute(service: Service, days: str) -> HistoryCharts:
    now = service.clock()
    start = now - int(days) * _DAY
    changes, begin = await _changes_since(service, start)
    current = service.view.tracker.blocked(now)
    # In a thread, because with MAX_CHANGES this would block the event loop.
    return await asyncio.to_thread(_draw, changes, current, (start, begin, now), PERIODS[days][1])


async def _changes_since(service: Service, begin: int) -> tuple[list[Change], int]:
    """The changes since `begin`, at most the last MAX_CHANGES, and the time from which they are complete."""
    revision = service.view.tracker.revision
    since = first = max(0, revision - MAX_CHANGES)
    changes: list[Change] = []
    while since < revision:
        page = await service.store.changes_page(since, _BATCH, ChangeFilter(begin=begin))
        changes += page.changes
        if len(page.changes) < _BATCH:
            break
        since = page.changes[-1].revision
    truncated = bool(changes) and first > 0 and changes[0].revision <= max(first, page.compacted) + 1
    return [change for change in changes if change.revision <= revision], changes[0].at if truncated else begin


def _draw(
    changes: Sequence[Change], current: Mapping[str, BlockedNode], times: tuple[int, int, int], rows: int
) -> HistoryCharts:
    start, begin, now = times
    found = intervals(changes, current, begin, now)
    return HistoryCharts(
        now=now,
        begin=begin,
        complete=begin <= start,
        blocked=blocked_chart(buckets(found, begin, now, _BUCKETS)),
        rows=buckets(found, begin, now, rows),
        causes=by_cause(found, _MAX_CAUSES),
    )
