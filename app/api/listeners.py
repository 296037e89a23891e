"""Listeners: registration, leases, heartbeats; the nodes of TaskManagers; and evidence."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated

from fastapi import Query, Request, Response
from pydantic import AfterValidator

from app.api.parameters import (
    KNOWN_PARAMETERS,
    REQUIRE_LISTENER,
    REQUIRE_READER,
    Admin,
    ApiRouter,
    ListenerRole,
    ResourceId,
    authenticate,
    body_schema,
    listener_principal,
    origin_of,
    parse_in_turns,
    read_body,
)
from app.api.responses import FROM_MEMORY, JsonResponse, problem_responses, revision_headers
from app.listeners.jobs import Job, Jobs, JobSource
from app.listeners.state import ListenerEntry
from app.requests import MAX_NODE_BODY, MAX_REPORT_BODY, HeartbeatBody, Id, ModeBody, RegistrationBody, SessionBody
from app.service import Service, service_of
from blocklist.model.claims import Role, check_id_pattern
from blocklist.model.errors import AmbiguousNodeError, NotFoundError
from blocklist.model.listener import Mode, ModeRecord, Report
from blocklist.wire.body import ID_SCHEMA, Json, dump_json, parse_json
from blocklist.wire.listeners import (
    EvidenceListBody,
    JobsBody,
    LeaseBody,
    ListenerBody,
    ListenersBody,
    ModesBody,
    SecretBody,
    TaskManagerBody,
    evidence_list_body,
    listener_body,
    modes_body,
)

router = ApiRouter(tags=["Listeners"], dependencies=[REQUIRE_READER, KNOWN_PARAMETERS])

# Before the routes of one listener: its id may be any, but not `modes`.


@router.get(
    "/listeners/modes",
    summary="The modes that are set for listeners",
    operation_id="listModes",
    dependencies=[FROM_MEMORY],
    response_model=ModesBody,
)
async def get_modes(request: Request) -> Response:
    """All patterns of listeners' ids with a mode. Listeners that no pattern matches apply blocks."""
    return JsonResponse(request, dump_json(modes_body(service_of(request).directory.modes.records)))


@router.put(
    "/listeners/modes",
    summary="Set the mode of listeners",
    operation_id="setMode",
    response_model=ModesBody,
    responses=problem_responses(400, 413, 503),
    openapi_extra=body_schema("ModeBody"),
)
async def put_mode(request: Request, principal: Admin) -> Response:
    """Whether listeners apply blocks, only observe, or are off: from their next heartbeat, until it is set again.

    The most exact pattern counts. The audit log has who set it. The response has all modes.
    """
    service = service_of(request)
    body = ModeBody.parse(parse_json(await read_body(request, MAX_NODE_BODY)))
    record = ModeRecord(body.pattern, Mode(body.mode), principal.name, service.clock())
    await service.registry.set_mode(record, origin_of(request, principal))
    return await get_modes(request)


@router.delete(
    "/listeners/modes",
    summary="Remove the mode of a pattern",
    operation_id="removeMode",
    response_model=ModesBody,
    responses=problem_responses(400, 404, 503, _404="No mode is set for this pattern."),
)
async def delete_mode(
    request: Request,
    principal: Admin,
    pattern: Annotated[str, AfterValidator(check_id_pattern), Query(description="As in `GET /listeners/modes`.")],
) -> Response:
    """The next pattern that matches counts then. The response has all modes."""
    await service_of(request).registry.remove_mode(pattern, origin_of(request, principal))
    return await get_modes(request)


SessionId = Annotated[
    Id | None,
    Query(
        alias="sessionId",
        description="Remove only this session of the listener; without it, any.",
        json_schema_extra=dict(ID_SCHEMA),
    ),
]
"""The session that a process ends, so that it does not remove its successor."""

_NOT_REGISTERED = "There is no such listener; register again."
_FENCED = "Another session has taken over."
_TOO_MANY = "The token has as many live listeners as it may have."
_TOO_LARGE = "The body is too large, or the listeners with this token report too much together; nothing was changed."


