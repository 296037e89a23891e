"""The page of one listener, and its state, which the page reloads after a change."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import APIRouter, Request, Response

from app.api.parameters import ResourceId
from app.listeners.replication import FORGET_AFTER_MS
from app.page.errors import HtmlRoute
from app.page.forms import int_param
from app.page.listener_model import ListenerState, listener_state
from app.page.render import render_page
from app.page.shared import shared_of
from app.page.visitor import ReaderVisitor, Visitor
from app.service import service_of
from blocklist.model.errors import NotFoundError

router = APIRouter(route_class=HtmlRoute, include_in_schema=False)


@router.get("/page/listeners/{id}")
async def get_listener(request: Request, visitor: ReaderVisitor, listener_id: ResourceId) -> Response:
    """The whole page; with status 404 if there is no such listener."""
    state = await _state(request, listener_id)
    status = HTTPStatus.NOT_FOUND if state is None else HTTPStatus.OK
    return _render(request, visitor, "listener.html.j2", listener_id, state, status)


@router.get("/page/listeners/{id}/state")
async def get_state(request: Request, visitor: ReaderVisitor, listener_id: ResourceId) -> Response:
    """The state only; with status 200 also if the listener has left, as the page does not show errors."""
    return _render(request, visitor, "_listener.html.j2", listener_id, await _state(request, listener_id))


async def _state(request: Request, listener_id: str) -> ListenerState | None:
    service = service_of(request)
    try:
        entry = await service.registry.get(listener_id)
    except NotFoundError:
        return None
    page = max(1, int_param(request, "page") or 1)
    return await listener_state(service, shared_of(request), entry, page)


def _render(
    request: Request,
    visitor: Visitor,
    template: str,
    listener_id: str,
    state: ListenerState | None,
    status: HTTPStatus = HTTPStatus.OK,
) -> Response:
    service = service_of(request)
    return render_page(
        request,
        template,
        visitor,
        status,
        id=listener_id,
        state=state,
        authenticated=service.authenticator.enabled,
        forget_ms=FORGET_AFTER_MS,
    )
