"""Evidence: what running applications say of nodes."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.api.authorization import READS
from app.api.responses import JsonAnswer
from app.components import service_of
from blocklist.wire.evidence import EvidenceListBody, evidence_list
from blocklist.wire.nodes import dump_json

router = APIRouter(tags=["Evidence"], dependencies=[READS])


@router.head("/evidence", include_in_schema=False)
@router.get("/evidence", summary="What running applications say of nodes", response_model=EvidenceListBody)
async def get_evidence(request: Request) -> Response:
    """All evidence of the last minute, and whether it counts. Where enough applications agree, the node is blocked."""
    service = service_of(request)
    return JsonAnswer(request, dump_json(evidence_list(service.evidence.listed(service.clock()))))
