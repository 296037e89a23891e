"""History: how many nodes were blocked over time, for what, and the latest changes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fastapi import APIRouter, Request, Response

from app.components import Service, service_of
from app.page.block_intervals import Step, by_cause, spells, steps
from app.page.charts import WIDTH, Levels, causes_chart, levels_chart
from app.page.errors import HtmlRoute
from app.page.query_params import number_in
from app.page.render import page
from app.page.visitor import Reading
from app.store.history_queries import Wanted
from blocklist.model.changes import Change
from blocklist.model.node import BlockedNode

router = APIRouter(route_class=HtmlRoute, include_in_schema=False)

DAY: Final = 86_400_000
SPANS: Final = {"1": ("24 hours", 24), "7": ("7 days", 7), "30": ("30 days", 30), "90": ("90 days", 30)}
"""Days, how they are said, and how many rows the table has."""
MOST: Final = 10_000
"""Changes that are read for the charts: about a quarter of a second of a thread's work."""
_PAGE: Final = 1000
_CAUSES: Final = 8
_BARS: Final = 90
SHOWN: Final = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """What the changes of some days come to. `rows` are the numbers of the chart of `levels`."""

    levels: Levels
    rows: Sequence[Step]
    causes: Sequence[tuple[str, float, int]]
    bars: Sequence[tuple[str, float, float]]
    hours: float

    @classmethod
    def of(
        cls, changes: Sequence[Change], present: Mapping[str, BlockedNode], begin: int, now: int, rows: int
    ) -> Drawn:
        found = spells(changes, present, begin, now)
        causes = by_cause(found, _CAUSES)
        return cls(
            levels=levels_chart(steps(found, begin, now, _BARS)),
            rows=steps(found, begin, now, rows),
            causes=causes,
            bars=causes_chart(causes),
            hours=sum(hours for _, hours, _ in causes),
        )


@router.get("/page/history")
async def get_history(request: Request, visitor: Reading) -> Response:
    """The charts of the last days, and the change log from its end."""
    service = service_of(request)
    days = request.query_params.get("days", "7")
    days = days if days in SPANS else "7"
    latest = await service.store.latest(SHOWN + 1, before=number_in(request, "before"))
    now = service.clock()
    wanted = now - int(days) * DAY
    changes, begin = await _since(service, wanted)
    present = service.view.tracker.blocked(now)
    # In a thread, so that nobody waits for it: with as many changes as there may be it is a lot of counting.
    drawn = await asyncio.to_thread(Drawn.of, changes, present, begin, now, SPANS[days][1])
    return page(
        request,
        "history.html.j2",
        visitor,
        days=days,
        width=WIDTH,
        spans={own: text for own, (text, _) in SPANS.items()},
        begin=begin,
        whole=begin <= wanted,
        most=MOST,
        drawn=drawn,
        changes=latest[:SHOWN],
        older=latest[SHOWN - 1].revision if len(latest) > SHOWN else None,
    )


async def _since(service: Service, begin: int) -> tuple[list[Change], int]:
    """The changes from `begin` on, but no more than MOST, and from when on they are all there."""
    revision = service.view.tracker.revision
    since = first = max(0, revision - MOST)
    changes: list[Change] = []
    while since < revision:
        page = await service.store.page(since, _PAGE, Wanted(begin=begin))
        changes += page.changes
        if len(page.changes) < _PAGE:
            break
        since = page.changes[-1].revision
    cut = bool(changes) and first > 0 and changes[0].revision <= max(first, page.compacted) + 1
    return [own for own in changes if own.revision <= revision], changes[0].at if cut else begin
