"""The history page: blocked nodes over time, node-hours by cause, and the latest changes."""

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
from app.page.forms import int_param
from app.page.render import render_page
from app.page.visitor import ReaderVisitor
from app.store.history_queries import ChangeFilter
from blocklist.model.changes import Change
from blocklist.model.node import BlockedNode

router = APIRouter(route_class=HtmlRoute, include_in_schema=False)

DAY: Final = 86_400_000
PERIODS: Final = {"1": ("24 hours", 24), "7": ("7 days", 7), "30": ("30 days", 30), "90": ("90 days", 30)}
"""Number of days: label, and number of rows of the table."""
MAX_CHANGES: Final = 10_000
"""Maximum number of changes read for the charts; takes a thread about a quarter of a second."""
_BATCH: Final = 1000
_MAX_CAUSES: Final = 8
_BUCKETS: Final = 90
PAGE_SIZE: Final = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryCharts:
    """The charts of a period. `rows` is the table of the chart `blocked`."""

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
    """The charts of the last days, and the latest changes."""
    components = components_of(request)
    days = request.query_params.get("days", "7")
    days = days if days in PERIODS else "7"
    latest = await components.engine.store.latest_changes(PAGE_SIZE + 1, before=int_param(request, "before"))
    now = components.clock()
    start = now - int(days) * DAY
    changes, begin = await _changes_since(components, start)
    current = components.engine.view.tracker.blocked(now)
    # In a thread, because with MAX_CHANGES this would block the event loop.
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


async def _changes_since(components: Components, begin: int) -> tuple[list[Change], int]:
    """The changes since `begin`, at most the last MAX_CHANGES, and the time from which they are complete."""
    revision = components.engine.view.tracker.revision
    since = first = max(0, revision - MAX_CHANGES)
    changes: list[Change] = []
    while since < revision:
        page = await components.engine.store.changes_page(since, _BATCH, ChangeFilter(begin=begin))
        changes += page.changes
        if len(page.changes) < _BATCH:
            break
        since = page.changes[-1].revision
    truncated = bool(changes) and first > 0 and changes[0].revision <= max(first, page.compacted) + 1
    return [change for change in changes if change.revision <= revision], changes[0].at if truncated else begin
