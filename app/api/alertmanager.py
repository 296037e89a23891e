"""Alertmanager's webhook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from app.api.authorization import Operator, author
from app.api.problems import documented
from app.api.responses import JsonAnswer, read_body
from app.components import service_of
from app.integrations.alertmanager.rules import Outcome
from app.integrations.alertmanager.wire import AlertsAnswer, parse_post
from blocklist.model.changes import Source
from blocklist.model.errors import InvalidError
from blocklist.wire.nodes import Json, dump_json

router = APIRouter(tags=["Integrations"])

POST: Final = 2 * 1024 * 1024
"""Bytes that a post may have."""
_NAME: Final = "alertmanager"
_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/AlertmanagerPost"}}},
    }
}


@router.post(
    "/integrations/alertmanager",
    summary="What Alertmanager's webhook sends",
    response_model=AlertsAnswer,
    responses=documented(400, 413, 503),
    openapi_extra=_BODY,
)
async def post_alerts(request: Request, who: Operator) -> Response:
    """Block the nodes of firing alerts that carry `blocklist="mark"` or `"evacuate"`, free those of resolved ones.

    An alert that asks for nothing, names no node or meets a limit is counted in the answer and is no error, for
    nothing would come of sending it again.
    """
    # No browser sends this type to another site without asking first: no page can post in somebody's name.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise InvalidError("Alertmanager posts have the content type application/json.")
    post = parse_post(await read_body(request, POST))
    by = author(who, Source.ALERTMANAGER)
    taken = await service_of(request).alerts.take(post, by._replace(name=by.name or _NAME), who.access)
    body = _answer(taken.value.outcomes, post.truncated)
    return JsonAnswer(request, dump_json(body), revision=taken.revision)


def _answer(outcomes: Mapping[Outcome, int], truncated: int) -> Json:
    return {
        "alerts": {outcome.value: outcomes[outcome] for outcome in Outcome if outcomes.get(outcome)},
        "truncatedAlerts": truncated,
    }
