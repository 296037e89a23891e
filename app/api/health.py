"""Liveness, readiness and metrics."""

from __future__ import annotations

from fastapi import Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from app.api.parameters import PUBLIC, REQUIRE_READER, ApiRouter
from app.api.responses import problem_responses
from app.service import service_of

router = ApiRouter(tags=["Health"])


@router.get(
    "/healthz",
    dependencies=[PUBLIC],
    summary="Liveness",
    operation_id="getLiveness",
    response_class=PlainTextResponse,
)
async def healthz() -> PlainTextResponse:
    """200 while the process serves requests."""
    return PlainTextResponse("ok\n")


@router.get(
    "/readyz",
    summary="Readiness",
    operation_id="getReadiness",
    dependencies=[PUBLIC],
    response_class=PlainTextResponse,
    responses=problem_responses(503),
)
async def readyz(request: Request) -> PlainTextResponse:
    """200 if the database responds, the last commit succeeded, and all background tasks run.

    The schema was checked at the start.
    """
    service = service_of(request)
    await service.store.ping()
    service.task_health.check()
    # Not a 503: the nodes that were read before are in force, and the list is served as before.
    faults = [] if service.nodes_file.fault is None else ["BLOCKLIST_NODES_FILE cannot be used"]
    offset = service.store.clock_offset
    if offset is not None and offset.is_large:
        faults.append("the clock of this machine differs from the database's")
    # Everybody may read this: what is wrong in which file is in the log.
    return PlainTextResponse(f"ready, but {' and '.join(faults)}; see the log\n" if faults else "ready\n")


@router.get(
    "/metrics",
    dependencies=[REQUIRE_READER],
    summary="Metrics for Prometheus",
    operation_id="getMetrics",
    response_class=PlainTextResponse,
)
async def metrics(request: Request) -> Response:
    """All metrics of the service; `numBlockedNodes` is FLIP-224's gauge."""
    return Response(await service_of(request).metrics.render(), media_type=CONTENT_TYPE_LATEST)
