"""The requests that change the list have one shape: check the role, build a command, try or execute it, wait, answer.

`dryRun` previews a change, `force` overrides limits, `strict` refuses unknown nodes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Depends, Query, Request, Response
from pydantic import AfterValidator

from app.api.authentication import ClaimsOperator, author
from app.api.node_status import Prefer, Wait, requested_wait, task_managers_on, wait_until_applied
from app.api.parameters import require_empty_body
from app.api.responses import JsonResponse
from app.auth.credential import Principal
from app.engine.handler import Command, DryRunResult, Outcome
from app.service import Service, service_of
from blocklist.model.changes import Author, ChangeType
from blocklist.model.claims import claim_of
from blocklist.model.draft import Draft
from blocklist.model.errors import ForbiddenError, InvalidError, PreconditionFailedError
from blocklist.model.names import normalize_name
from blocklist.model.node import MAX_CAUSE_LENGTH, BlockedNode, check_node_id, check_text
from blocklist.model.roles import Role
from blocklist.model.tracker import BlocklistView, claims_on, find_blocked, find_one_blocked
from blocklist.wire.body import TEXT_PATTERN, Json, dump_json
from blocklist.wire.nodes import claim_body, shortfall_body

T = TypeVar("T")


DryRun = Annotated[
    Literal["true", "false"],
    Query(alias="dryRun", description="`true`: return what this would do, without doing it; `Prefer` is ignored."),
]
Force = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=MAX_CAUSE_LENGTH,
        description="Override all limits for this reason, which the change log records. Requires the role admin.",
        json_schema_extra={"pattern": TEXT_PATTERN},
    ),
    AfterValidator(lambda text: text if text is None else check_text(text)),
]
Strict = Annotated[
    Literal["true", "false"],
    Query(description="`true`: refuse a node that is not blocked and that no live listener reports."),
]

Replace = Annotated[
    Literal["true", "false"],
    Query(
        description="`true`: where a node is blocked, replace the caller's own claim, which may make it shorter or"
        " weaker, or add one; claims of other owners stay. `allowMerge` is ignored."
    ),
]


def require_known(service: Service, node_ids: Collection[str], command: Command[T], *, strict: bool) -> Command[T]:
    """The command; if `strict`, made to raise UnknownNodeError for a node that is neither known nor blocked.

    Also for a short name of several nodes, unless it is itself the id of a block.
    """

    def run(draft: Draft) -> T:
        blocked = {name: [it.id for it in find_blocked(draft, name, draft.now)] for name in node_ids}
        service.known_nodes.require(
            [name for name, ids in blocked.items() if not ids],
            [name for name, ids in blocked.items() if normalize_name(name) not in map(normalize_name, ids)],
        )
        return command(draft)

    return run if strict else command


# If-Match and If-None-Match: the ETag of a node is one for the node and all its claims.


def node_etag(view: BlocklistView, node: BlockedNode, now: int) -> str:
    """The ETag of a node and its claims at `now` (Unix ms): the same on every replica, whatever runs on the node."""
    state = [node.id, [claim_body(claim) for claim in claims_on(view, node, now)]]
    return f'"{hashlib.sha256(dump_json(state)).hexdigest()[:24]}"'


def _with_preconditions(request: Request, command: Command[T]) -> Command[T]:
    """The command, made to check `If-Match` and `If-None-Match` against the list on which it is executed.

    Raises InvalidError if the request changes several nodes. The command raises PreconditionFailedError.
    """
    required, excluded = _etags(request, "If-Match"), _etags(request, "If-None-Match")
    if required is None and excluded is None:
        return command
    if "node_id" not in request.path_params:
        raise InvalidError("If-Match and If-None-Match are for a change of one node or claim. Nothing was changed.")
    node_id, owner = check_node_id(request.path_params["node_id"]), request.path_params.get("owner")
    what = f"Node {node_id} is" if owner is None else f"The claim of {owner} on {node_id} is"

    def run(draft: Draft) -> T:
        node = find_one_blocked(draft, node_id, draft.now)
        exists = node is not None and (owner is None or claim_of(draft.live_claims(node), owner) is not None)
        current = {"*"} if exists else set[str]()
        if node is not None:
            current.add(node_etag(draft, node, draft.now))
        if required is not None and not required & current:
            state = "not as it was read" if node is not None and exists else "not there"
            raise PreconditionFailedError(f"{what} {state}. Read it again, and decide again. Nothing was changed.")
        if excluded is not None and excluded & current:
            raise PreconditionFailedError(f"{what} there, which If-None-Match excludes. Nothing was changed.")
        return command(draft)

    return run


def _etags(request: Request, field: str) -> set[str] | None:
    """The ETags in a header, and `*`; None without the header. A weak one is equal to none (RFC 9110)."""
    values = request.headers.getlist(field)
    return {tag.strip() for value in values for tag in value.split(",")} if values else None


async def submit_within_limits(
    service: Service, command: Command[T], principal: Principal, changed_by: Author
) -> Outcome[T]:
    """Execute the command unless it exceeds a limit. Raises what it raises, LimitError, UnavailableError."""
    return await service.handler.submit(service.limit_guard.enforce(command, principal.role), changed_by)


@dataclass(frozen=True, slots=True)
class RequestedChange:
    """A request that changes the list: what it may do, and how it wants to be answered."""

    request: Request
    principal: Principal
    author: Author
    wait: Wait | None
    dry_run: bool
    strict: bool = False

    @property
    def service(self) -> Service:
        return service_of(self.request)

    async def answer(
        self,
        command: Command[T],
        nodes: Callable[[T], Collection[BlockedNode]],
        respond: Callable[[Outcome[T]], Response],
    ) -> Response:
        """Execute the command, and wait for listeners as `Prefer` asks; with `dryRun=true` say what it would do.

        `nodes` are those that a command changes, of what it returns; `respond` makes the response to its outcome.
        Raises what the command raises, LimitError, PreconditionFailedError, UnavailableError.
        """
        command = _with_preconditions(self.request, command)
        if self.dry_run:
            trial = self.service.limit_guard.dry_run(command, self.principal.role)
            tried = await self.service.handler.submit(trial, self.author)
            body = _dry_run_body(self.service, tried.value, nodes(tried.value.value))
            return JsonResponse(self.request, dump_json(body), revision=tried.revision)
        outcome = await submit_within_limits(self.service, command, self.principal, self.author)
        waited = await wait_until_applied(self.request, outcome, nodes(outcome.value), self.wait)
        # After the wait, managers have told whether their clusters have the nodes.
        response = respond(outcome)
        response.raw_headers.extend(waited)
        return response

    async def answer_with(
        self,
        command: Command[T],
        nodes: Callable[[T], Collection[BlockedNode]],
        body: Callable[[Outcome[T]], Json],
    ) -> Response:
        """The same with a body in JSON, and the status 200."""
        return await self.answer(
            command,
            nodes,
            lambda outcome: JsonResponse(self.request, dump_json(body(outcome)), revision=outcome.revision),
        )


# Parameters, not dependencies of their own: each of those would take 8 µs of a request.
async def _blocking(
    request: Request,
    principal: ClaimsOperator,
    prefer: Prefer = None,
    dry_run: DryRun = "false",
    force: Force = None,
    strict: Strict = "false",
) -> RequestedChange:
    if force is not None and not principal.role.allows(Role.ADMIN):
        raise ForbiddenError("To override a limit requires the role admin.")
    wait, changed_by = await requested_wait(request, prefer), author(principal, forced=force)
    return RequestedChange(request, principal, changed_by, wait, dry_run == "true", strict == "true")


async def _freeing(
    request: Request, principal: ClaimsOperator, prefer: Prefer = None, dry_run: DryRun = "false"
) -> RequestedChange:
    wait = await requested_wait(request, prefer)
    return RequestedChange(request, principal, author(principal), wait, dry_run == "true")


Blocking = Annotated[RequestedChange, Depends(_blocking)]
"""An operator's request that blocks nodes. Raises ForbiddenError, UnauthorizedError, UnavailableError."""
Freeing = Annotated[RequestedChange, Depends(_freeing)]
"""An operator's request that frees nodes, or removes claims. Raises as Blocking."""


