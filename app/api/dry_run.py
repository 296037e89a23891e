"""What a change may be asked with: `dryRun`, to see what it would do, and `force`, to go beyond a limit."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Request, Response
from pydantic import AfterValidator

from app.api.applied import task_managers_on
from app.api.authorization import author
from app.api.responses import JsonResponse
from app.auth.principal import Principal
from app.components import Components, components_of
from app.engine.handler import Command
from app.engine.limits import DryRunResult
from blocklist.model.changes import Author, ChangeType
from blocklist.model.errors import ForbiddenError
from blocklist.model.node import BlockedNode, check_text
from blocklist.model.roles import Role
from blocklist.wire.dry_run import shortfall_body
from blocklist.wire.nodes import TEXT_PATTERN, Json, dump_json

MAX_REASON = 1024
"""Characters of a reason for going beyond a limit."""


async def _dry_run(
    dry_run: Annotated[
        Literal["true", "false"],
        Query(alias="dryRun", description="`true`: answer what this would do, and do nothing; `Prefer` is ignored."),
    ] = "false",
) -> bool:
    return dry_run == "true"


DryRun = Annotated[bool, Depends(_dry_run)]
"""`?dryRun=true`, exactly so."""


async def _force(
    force: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=MAX_REASON,
            description="Go beyond all limits, for this reason, which the log keeps; for an admin.",
            json_schema_extra={"pattern": TEXT_PATTERN},
        ),
        AfterValidator(lambda text: text if text is None else check_text(text)),
    ] = None,
) -> str | None:
    return force


Force = Annotated[str | None, Depends(_force)]
"""The reason of `?force=REASON`, None without."""


def author_with_force(principal: Principal, force: str | None) -> Author:
    """The author of a change that may go beyond limits. Raises ForbiddenError where only an admin may."""
    if force is not None and not principal.role.allows(Role.ADMIN):
        raise ForbiddenError("To go beyond a limit takes the role admin.")
    return author(principal, forced=force)


async def dry_run_response(
    request: Request, command: Command[Any], principal: Principal, changed_by: Author
) -> Response:
    """The answer to a dry run: at the command's turn it is seen what it would do. Raises what it would raise."""
    service = components_of(request)
    outcome = await service.handler.submit(service.limit_guard.dry_run(command, principal.role), changed_by)
    return JsonResponse(request, dump_json(_body(service, outcome.value)), revision=outcome.revision)


def _body(service: Components, result: DryRunResult[Any]) -> Json:
    value = result.value
    kinds = {change.node.id: change.type for change in result.changes}
    nodes = list(value.values()) if isinstance(value, dict) else [value]
    return {
        "dryRun": True,
        "nodes": [_node(service, node, kinds.get(node.id)) for node in nodes],
        "belowMinimum": [shortfall_body(each) for each in result.shortfalls],
        "refused": result.refusal,
    }


def _node(service: Components, node: BlockedNode, kind: ChangeType | None) -> Json:
    """A merge that would change nothing makes no change; it is answered as one that does."""
    status = {ChangeType.BLOCKED: HTTPStatus.CREATED, ChangeType.UNBLOCKED: HTTPStatus.OK}
    return {
        "status": HTTPStatus.ACCEPTED if kind is None else status.get(kind, HTTPStatus.ACCEPTED),
        "node": service.view.node_body(node),
        "taskManagers": [
            {"id": each.id, "listener": each.listener, "runningTasks": each.running_tasks}
            for each in task_managers_on(service, node.id)
        ],
    }
