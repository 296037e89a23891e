"""The requests that change the list have one shape: check the role, build a command, try or execute it, wait, answer.

`dryRun` previews a change, `force` overrides limits, `strict` refuses unknown nodes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

from fastapi import Depends, Header, Query, Request, Response
from pydantic import AfterValidator

from app.api.node_status import task_managers_on
from app.api.parameters import ClaimsOperator, author, origin_of, require_empty_body, slots_of
from app.api.responses import JsonResponse
from app.auth.credential import Principal
from app.engine.handler import Command, DryRunResult, Outcome
from app.service import Service, service_of
from app.watch import applied_by, run_until_disconnect, wait_seconds
from blocklist.model.changes import Author, Change, ChangeType, Source
from blocklist.model.claims import Role, claim_of
from blocklist.model.draft import BlocklistView, Draft, claims_on, find_blocked, find_one_blocked
from blocklist.model.errors import ForbiddenError, InvalidError, PreconditionFailedError, UnavailableError
from blocklist.model.names import normalize_name
from blocklist.model.node import ALL_LISTENERS, MAX_CAUSE_LENGTH, AppliedBy, BlockedNode, check_node_id, check_text
from blocklist.wire.audit import Way
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
    Query(description="`true`: refuse a node that is neither blocked nor known."),
]

Prefer = Annotated[
    list[str] | None,
    Header(
        description="`wait=N`: respond when all live listeners have applied or refused it, or after N seconds"
        " (maximum 60). With `applied-by=95%` as well, when that share of them has applied it; with"
        " `applied-by=managers`, when the ResourceManagers have, and only they are counted."
    ),
]
Replace = Annotated[
    Literal["true", "false"],
    Query(
        description="`true`: where a node is blocked, replace the caller's own claim, which may make it shorter or"
        " weaker, or add one; claims of other owners stay. `allowMerge` is ignored."
    ),
]


class Wait(NamedTuple):
    """How long the response to a change may wait, and for whom."""

    seconds: int
    by: AppliedBy = ALL_LISTENERS


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
        # RFC 9110: this comparison is weak, that of If-Match is strong.
        if excluded is not None and {tag.removeprefix("W/") for tag in excluded} & current:
            raise PreconditionFailedError(f"{what} there, which If-None-Match excludes. Nothing was changed.")
        return command(draft)

    return run


def _etags(request: Request, field: str) -> set[str] | None:
    """The ETags in a header, and `*`; None without the header. A weak one is equal to none (RFC 9110)."""
    values = request.headers.getlist(field)
    return {tag.strip() for value in values for tag in value.split(",")} if values else None


async def submit_within_limits(
    request: Request, command: Command[T], principal: Principal, changed_by: Author
) -> Outcome[T]:
    """Execute the command unless it exceeds a limit. Raises what it raises, LimitError, UnavailableError."""
    service = service_of(request)
    outcome = await service.handler.submit(service.limit_guard.enforce(command, principal.role), changed_by)
    if changed_by.forced is not None:
        way = Way.PAGE if changed_by.source is Source.PAGE else None
        service.audit.note_forced(outcome.changes, origin_of(request, principal, way))
    return outcome


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
        outcome = await submit_within_limits(self.request, command, self.principal, self.author)
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
        "taskManagers": [task_manager.body() for task_manager in task_managers_on(service, node.id)],
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


# Waiting with `Prefer: wait` until listeners have applied a change.

MAX_NAMED: Final = 20
"""Maximum number of listeners named in a header."""


async def requested_wait(request: Request, prefer: list[str] | None) -> Wait | None:
    """What `Prefer` asks, or None. Raises UnavailableError if the client has too many waiting requests."""
    seconds = wait_seconds(prefer or [])
    if seconds is None:
        return None
    await slots_of(request)  # reject before anything is changed
    return Wait(seconds, applied_by(prefer or []))


async def wait_until_applied(
    request: Request, outcome: Outcome[Any], nodes: Collection[BlockedNode], wait: Wait | None
) -> list[tuple[bytes, bytes]]:
    """Wait until the live listeners that `wait` asks for have applied the change of these nodes, or none is pending.

    `nodes` are as the change left them, or found them.

    Returns headers with the result. Raises UnavailableError if a new history begins: the change may be lost.
    """
    if wait is None:
        return []
    service, revision = service_of(request), outcome.revision
    directory, feed = service.directory, service.feed
    history, node_ids = feed.history, {node.id for node in nodes}
    with suppress(UnavailableError):
        await service.registry.refresh()

    def settled() -> bool:
        return feed.closed or feed.history != history or directory.is_applied(revision, node_ids, wait.by)

    with await slots_of(request):
        await run_until_disconnect(request.receive, directory.acks.wait_for(settled, wait.seconds))
    current = await _is_current(service)
    if feed.history != history:
        raise UnavailableError(
            "The database has begun a new history, after a failover or a restore: the change may be lost. Read the"
            " node, and send the change again if it is missing.",
            retry_after=1,
        )
    by = wait.by
    progress = directory.progress(revision, node_ids, by) if current else directory.unknown_progress(by)
    later, blocked = await _changes_since(service, revision), service.view.tracker.blocked(service.clock())
    superseded = superseded_nodes(nodes, outcome.changes, later, blocked)
    named = {
        b"blocklist-refused": progress.refused,
        b"blocklist-not-applied": progress.pending,
        b"blocklist-not-here": progress.not_here,
        b"blocklist-observing": progress.observing,
        b"blocklist-superseded": superseded,
    }
    waited_for = "" if by == ALL_LISTENERS else f", applied-by={by}"
    return [
        (b"preference-applied", b"wait=%d%b" % (wait.seconds, waited_for.encode())),
        # A listener that has acknowledged a later change that reverses this one does not have it in force.
        (b"blocklist-applied", b"%d/%d" % (0 if superseded else progress.applied, progress.total)),
        *((header, _named(ids)) for header, ids in named.items() if ids),
    ]


def _named(ids: Sequence[str]) -> bytes:
    """The ids in a header: the first ones, and how many more there are."""
    more = [f"and {len(ids) - MAX_NAMED} more"] if len(ids) > MAX_NAMED else []
    return ", ".join([*ids[:MAX_NAMED], *more]).encode()


class _Strength(IntEnum):
    """How a node is blocked, the weakest first."""

    FREE = 0
    CANARY = 1
    MARKED = 2
    EVACUATED = 3


def superseded_nodes(
    nodes: Collection[BlockedNode],
    changes: Collection[Change],
    later: Collection[Change],
    blocked: Mapping[str, BlockedNode],
) -> Sequence[str]:
    """The nodes that are not as a request left them, at present or at any time since, sorted.

    `nodes` are those of the request, `changes` what it changed of them, `later` what came after it, `blocked` are the
    blocks at present. A block that is stronger than the requested one has it in force; where a request weakened or
    removed a block, a stronger one is not what was requested.
    """
    # Where it changed nothing, it found the node as it was requested.
    made = {node.id: _strength(node) for node in nodes} | {it.node.id: _after(it) for it in changes}
    lessened = {it.node.id for it in changes if it.type.frees or it.type is ChangeType.NARROWED}
    since = [(it.node.id, _after(it)) for it in later if it.node.id in made]
    since += [(name, _strength(blocked.get(name))) for name in made]
    return sorted({name for name, it in since if it < made[name] or (name in lessened and it > made[name])})


def _after(change: Change) -> _Strength:
    return _strength(None if change.type.frees else change.node)


def _strength(node: BlockedNode | None) -> _Strength:
    if node is None:
        return _Strength.FREE
    if node.canary:
        return _Strength.CANARY
    return _Strength.EVACUATED if node.evacuates else _Strength.MARKED


async def _changes_since(service: Service, revision: int) -> Sequence[Change]:
    """The changes after a revision; none if they are no longer known."""
    feed = service.feed
    with suppress(UnavailableError):
        return await feed.changes(revision, feed.revision) or ()
    return ()


async def _is_current(service: Service) -> bool:
    """Read the registrations at other replicas; False if the database is unavailable.

    Another session of a listener may have taken over there: what the earlier one acknowledged here does not count.
    """
    try:
        await service.registry.refresh()
    except UnavailableError:
        return False
    return True
