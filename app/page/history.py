"""The history page: blocked nodes over time, node-hours by cause, and the latest changes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fastapi import APIRouter, Request, Response

from app.page.block_intervals import Bucket, buckets, by_cause, intervals
from app.page.charts import WIDTH, BlockedChart, blocked_chart, causes_chart
from app.page.errors import HtmlRoute
from app.page.forms import int_param
from app.page.render import render_page
from app.page.shared import shared_of
from app.page.visitor import ReaderVisitor
from app.service import Service, service_of
from app.store.history_queries import ChangeFilter
from blocklist.model.changes import Change
from blocklist.model.node import BlockedNode

router = APIRouter(route_class=HtmlRoute, include_in_schema=False)

PAGE_SIZE: Final = 50


@router.get("/page/history")
async def get_history(request: Request, visitor: ReaderVisitor) -> Response:
    """The charts of the last days, and the latest changes."""
    days = request.query_params.get("days", "7")
    days = days if days in PERIODS else "7"
    store = service_of(request).store
    latest = await store.latest_changes(PAGE_SIZE + 1, before=int_param(request, "before"))
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
        changes=latest[:PAGE_SIZE],
        older=latest[PAGE_SIZE - 1].revision if len(latest) > PAGE_SIZE else None,
    )


# The charts of the history page. Each period is computed at most once in MAX_AGE_MS, whatever is requested.

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
