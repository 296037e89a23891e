"""A node's page: how it is, who has applied that, and what happened to it."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from fastapi import APIRouter, Request, Response

from app.api.applied import Applied, applied_by_live, there_now
from app.api.parameters import NodeId
from app.components import Service, service_of
from app.page.errors import HtmlRoute
from app.page.query_params import number_in
from app.page.render import page
from app.page.visitor import Reading
from blocklist.model.changes import Change

router = APIRouter(route_class=HtmlRoute, include_in_schema=False)

SHOWN: Final = 50
"""Changes on a page."""


@router.get("/page/nodes/{node_id}")
async def get_node(request: Request, visitor: Reading, node_id: NodeId) -> Response:
    """All of it; 404 if the log knows nothing of the node."""
    service = service_of(request)
    number = number_in(request, "before")
    changes = await service.store.latest(SHOWN + 1, node_id=node_id, before=number)
    last = changes[0] if changes and number is None else await service.store.last_change(node_id)
    node = service.view.get(node_id)
    return page(
        request,
        "node.html.j2",
        visitor,
        HTTPStatus.OK if last is not None or node is not None else HTTPStatus.NOT_FOUND,
        id=node_id,
        node=node,
        by=service.origins.created_by(node_id),
        changes=changes[:SHOWN],
        older=changes[SHOWN - 1].revision if len(changes) > SHOWN else None,
        last=last,
        listeners=[] if last is None else _applied(service, last),
        there=there_now(service, node_id),
    )


def _applied(service: Service, change: Change) -> list[Applied]:
    """The live listeners: first those of whom something is awaited."""
    found = applied_by_live(service, change)
    return sorted(found, key=lambda own: (own.applied, not own.refused, not own.task_managers))