def _dry_run_body(service: Service, result: DryRunResult[Any], nodes: Collection[BlockedNode]) -> Json:
    types = {change.node.id: change.type for change in result.changes}
    known = service.known_nodes
    created = [node.id for node in nodes if types.get(node.id) is ChangeType.BLOCKED]
    blocked = [node_id for node_id, type_ in types.items() if not type_.frees]
    unknown, ambiguous, several = known.unknown(created), known.ambiguous(created), known.several(blocked)
    return {
        "dryRun": True,
        "nodes": [
            {
                **_node(service, node, types.get(node.id)),
                "known": node.id not in {**unknown, **ambiguous} if known else None,
                "didYouMean": unknown.get(node.id),
                "ambiguous": ambiguous.get(node.id, []),
                **({"means": several[node.id]} if node.id in several else {}),
            }
            for node in nodes
        ],
        "belowMinimum": [shortfall_body(shortfall) for shortfall in result.shortfalls],
        "refused": result.refusal,
    }


def _node(service: Service, node: BlockedNode, type_: ChangeType | None) -> Json:
    """A node of the response. A merge without an effect is no change, but has the status of a merge."""
    status = {ChangeType.BLOCKED: HTTPStatus.CREATED, ChangeType.UNBLOCKED: HTTPStatus.OK}
    return {
        "status": HTTPStatus.ACCEPTED if type_ is None else status.get(type_, HTTPStatus.ACCEPTED),
        "node": service.view.node_body(node),
        "taskManagers": [
            {"id": task_manager.id, "listener": task_manager.listener, "runningTasks": task_manager.running_tasks}
            for task_manager in task_managers_on(service, node.id)
        ],
    }


async def remove_claim(request: Request, node_id: str, owner: str, change: RequestedChange) -> Response:
    """Remove the claim of an owner, and answer with the node after it. Raises ForbiddenError, NotFoundError."""
    change.principal.check_may_claim_for(owner)
    await require_empty_body(request)
    return await change.answer_with(
        lambda draft: draft.remove_claim(node_id, owner),
        lambda node: [node],
        lambda outcome: removed_claim_body(change.service, outcome, outcome.value),
    )


def removed_claim_body(service: Service, outcome: Outcome[Any], node: BlockedNode) -> Json:
    """The body of the response to a removed claim: `RemovedClaimBody`."""
    freed = {change.node.id for change in outcome.changes if change.type.frees}
    return {"blocked": node.id not in freed, "node": service.view.node_body(node)}
