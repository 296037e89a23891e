"""Alertmanager's webhook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from app.api.authorization import Operator, author
from app.api.problems import problem_responses
from app.api.responses import JsonResponse, read_body
from app.components import components_of
from app.integrations.alertmanager.rules import AlertOutcome
from app.integrations.alertmanager.wire import AlertsBody, parse_post
from blocklist.model.changes import Source
from blocklist.model.errors import InvalidError
from blocklist.wire.nodes import Json, dump_json

router = APIRouter(tags=["Integrations"])

MAX_POST_BODY: Final = 2 * 1024 * 1024
"""Bytes that a post may have."""
_DEFAULT_AUTHOR: Final = "alertmanager"
_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/AlertmanagerPost"}}},
    }
}


@router.post(
    "/integrations/alertmanager",
    summary="What Alertmanager's webhook sends",
    response_model=AlertsBody,
    responses=problem_responses(400, 413, 503),
    openapi_extra=_BODY,
)
async def post_alerts(request: Request, principal: Operator) -> Response:
    """Block the nodes of firing alerts that carry `blocklist="mark"` or `"evacuate"`, free those of resolved ones.

    An alert that asks for nothing, names no node or meets a limit is counted in the answer and is no error, for
    nothing would come of sending it again.
    """
    # No browser sends this type to another site without asking first: no page can post in somebody's name.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise InvalidError("Alertmanager posts have the content type application/json.")
    post = parse_post(await read_body(request, MAX_POST_BODY))
    post_author = author(principal, Source.ALERTMANAGER)
    result = await components_of(request).alerts.process(
        post, post_author._replace(name=post_author.name or _DEFAULT_AUTHOR), principal.role
    )
    body = _body(result.value.outcomes, post.truncated)
    return JsonResponse(request, dump_json(body), revision=result.revision)


def _body(outcomes: Mapping[AlertOutcome, int], truncated: int) -> Json:
    return {
        "alerts": {outcome.value: outcomes[outcome] for outcome in AlertOutcome if outcomes.get(outcome)},
        "truncatedAlerts": truncated,
    }
