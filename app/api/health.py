"""For those who watch the service: is it there, can it work, what does it count."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from app.api.authorization import OPEN, READS
from app.api.problems import documented
from app.components import service_of

router = APIRouter(tags=["Health"])


@router.head("/healthz", dependencies=[OPEN], include_in_schema=False)
@router.get("/healthz", dependencies=[OPEN], summary="The process answers", response_class=PlainTextResponse)
async def healthz() -> PlainTextResponse:
    """200 while the process serves."""
    return PlainTextResponse("ok\n")


@router.head("/readyz", dependencies=[OPEN], include_in_schema=False)
@router.get(
    "/readyz",
    summary="The service can work",
    dependencies=[OPEN],
    response_class=PlainTextResponse,
    responses=documented(503),
)
async def readyz(request: Request) -> PlainTextResponse:
    """200 if the database answers, and took the last transaction; that it is migrated was checked at the start."""
    await service_of(request).store.ping()
    return PlainTextResponse("ready\n")


@router.head("/metrics", dependencies=[READS], include_in_schema=False)
@router.get("/metrics", dependencies=[READS], summary="Metrics for Prometheus", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """`numBlockedNodes` is FLIP-224's gauge."""
    return Response(service_of(request).metrics.render(), media_type=CONTENT_TYPE_LATEST)
