"""Evidence: problems with nodes, as reported by running applications."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.api.authorization import REQUIRE_READER
from app.api.responses import FROM_MEMORY, JsonResponse
from app.service import service_of
from blocklist.wire.body import dump_json
from blocklist.wire.listeners import EvidenceListBody, evidence_list_body

router = APIRouter(tags=["Evidence"], dependencies=[REQUIRE_READER])


@router.head("/evidence", dependencies=[FROM_MEMORY], include_in_schema=False)
@router.get(
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
