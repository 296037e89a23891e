"""A node's page: how it is, who has applied that, and what happened to it."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from fastapi import APIRouter, Request, Response

from app.api.applied import ListenerProgress, applied_by_live_listeners, task_managers_on
from app.api.parameters import NodeId
from app.components import Components, components_of
from app.page.errors import HtmlRoute
from app.page.query_params import int_param
from app.page.render import render_page
from app.page.visitor import ReaderVisitor
from blocklist.model.changes import Change

router = APIRouter(route_class=HtmlRoute, include_in_schema=False)

PAGE_SIZE: Final = 50
"""Changes on a page."""


@router.get("/page/nodes/{node_id}")
async def get_node(request: Request, visitor: ReaderVisitor, node_id: NodeId) -> Response:
    """All of it; 404 if the log knows nothing of the node."""
    service = components_of(request)
    before = int_param(request, "before")
    changes = await service.store.latest_changes(PAGE_SIZE + 1, node_id=node_id, before=before)
    last = changes[0] if changes and before is None else await service.store.last_change(node_id)
    node = service.view.get(node_id)
    return render_page(
        request,
        "node.html.j2",
        visitor,
        HTTPStatus.OK if last is not None or node is not None else HTTPStatus.NOT_FOUND,
        id=node_id,
        node=node,
        by=service.last_changes.created_by(node_id),
        changes=changes[:PAGE_SIZE],
        older=changes[PAGE_SIZE - 1].revision if len(changes) > PAGE_SIZE else None,
        last=last,
        listeners=[] if last is None else _listeners(service, last),
        task_managers=task_managers_on(service, node_id),
    )


def _listeners(service: Components, change: Change) -> list[ListenerProgress]:
    """The live listeners: first those of whom something is awaited."""
    progress = applied_by_live_listeners(service, change)
    return sorted(progress, key=lambda listener: (listener.applied, not listener.refused, not listener.task_managers))
