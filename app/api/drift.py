"""Drift: nodes that are not as the list says."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.api.authorization import REQUIRE_READER
from app.api.responses import FROM_MEMORY, JsonResponse
from app.service import service_of
from blocklist.wire.body import dump_json
from blocklist.wire.listeners import DriftListBody, drift_list_body

router = APIRouter(tags=["Nodes"], dependencies=[REQUIRE_READER])


@router.head("/drift", dependencies=[FROM_MEMORY], include_in_schema=False)
@router.get(
    "/drift",
    summary="Nodes that are not as the list says",
    operation_id="listDrift",
    dependencies=[FROM_MEMORY],
    response_model=DriftListBody,
)
async def get_drift(request: Request) -> Response:
    """Where a live listener reports something else than the list says, and since when; observed every 5 s."""
    return JsonResponse(request, dump_json(drift_list_body(service_of(request).drift.latest)))
