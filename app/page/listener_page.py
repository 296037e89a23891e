"""The page of one listener: what it has applied and refused, and where its tasks run."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from fastapi import APIRouter, Request, Response

from app.api.parameters import ResourceId
from app.components import Components, components_of
from app.listeners.entry import ListenerEntry
from app.page.errors import HtmlRoute
from app.page.listener_routes import ListenerRow
from app.page.render import render_page
from app.page.visitor import ReaderVisitor, Visitor
from blocklist.model.node import BlockedNode
from blocklist.model.task_count import TaskCount

router = APIRouter(route_class=HtmlRoute, include_in_schema=False)

MAX_HOSTS: Final = 500
"""Maximum number of hosts on a page."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostRow:
    """A node on which a listener has TaskManagers; `tasks` are unknown where it does not report them."""

    node: str
    block: BlockedNode | None
    refused: str | None
    task_managers: int
    tasks: TaskCount


@router.get("/page/listeners/{id}")
async def get_listener(request: Request, visitor: ReaderVisitor, listener_id: ResourceId) -> Response:
    """The whole page; with status 404 if nobody has registered under this id."""
    return _render(request, visitor, listener_id, "listener.html.j2")


@router.get("/page/listeners/{id}/state")
async def get_state(request: Request, visitor: ReaderVisitor, listener_id: ResourceId) -> Response:
    """What changes, which the page reloads."""
    return _render(request, visitor, listener_id, "_listener.html.j2")


def _render(request: Request, visitor: Visitor, listener_id: str, template: str) -> Response:
    components = components_of(request)
    entry = components.listeners.directory.get(listener_id)
    if entry is None:
        # The part is replaced by one that says so.
        status = HTTPStatus.NOT_FOUND if template == "listener.html.j2" else HTTPStatus.OK
        return render_page(request, template, visitor, status, id=listener_id, listener=None)
    hosts = _hosts(components, entry)
    return render_page(
        request,
        template,
        visitor,
        id=listener_id,
        listener=ListenerRow.of(components, entry, components.listeners.usable_nodes.counter()),
        registration=entry.listener,
        reported_at=max(entry.reported_at.values(), default=None),
        renewed_at=entry.listener.lease_end - entry.listener.lease,
        refused=sorted(entry.refused.items())[:MAX_HOSTS],
        total_refused=len(entry.refused),
        reports_task_managers=entry.report.task_managers is not None,
        hosts=hosts[:MAX_HOSTS],
        total_hosts=len(hosts),
        tasks=TaskCount.of(entry.running_tasks.get(each) for each in entry.report.task_managers or ()),
    )


def _hosts(components: Components, entry: ListenerEntry) -> list[HostRow]:
    """Blocked hosts first, those before where tasks run or may run."""
    on_node: defaultdict[str, list[str]] = defaultdict(list)
    for task_manager, node in (entry.report.task_managers or {}).items():
        on_node[node].append(task_manager)
    rows = [
        HostRow(
            node=node,
            block=next(iter(components.engine.view.find(node)), None),
            refused=entry.refusal_of(node),
            task_managers=len(ids),
            tasks=TaskCount.of(map(entry.running_tasks.get, ids)),
        )
        for node, ids in on_node.items()
    ]
    return sorted(rows, key=lambda row: (row.block is None, not row.tasks.may_run, row.node))
