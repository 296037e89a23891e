"""The charts of the history page. Each period is computed at most once in MAX_AGE_MS, whatever is requested."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fastapi import Request

from app.page.block_intervals import Bucket, buckets, by_cause, intervals
from app.page.charts import BlockedChart, blocked_chart, causes_chart
from app.page.shared import shared_of
from app.service import Service, service_of
from app.store.history_queries import ChangeFilter
from blocklist.model.changes import Change
from blocklist.model.node import BlockedNode

DAY: Final = 86_400_000
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
    bars: Sequence[tuple[str, float, float]]

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
    start = now - int(days) * DAY
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
    causes = by_cause(found, _MAX_CAUSES)
    return HistoryCharts(
        now=now,
        begin=begin,
        complete=begin <= start,
        blocked=blocked_chart(buckets(found, begin, now, _BUCKETS)),
        rows=buckets(found, begin, now, rows),
        causes=causes,
        bars=causes_chart(causes),
    )