@router.put(
    "/listeners/{id}",
    dependencies=[REQUIRE_LISTENER],
    summary="Register a listener, or renew its lease",
    operation_id="registerListener",
    response_model=ListenerBody,
    responses={
        201: {"model": ListenerBody, "description": "Registered; `secret` is returned only here."},
        **problem_responses(400, 409, 413, 429, 503, _409=_FENCED, _429=_TOO_MANY),
    },
    openapi_extra=body_schema("RegistrationBody"),
)
async def put_listener(request: Request, listener_id: ResourceId) -> Response:
    """Register a listener (201) or renew its lease (200). A new session replaces the old one; it gets a snapshot."""
    service = service_of(request)
    registration = RegistrationBody.parse(parse_json(await read_body(request, MAX_NODE_BODY))).value(listener_id)
    caller = await authenticate(request)
    caller.check_may_register(listener_id, registration.role)
    await _check_may_act_for(request, listener_id)
    principal = await listener_principal(request)
    if registration.callback_url is not None:
        service.callback_policy.check(registration.callback_url)
        await service.registry.check_room(listener_id, principal)
        await service.callback_policy.resolve(registration.callback_url, principal)
    may_replace = caller.role.allows(Role.OPERATOR)
    entry, new = await service.registry.register(registration, principal, may_replace=may_replace)
    body = _one_body(service, entry) | ({"secret": entry.secret.current} if new else {})
    return JsonResponse(request, dump_json(body), HTTPStatus.CREATED if new else HTTPStatus.OK)


@router.post(
    "/listeners/{id}/heartbeat",
    dependencies=[REQUIRE_LISTENER],
    summary="Send a heartbeat",
    operation_id="sendHeartbeat",
    response_model=LeaseBody,
    responses=problem_responses(400, 404, 409, 413, 503, _404=_NOT_REGISTERED, _409=_FENCED, _413=_TOO_LARGE),
    openapi_extra=body_schema("HeartbeatBody"),
)
async def post_heartbeat(request: Request, listener_id: ResourceId) -> Response:
    """Renew the lease, acknowledge the applied revision, and report the nodes of the listener's TaskManagers."""
    service = service_of(request)
    await _check_may_act_for(request, listener_id)
    body = await read_body(request, MAX_REPORT_BODY)
    heartbeat: HeartbeatBody = await parse_in_turns(body, parse_json, HeartbeatBody.parse)
    report: Report = await parse_in_turns(body, lambda _: heartbeat.value())
    history = service.view.tracker.history
    entry = await service.registry.heartbeat(
        listener_id,
        heartbeat.session_id,
        heartbeat.acked_revision if heartbeat.history in (None, history) else None,
        report,
        await listener_principal(request),
    )
    answer = {
        "revision": service.view.tracker.revision,
        "leaseEnd": str(entry.listener.lease_end),
        "mode": service.directory.modes.wanted(entry.id),
        "reported": service.registry.reported(entry),
    }
    return JsonResponse(request, dump_json(answer))


@router.post(
    "/listeners/{id}/secret",
    dependencies=[REQUIRE_LISTENER],
    summary="Rotate the secret",
    operation_id="rotateSecret",
    response_model=SecretBody,
    responses=problem_responses(400, 404, 409, 413, 503, _404=_NOT_REGISTERED, _409=_FENCED),
    openapi_extra=body_schema("SessionBody"),
)
async def post_secret(request: Request, listener_id: ResourceId) -> Response:
    """A new secret for signing pushes; for an hour they are also signed with the old one."""
    session = SessionBody.parse(parse_json(await read_body(request, MAX_NODE_BODY))).session_id
    await _check_may_act_for(request, listener_id)
    registry, principal = service_of(request).registry, await listener_principal(request)
    secret = await registry.rotate_secret(listener_id, session, principal)
    return JsonResponse(request, dump_json({"secret": secret}))


@router.delete(
    "/listeners/{id}",
    summary="Deregister a listener",
    operation_id="deregisterListener",
    status_code=204,
    responses=problem_responses(
        400,
        404,
        409,
        503,
        _404="There is no such listener, or another token registered it.",
        _409="It is registered with another session; nothing was changed.",
    ),
)
async def delete_listener(
    request: Request, listener_id: ResourceId, principal: ListenerRole, session: SessionId = None
) -> Response:
    """Remove the listener, its acknowledged revision and its TaskManagers. Operators may remove those of others."""
    owner = None
    if not principal.role.allows(Role.OPERATOR):
        await _check_may_act_for(request, listener_id)
        owner = await listener_principal(request)
    await service_of(request).registry.deregister(listener_id, owner, session)
    response = Response(status_code=HTTPStatus.NO_CONTENT)
    response.raw_headers.extend(revision_headers(request))
    return response


async def _check_may_act_for(request: Request, listener_id: str) -> None:
    """Raise ForbiddenError unless the caller might register the listener as it is.

    Another token of the same name may have, which is the same principal, with another role or other ids. Raises
    UnavailableError.
    """
    service = service_of(request)
    if service.directory.get(listener_id) is None:
        await service.registry.refresh()  # It may have registered at another replica.
    if (registered := service.directory.get(listener_id)) is not None:
        (await authenticate(request)).check_may_register(listener_id, registered.listener.role)


