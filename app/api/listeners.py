"""Listeners: registration, leases, heartbeats; and where TaskManagers are."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Request, Response

from app.api.authorization import LISTENS, READS
from app.api.parameters import OwnId
from app.api.problems import documented
from app.api.responses import ONE_NODE, REPORT, JsonAnswer, read_body, stamp
from app.components import Service, service_of
from app.listeners import lag
from app.listeners.member import Member, Report
from blocklist.model.errors import NotFoundError
from blocklist.wire.listeners import (
    HeartbeatBody,
    LeaseBody,
    ListenerBody,
    ListenersBody,
    RegistrationBody,
    SecretBody,
    SessionBody,
    TaskManagerBody,
    listener_body,
)
from blocklist.wire.nodes import Json, dump_json, parse_json

router = APIRouter(tags=["Listeners"], dependencies=[READS])

_UNKNOWN = "There is no such listener: register again."
_FENCED = "Another session has taken over."


def _takes(model: str) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{model}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


@router.put(
    "/listeners/{id}",
    dependencies=[LISTENS],
    summary="Register a listener, or renew its lease",
    response_model=ListenerBody,
    responses={
        201: {"model": ListenerBody, "description": "Registered; `secret` is shown this once."},
        **documented(400, 409, 413, 503, _409=_FENCED),
    },
    openapi_extra=_takes("RegistrationBody"),
)
async def put_listener(request: Request, listener_id: OwnId) -> Response:
    """Register: 201. A known listener is renewed, or taken over by a new session, which begins with the whole list."""
    service = service_of(request)
    wanted = RegistrationBody.parse(parse_json(await read_body(request, ONE_NODE))).value(listener_id)
    if wanted.callback_url is not None:
        await service.allowed.pin(wanted.callback_url)
    member, new = await service.registry.register(wanted)
    body = _body(service, member) | ({"secret": member.secret.present} if new else {})
    return JsonAnswer(request, dump_json(body), HTTPStatus.CREATED if new else HTTPStatus.OK)


@router.post(
    "/listeners/{id}/heartbeat",
    dependencies=[LISTENS],
    summary="A sign of life",
    response_model=LeaseBody,
    responses=documented(400, 404, 409, 413, 503, _404=_UNKNOWN, _409=_FENCED),
    openapi_extra=_takes("HeartbeatBody"),
)
async def post_heartbeat(request: Request, listener_id: OwnId) -> Response:
    """Renew the lease; say up to which revision the list is applied, and where the listener's TaskManagers are."""
    service = service_of(request)
    said = HeartbeatBody.parse(parse_json(await read_body(request, REPORT)))
    report = Report.of(said)
    member = await service.registry.beat(listener_id, said.session_id, said.acked_revision, report)
    body = {"revision": service.view.tracker.revision, "leaseEnd": str(member.listener.lease_end)}
    return JsonAnswer(request, dump_json(body))


@router.post(
    "/listeners/{id}/secret",
    dependencies=[LISTENS],
    summary="A new secret",
    response_model=SecretBody,
    responses=documented(400, 404, 409, 413, 503, _404=_UNKNOWN, _409=_FENCED),
    openapi_extra=_takes("SessionBody"),
)
async def post_secret(request: Request, listener_id: OwnId) -> Response:
    """A new secret for pushes; for an hour they are signed with the old one as well."""
    session = SessionBody.parse(parse_json(await read_body(request, ONE_NODE))).session_id
    secret = await service_of(request).registry.rotate(listener_id, session)
    return JsonAnswer(request, dump_json({"secret": secret}))


@router.delete(
    "/listeners/{id}",
    dependencies=[LISTENS],
    summary="Leave",
    status_code=204,
    responses=documented(400, 404, 503, _404="There is no such listener."),
)
async def delete_listener(request: Request, listener_id: OwnId) -> Response:
    """Forget the listener, its cursor and its TaskManagers."""
    await service_of(request).registry.deregister(listener_id)
    response = Response(status_code=HTTPStatus.NO_CONTENT)
    response.raw_headers.extend(stamp(request))
    return response


@router.head("/listeners", include_in_schema=False)
@router.get("/listeners", summary="All listeners", response_model=ListenersBody)
async def get_listeners(request: Request) -> Response:
    """Who is registered, whether it lives, and how far it is behind."""
    service = service_of(request)
    return JsonAnswer(request, dump_json({"listeners": [_body(service, member) for member in service.roll]}))


@router.head("/listeners/{id}", include_in_schema=False)
@router.get(
    "/listeners/{id}",
    summary="One listener",
    response_model=ListenerBody,
    responses=documented(400, 404, 503, _404="There is no such listener."),
)
async def get_listener(request: Request, listener_id: OwnId) -> Response:
    """One listener, live or lapsed."""
    service = service_of(request)
    return JsonAnswer(request, dump_json(_body(service, await service.registry.find(listener_id))))


@router.head("/taskmanagers/{id}", include_in_schema=False)
@router.get(
    "/taskmanagers/{id}",
    summary="Where a TaskManager is",
    response_model=TaskManagerBody,
    responses=documented(400, 404, _404="No live listener has named it."),
)
async def get_task_manager(request: Request, task_manager_id: OwnId) -> Response:
    """The node of a TaskManager, and whether that is blocked. Who is unknown is a 404, never a silent no."""
    view = service_of(request).view
    node_id = view.task_managers.node_of(task_manager_id)
    if node_id is None:
        raise NotFoundError(f"No live listener has named a TaskManager {task_manager_id}.")
    node = view.get(node_id)
    body: Json = {"nodeId": node_id, "blocked": node is not None}
    return JsonAnswer(request, dump_json(body if node is None else body | {"blockedNode": view.body(node)}))


def _body(service: Service, member: Member) -> Json:
    listener, now = member.listener, service.clock()
    usable = service.usable.usable(member) if listener.live(now) else None
    revision, late = service.view.tracker.revision, lag_of(service, member)
    return listener_body(listener, now=now, revision=revision, lag=late, error=member.error, usable=usable)


def lag_of(service: Service, member: Member) -> int:
    """Milliseconds since there has been something that the listener has yet to apply."""
    return lag.lag_of(member, service.feed, service.clock())
