"""The page of a node: its block and claims, the jobs that run there, what is reported about it, and its changes."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from fastapi import APIRouter, Request, Response

from app.api.applied import ListenerProgress, applied_by_live_listeners
from app.api.parameters import NodeId
from app.page.errors import HtmlRoute
from app.page.evidence_claims import latest_evidence_claims
from app.page.excerpt import Excerpt
from app.page.forms import int_param
from app.page.node_history import STRIP_DAYS, NodeHistory, node_history
from app.page.node_model import node_state
from app.page.render import render_page
from app.page.visitor import ReaderVisitor, Visitor
from app.service import Service, service_of
from blocklist.model.changes import Change
from blocklist.model.errors import UnavailableError
from blocklist.model.evidence import TTL_MS
from blocklist.model.node import BlockedNode
from blocklist.model.node_lookup import claims_on

router = APIRouter(route_class=HtmlRoute, include_in_schema=False)

STATE_TEMPLATE: Final = "_node.html.j2"
"""The page without its frame."""


@router.get("/page/nodes/{node_id}")
async def get_node(request: Request, visitor: ReaderVisitor, node_id: NodeId) -> Response:
    """The whole page; with status 404 if nobody reports the node, it is not blocked and has no change in the log."""
    return await _render(request, visitor, "node.html.j2", node_id)


@router.get("/page/nodes/{node_id}/state")
async def get_state(request: Request, visitor: ReaderVisitor, node_id: NodeId) -> Response:
    """All but the frame of the page, which the page reloads after a change."""
    return await _render(request, visitor, STATE_TEMPLATE, node_id)


async def _render(request: Request, visitor: Visitor, template: str, asked: str) -> Response:
    service, before = service_of(request), int_param(request, "before")
    settings, now = service.settings, service.clock()
    node = service.view.get(asked)
    node_id = asked if node is None else node.id
    history = await _history(service, node_id, node, before)
    last = None if history is None else history.last
    state = node_state(service, asked, node_id, node)
    listeners = [] if last is None else _progress(service, last)
    claims = () if node is None else claims_on(service.view.tracker, node, now)
    changes = history.changes if history is not None and before is None else ()
    known = node is not None or history is None or last is not None or state.is_reported
    return render_page(
        request,
        template,
        visitor,
        HTTPStatus.OK if known or template == STATE_TEMPLATE else HTTPStatus.NOT_FOUND,
        id=node_id,
        asked=asked,
        before=before,
        known=known,
        node=node,
        by=service.last_changes.created_by(node_id),
        claims=claims,
        evidence_claims=latest_evidence_claims(changes, claims),
        dismissals=service.dismissals.of_node(node_id),
        probation_end=service.automatic_blocks.probation_end(service.view.tracker, node_id, now),
        history=history,
        strip_days=STRIP_DAYS,
        state=state,
        listeners=Excerpt.of(listeners),
        applied=sum(listener.applied for listener in listeners),
        settled=state.settled and not any(listener.pending for listener in listeners),
        required=settings.evidence_applications,
        window=TTL_MS,
    )


async def _history(service: Service, node_id: str, node: BlockedNode | None, before: int | None) -> NodeHistory | None:
    """None while the change log cannot be read: all else is in memory, and needed then."""
    try:
        return await node_history(service, node_id, node, before)
    except UnavailableError:
        return None


def _progress(service: Service, change: Change) -> list[ListenerProgress]:
    """The live listeners; first those that have not applied the change."""
    progress = applied_by_live_listeners(service, change)
    return sorted(progress, key=lambda listener: (listener.applied, not listener.refused, not listener.task_managers))
