"""The endpoint for Alertmanager's webhook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fastapi import Request, Response

from app.alertmanager import AlertmanagerPost, AlertOutcome, AlertsBody, parse_post
from app.api.parameters import (
    KNOWN_PARAMETERS,
    ApiRouter,
    ClaimsOperator,
    author,
    body_schema,
    parse_in_turns,
    read_body,
)
from app.api.responses import JsonResponse, problem_responses
from app.service import service_of
from blocklist.model.changes import Source
from blocklist.model.errors import InvalidError
from blocklist.wire.body import Json, dump_json

router = ApiRouter(tags=["Integrations"], dependencies=[KNOWN_PARAMETERS])

MAX_POST_BODY: Final = 2 * 1024 * 1024
"""Maximum size of a post, in bytes."""
_DEFAULT_AUTHOR: Final = "alertmanager"


@router.post(
    "/integrations/alertmanager",
    summary="Receive alerts from Alertmanager",
    operation_id="receiveAlerts",
    response_model=AlertsBody,
    responses=problem_responses(400, 413, 503),
    openapi_extra=body_schema("AlertmanagerPost"),
)
async def post_alerts(request: Request, principal: ClaimsOperator) -> Response:
    """Block the nodes of firing alerts with the label `blocklist="mark"` or `"evacuate"`; unblock when they resolve.

    An alert without the label, without a node, or rejected by a limit is counted in the response and is not an error,
    because sending it again would not help.
    """
    # Browsers send this content type to another site only after a CORS preflight, so no other site can forge a post.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise InvalidError("Content-Type: send application/json.")
    post: AlertmanagerPost = await parse_in_turns(await read_body(request, MAX_POST_BODY), parse_post)
    post_author = author(principal, Source.ALERTMANAGER)
    outcomes, revision = await service_of(request).alert_blocker.process(
        post,
        post_author._replace(name=post_author.name or _DEFAULT_AUTHOR),
        principal.role,
        principal.check_may_claim_for,
    )
    body = _body(outcomes, post.truncated)
    return JsonResponse(request, dump_json(body), revision=revision)


def _body(outcomes: Mapping[AlertOutcome, int], truncated: int) -> Json:
    return {
        "alerts": {outcome.value: outcomes[outcome] for outcome in AlertOutcome if outcomes.get(outcome)},
        "truncatedAlerts": truncated,
    }