@router.get(
    "/listeners",
    summary="All listeners",
    operation_id="listListeners",
    dependencies=[FROM_MEMORY],
    response_model=ListenersBody,
)
async def get_listeners(request: Request) -> Response:
    """All registered listeners, live and lapsed, and how far each is behind."""
    service = service_of(request)
    usable = service.usable_nodes.counter()
    listeners = [_body(service, entry, usable) for entry in service.directory]
    return JsonResponse(request, dump_json({"listeners": listeners}))


@router.get(
    "/listeners/{id}",
    summary="One listener",
    operation_id="getListener",
    dependencies=[FROM_MEMORY],
    response_model=ListenerBody,
    responses=problem_responses(400, 404, 503, _404="There is no such listener."),
)
async def get_listener(request: Request, listener_id: ResourceId) -> Response:
    """One listener, live or lapsed."""
    service = service_of(request)
    return JsonResponse(request, dump_json(_one_body(service, await service.registry.get(listener_id))))


@router.get(
    "/jobs",
    summary="The jobs that run, with and without an agent",
    operation_id="listJobs",
    dependencies=[FROM_MEMORY],
    response_model=JobsBody,
)
async def get_jobs(request: Request) -> Response:
    """The live jobs, and the applications of which managers report that they run, those without an agent first."""
    found = Jobs(service_of(request).directory)
    body = {"jobs": list(map(_job_body, found.all())), "sources": list(map(_source_body, found.sources))}
    return JsonResponse(request, dump_json(body))


def _job_body(job: Job) -> Json:
    return {
        "id": job.id,
        "agent": job.agent,
        "mode": job.mode,
        "description": job.description,
        "cluster": job.cluster,
        "reportedBy": [*job.reported_by],
    }


def _source_body(source: JobSource) -> Json:
    return {
        "id": source.id,
        "cluster": source.cluster,
        "applications": source.applications,
        "unknown": source.unknown,
    }


@router.get(
    "/taskmanagers/{id}",
    summary="The node of a TaskManager",
    operation_id="getTaskManager",
    dependencies=[FROM_MEMORY],
    response_model=TaskManagerBody,
    responses=problem_responses(
        400,
        404,
        409,
        _404="No live listener has reported this TaskManager.",
        _409="Listeners with different tokens report it on different nodes (`type` ends in `ambiguous-node`).",
    ),
)
async def get_task_manager(request: Request, task_manager_id: ResourceId) -> Response:
    """The node of a TaskManager, and whether it is blocked. An unknown TaskManager is a 404, not an unblocked node."""
    view = service_of(request).view
    reported = view.task_managers.nodes_of_task_manager(task_manager_id)
    if not reported:
        raise NotFoundError(f"No live listener has reported a TaskManager {task_manager_id}.")
    if len(reported) > 1:
        raise AmbiguousNodeError(
            f"Listeners report {task_manager_id} on several nodes: {', '.join(sorted(reported))}.", ()
        )
    node_id = next(iter(reported))
    # Any block of a name of this node holds for it; FLIP-224 has room for one.
    node = next(iter(view.find(node_id)), None)
    body: Json = {"nodeId": node_id, "blocked": node is not None}
    return JsonResponse(request, dump_json(body if node is None else body | {"blockedNode": view.node_body(node)}))


def _one_body(service: Service, entry: ListenerEntry) -> Json:
    return _body(service, entry, service.usable_nodes.counter())


def _body(service: Service, entry: ListenerEntry, usable: Callable[[ListenerEntry], int | None]) -> Json:
    listener, lease_time = entry.listener, entry.lease_time(service.directory.lease_time())
    return listener_body(
        listener,
        cluster=service.directory.cluster_of(entry),
        mode=entry.mode,
        wanted_mode=service.directory.modes.wanted(listener.id),
        now=lease_time,
        revision=service.view.tracker.revision,
        lag=entry.lag_ms(service.feed, service.clock()),
        error=entry.error,
        usable=usable(entry) if entry.is_live(lease_time) else None,
    )


# Evidence: problems with nodes, as reported by running applications.

evidence_router = ApiRouter(tags=["Evidence"], dependencies=[REQUIRE_READER, KNOWN_PARAMETERS])


@evidence_router.get(
    "/evidence",
    summary="Reported problems with nodes",
    operation_id="listEvidence",
    dependencies=[FROM_MEMORY],
    response_model=EvidenceListBody,
)
async def get_evidence(request: Request) -> Response:
    """The evidence of the last minute, and whether it counts. A node is blocked when enough applications agree."""
    service = service_of(request)
    return JsonResponse(request, dump_json(evidence_list_body(service.evidence.assess(service.clock()))))


router.routes.extend(evidence_router.routes)
