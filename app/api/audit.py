"""The audit log: who logged in, changed tokens or modes, or forced a change, and the settings at each start."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query, Request, Response

from app.api.parameters import KNOWN_PARAMETERS, REQUIRE_ADMIN, ApiRouter, AuthorName, From, Page, Until
from app.api.responses import JsonResponse, problem_responses
from app.service import service_of
from app.store.audit import AuditFilter
from blocklist.wire.audit import AuditKind, AuditPage, audit_body
from blocklist.wire.body import dump_json

router = ApiRouter(tags=["Audit"], dependencies=[REQUIRE_ADMIN, KNOWN_PARAMETERS])


@router.get(
    "/audit",
    summary="The audit log",
    operation_id="listAuditRecords",
    response_model=AuditPage,
    responses=problem_responses(400, 403, 503),
)
async def get_audit(
    request: Request,
    page: Page,
    kinds: Annotated[
        list[AuditKind] | None, Query(alias="kind", description="Only records of this kind; may be repeated.")
    ] = None,
    who: Annotated[
        AuthorName | None, Query(alias="principal", description="Only records of what this principal did.")
    ] = None,
    begin: From = None,
    end: Until = None,
    newest: Annotated[Literal["true", "false"], Query(description="`true`: the newest first.")] = "false",
) -> Response:
    """Log-ins and failed ones, changes of tokens, forced changes, settings at each start, and modes of listeners.

    Records are in order of their ids, and kept for 400 days. To follow the log, ask again with `after`: the id of the
    last record that you have.
    """
    after = page.number("the id of a record")
    criteria = AuditFilter(kinds=tuple(kinds or ()), principal=who, begin=begin, end=end)
    found = await service_of(request).audit.page(criteria, after=after, newest=newest == "true", limit=page.limit)
    following = None if found.next is None else str(found.next)
    return JsonResponse(request, dump_json({"records": [*map(audit_body, found.records)], "next": following}))
