"""The map of all hosts: for people, for a wall display, and as tables; and its states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fastapi import APIRouter, Request, Response

from app.page.block_intervals import cause_group
from app.page.errors import HtmlRoute
from app.page.forms import int_param
from app.page.map_cache import Variant, host_map, rows_html, table_url
from app.page.map_rows import BY_NAME
from app.page.map_states import LEGENDS, MapState
from app.page.render import render_page
from app.page.visitor import ReaderVisitor, Visitor
from app.service import Service, service_of
from blocklist.model.changes import Change
from blocklist.model.errors import NotFoundError, UnavailableError
from blocklist.wire.body import dump_json

router = APIRouter(route_class=HtmlRoute, include_in_schema=False)

TABLE_SIZE: Final = 200
"""Hosts of a page of a table."""


@router.get("/page/map")
async def get_map(request: Request, visitor: ReaderVisitor) -> Response:
    """The whole page; with `?wall` for a wall display: large, without controls, with the last changes."""
    return await _render(request, visitor, "wall.html.j2" if _is_wall(request) else "map.html.j2")


@router.get("/page/map/rows")
async def get_rows(request: Request, visitor: ReaderVisitor) -> Response:
    """The rows only, which the page loads if hosts have joined or gone."""
    return await _render(request, visitor, "_map.html.j2")


@router.get("/page/map/states")
async def get_states(request: Request, visitor: ReaderVisitor) -> Response:  # noqa: ARG001 - requires the role
    """The states of all hosts, in the order of the `layout`, as JSON; the page loads all rows if it has another layout.

    `behind` is whether changes of the list are not in it yet, as it is not computed for each.
    """
    found = await host_map(request)
    body = {
        "layout": found.layout,
        "states": found.states,
        "counts": {state.value: count for state, count in found.counts},
        "settled": found.settled,
        "behind": found.hosts.revision < service_of(request).view.tracker.revision,
    }
    return Response(dump_json(body), headers={"Cache-Control": "no-store"}, media_type="application/json")


@router.get("/page/map/timeline")
async def get_timeline(request: Request, visitor: ReaderVisitor) -> Response:
    """The last changes only."""
    return render_page(request, "_timeline.html.j2", visitor, lines=await timeline(service_of(request)))


@router.get("/page/map/hosts")
async def get_hosts(request: Request, visitor: ReaderVisitor) -> Response:
    """A group of hosts as a table: for screen readers, and without scripts."""
    found = await host_map(request)
    key = request.query_params.get("group", "")
    rows = [row for row in found.hosts.rows if row.group.key == key]
    if not rows:
        raise NotFoundError("No host that is known belongs to this group. Hosts may have left: open the map again.")
    hosts = [host for row in rows for host in row.hosts]
    pages = -(-len(hosts) // TABLE_SIZE)
    page = min(max(1, int_param(request, "page") or 1), pages)
    return render_page(
        request,
        "hosts.html.j2",
        visitor,
        group=rows[0].group,
        by_name=BY_NAME,
        url=table_url(rows[0]),
        legends=LEGENDS,
        hosts=[
            (host, found.hosts.state(host), found.hosts.blocked.get(host))
            for host in hosts[(page - 1) * TABLE_SIZE : page * TABLE_SIZE]
        ],
        total=len(hosts),
        page=page,
        pages=pages,
        free={MapState.FREE, MapState.NOT_READY},
    )


async def _render(request: Request, visitor: Visitor, template: str) -> Response:
    wall = _is_wall(request)
    variant = Variant.WALL if wall else Variant.OPERATOR if visitor.may_change else Variant.READER
    found = await host_map(request)
    return render_page(
        request,
        template,
        visitor,
        map=found,
        rows=rows_html(request, found, variant),
        table_url=table_url,
        legends=LEGENDS,
        wall=wall,
        path=variant.value,
        lines=await timeline(service_of(request)) if wall else None,
    )


def _is_wall(request: Request) -> bool:
    return "wall" in request.query_params


# The last changes for the wall display, those that belong together in one line.

MAX_CHANGES: Final = 300
"""Number of changes that are read: those of a storm become a few lines."""
MAX_LINES: Final = 40
NAMED: Final = 2
"""Number of nodes that a line names."""
_GAP_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class TimelineLine:
    """Changes of one kind by one author for one cause, each at most a minute after the one before, the newest first."""

    changes: Sequence[Change]

    @property
    def last(self) -> Change:
        return self.changes[0]

    @property
    def named(self) -> Sequence[str]:
        """The ids of its first nodes; all of them if only one more is left."""
        names = [change.node.id for change in reversed(self.changes)]
        return names if len(names) <= NAMED + 1 else names[:NAMED]

    @property
    def more(self) -> int:
        return len(self.changes) - len(self.named)


async def timeline(service: Service) -> list[TimelineLine] | None:
    """The lines, the newest first; None while the change log cannot be read."""
    feed = service.feed
    try:
        changes = await feed.changes(max(0, feed.revision - MAX_CHANGES), feed.revision)
        if changes is None:
            changes = list(reversed(await service.store.latest_changes(MAX_CHANGES)))
    except UnavailableError:
        return None
    return timeline_lines(list(reversed(changes)))


def timeline_lines(changes: Sequence[Change]) -> list[TimelineLine]:
    """The lines of changes, the newest first. Two kinds may alternate, as in a storm of alerts of both actions."""
    lines: list[list[Change]] = []
    latest: dict[tuple[object, ...], list[Change]] = {}
    for change in changes:
        line = latest.get(_kind(change))
        if line is None or line[-1].at - change.at > _GAP_MS:
            line = latest[_kind(change)] = []
            lines.append(line)
        line.append(change)
    return [TimelineLine(line) for line in lines[:MAX_LINES]]


def _kind(change: Change) -> tuple[object, ...]:
    return change.type, change.created_by, cause_group(change.node.cause), change.node.short_action
