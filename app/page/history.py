"""The history page: blocked nodes over time, node-hours by cause, and the latest changes."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response

from app.page.charts import WIDTH
from app.page.errors import HtmlRoute
from app.page.forms import int_param
from app.page.history_charts import MAX_AGE_MS, MAX_CHANGES, PERIODS, history_charts
from app.page.render import render_page
from app.page.visitor import ReaderVisitor
from app.service import service_of

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
