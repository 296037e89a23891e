"""History: how many nodes were blocked over time, for what, and the latest changes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fastapi import APIRouter, Request, Response

from app.components import Components, components_of
from app.page.block_intervals import Bucket, buckets, by_cause, intervals
from app.page.charts import WIDTH, BlockedChart, blocked_chart, causes_chart
from app.page.errors import HtmlRoute
from app.page.query_params import int_param
from app.page.render import render_page
from app.page.visitor import ReaderVisitor
from app.store.history_queries import ChangeFilter
from blocklist.model.changes import Change
from blocklist.model.node import BlockedNode

router = APIRouter(route_class=HtmlRoute, include_in_schema=False)

DAY: Final = 86_400_000
PERIODS: Final = {"1": ("24 hours", 24), "7": ("7 days", 7), "30": ("30 days", 30), "90": ("90 days", 30)}
"""Days, how they are said, and how many rows the table has."""
MAX_CHANGES: Final = 10_000
"""Changes that are read for the charts: about a quarter of a second of a thread's work."""
_BATCH: Final = 1000
_MAX_CAUSES: Final = 8
_BUCKETS: Final = 90
PAGE_SIZE: Final = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryCharts:
    """What the changes of some days come to. `rows` are the numbers of the chart of `levels`."""

    blocked: BlockedChart
    rows: Sequence[Bucket]
    causes: Sequence[tuple[str, float, int]]
    bars: Sequence[tuple[str, float, float]]
    hours: float

    @classmethod
    def of(
        cls, changes: Sequence[Change], current: Mapping[str, BlockedNode], begin: int, now: int, rows: int
    ) -> HistoryCharts:
        found = intervals(changes, current, begin, now)
        causes = by_cause(found, _MAX_CAUSES)
        return cls(
            blocked=blocked_chart(buckets(found, begin, now, _BUCKETS)),
            rows=buckets(found, begin, now, rows),
            causes=causes,
            bars=causes_chart(causes),
            hours=sum(hours for _, hours, _ in causes),
        )


@router.get("/page/history")
async def get_history(request: Request, visitor: ReaderVisitor) -> Response:
    """The charts of the last days, and the change log from its end."""
    service = components_of(request)
    days = request.query_params.get("days", "7")
    days = days if days in PERIODS else "7"
    latest = await service.store.latest_changes(PAGE_SIZE + 1, before=int_param(request, "before"))
    now = service.clock()
    start = now - int(days) * DAY
    changes, begin = await _changes_since(service, start)
    current = service.view.tracker.blocked(now)
    # In a thread, so that nobody waits for it: with as many changes as there may be it is a lot of counting.
    charts = await asyncio.to_thread(HistoryCharts.of, changes, current, begin, now, PERIODS[days][1])
    return render_page(
        request,
        "history.html.j2",
        visitor,
        days=days,
        width=WIDTH,
        periods={name: text for name, (text, _) in PERIODS.items()},
        begin=begin,
        complete=begin <= start,
        max_changes=MAX_CHANGES,
        charts=charts,
        changes=latest[:PAGE_SIZE],
        older=latest[PAGE_SIZE - 1].revision if len(latest) > PAGE_SIZE else None,
    )


async def _changes_since(service: Components, begin: int) -> tuple[list[Change], int]:
    """The changes from `begin` on, but no more than MOST, and from when on they are all there."""
    revision = service.view.tracker.revision
    since = first = max(0, revision - MAX_CHANGES)
    changes: list[Change] = []
    while since < revision:
        page = await service.store.page(since, _BATCH, ChangeFilter(begin=begin))
        changes += page.changes
        if len(page.changes) < _BATCH:
            break
        since = page.changes[-1].revision
    truncated = bool(changes) and first > 0 and changes[0].revision <= max(first, page.compacted) + 1
    return [change for change in changes if change.revision <= revision], changes[0].at if truncated else begin
