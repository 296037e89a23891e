"""Listeners: registration, leases, heartbeats; and where TaskManagers are."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Request, Response

from app.api.authorization import REQUIRE_LISTENER, REQUIRE_READER
from app.api.parameters import ResourceId
from app.api.problems import problem_responses
from app.api.responses import MAX_NODE_BODY, MAX_REPORT_BODY, JsonResponse, read_body, revision_headers
from app.components import Components, components_of
from app.listeners import lag
from app.listeners.entry import ListenerEntry, Report
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

router = APIRouter(tags=["Listeners"], dependencies=[REQUIRE_READER])

_NOT_REGISTERED = "There is no such listener: register again."
_FENCED = "Another session has taken over."


def _request_body(model: str) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{model}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


@router.put(
    "/listeners/{id}",
    dependencies=[REQUIRE_LISTENER],
    summary="Register a listener, or renew its lease",
    response_model=ListenerBody,
    responses={
        201: {"model": ListenerBody, "description": "Registered; `secret` is shown this once."},
        **problem_responses(400, 409, 413, 503, _409=_FENCED),
    },
    openapi_extra=_request_body("RegistrationBody"),
)
async def put_listener(request: Request, listener_id: ResourceId) -> Response:
    """Register: 201. A known listener is renewed, or taken over by a new session, which begins with the whole list."""
    service = components_of(request)
    registration = RegistrationBody.parse(parse_json(await read_body(request, MAX_NODE_BODY))).value(listener_id)
    if registration.callback_url is not None:
        await service.callback_policy.resolve(registration.callback_url)
    member, new = await service.registry.register(registration)
    body = _body(service, member) | ({"secret": member.secret.current} if new else {})
    return JsonResponse(request, dump_json(body), HTTPStatus.CREATED if new else HTTPStatus.OK)


@router.post(
    "/listeners/{id}/heartbeat",
    dependencies=[REQUIRE_LISTENER],
    summary="A sign of life",
    response_model=LeaseBody,
    responses=problem_responses(400, 404, 409, 413, 503, _404=_NOT_REGISTERED, _409=_FENCED),
    openapi_extra=_request_body("HeartbeatBody"),
)
async def post_heartbeat(request: Request, listener_id: ResourceId) -> Response:
    """Renew the lease; say up to which revision the list is applied, and where the listener's TaskManagers are."""
    service = components_of(request)
    heartbeat = HeartbeatBody.parse(parse_json(await read_body(request, MAX_REPORT_BODY)))
    report = Report.from_body(heartbeat)
    member = await service.registry.heartbeat(listener_id, heartbeat.session_id, heartbeat.acked_revision, report)
    body = {"revision": service.view.tracker.revision, "leaseEnd": str(member.listener.lease_end)}
    return JsonResponse(request, dump_json(body))


@router.post(
    "/listeners/{id}/secret",
    dependencies=[REQUIRE_LISTENER],
    summary="A new secret",
    response_model=SecretBody,
    responses=problem_responses(400, 404, 409, 413, 503, _404=_NOT_REGISTERED, _409=_FENCED),
    openapi_extra=_request_body("SessionBody"),
)
async def post_secret(request: Request, listener_id: ResourceId) -> Response:
    """A new secret for pushes; for an hour they are signed with the old one as well."""
    session = SessionBody.parse(parse_json(await read_body(request, MAX_NODE_BODY))).session_id
    secret = await components_of(request).registry.rotate_secret(listener_id, session)
    return JsonResponse(request, dump_json({"secret": secret}))


@router.delete(
    "/listeners/{id}",
    dependencies=[REQUIRE_LISTENER],
    summary="Leave",
    status_code=204,
    responses=problem_responses(400, 404, 503, _404="There is no such listener."),
)
async def delete_listener(request: Request, listener_id: ResourceId) -> Response:
    """Forget the listener, its cursor and its TaskManagers."""
    await components_of(request).registry.deregister(listener_id)
    response = Response(status_code=HTTPStatus.NO_CONTENT)
    response.raw_headers.extend(revision_headers(request))
    return response


@router.head("/listeners", include_in_schema=False)
@router.get("/listeners", summary="All listeners", response_model=ListenersBody)
async def get_listeners(request: Request) -> Response:
    """Who is registered, whether it lives, and how far it is behind."""
    service = components_of(request)
    return JsonResponse(request, dump_json({"listeners": [_body(service, member) for member in service.listeners]}))


@router.head("/listeners/{id}", include_in_schema=False)
@router.get(
    "/listeners/{id}",
    summary="One listener",
    response_model=ListenerBody,
    responses=problem_responses(400, 404, 503, _404="There is no such listener."),
)
async def get_listener(request: Request, listener_id: ResourceId) -> Response:
    """One listener, live or lapsed."""
    service = components_of(request)
    return JsonResponse(request, dump_json(_body(service, await service.registry.get(listener_id))))


@router.head("/taskmanagers/{id}", include_in_schema=False)
@router.get(
    "/taskmanagers/{id}",
    summary="Where a TaskManager is",
    response_model=TaskManagerBody,
    responses=problem_responses(400, 404, _404="No live listener has named it."),
)
async def get_task_manager(request: Request, task_manager_id: ResourceId) -> Response:
    """The node of a TaskManager, and whether that is blocked. Who is unknown is a 404, never a silent no."""
    view = components_of(request).view
    node_id = view.task_managers.node_of(task_manager_id)
    if node_id is None:
        raise NotFoundError(f"No live listener has named a TaskManager {task_manager_id}.")
    node = view.get(node_id)
    body: Json = {"nodeId": node_id, "blocked": node is not None}
    return JsonResponse(request, dump_json(body if node is None else body | {"blockedNode": view.node_body(node)}))


def _body(service: Components, member: ListenerEntry) -> Json:
    listener, now = member.listener, service.clock()
    usable = service.usable_nodes.usable_count(member) if listener.is_live(now) else None
    revision, lag = service.view.tracker.revision, lag_of(service, member)
    return listener_body(listener, now=now, revision=revision, lag=lag, error=member.error, usable=usable)


def lag_of(service: Components, member: ListenerEntry) -> int:
    """Milliseconds since there has been something that the listener has yet to apply."""
    return lag.lag_of(member, service.feed, service.clock())
