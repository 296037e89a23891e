"""Evidence: what running applications say of nodes."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.api.authorization import REQUIRE_READER
from app.api.responses import JsonResponse
from app.components import components_of
from blocklist.wire.evidence import EvidenceListBody, evidence_list_body
from blocklist.wire.nodes import dump_json

router = APIRouter(tags=["Evidence"], dependencies=[REQUIRE_READER])


@router.head("/evidence", include_in_schema=False)
@router.get("/evidence", summary="What running applications say of nodes", response_model=EvidenceListBody)
async def get_evidence(request: Request) -> Response:
    """All evidence of the last minute, and whether it counts. Where enough applications agree, the node is blocked."""
    service = components_of(request)
    return JsonResponse(request, dump_json(evidence_list_body(service.evidence_book.assess(service.clock()))))
