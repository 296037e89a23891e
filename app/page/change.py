"""What a change would do, shown before it is confirmed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from app.api.change import submit_within_limits
from app.api.node_status import TaskManager, task_managers_on
from app.api.parameters import NodeId
from app.engine.handler import Command
from app.page.forms import (
    FIELDS,
    BlockForm,
    Form,
    FormError,
    HtmlRoute,
    SubmittedForm,
    form_owner,
    initial_form,
    parse_block_form,
)
from app.page.shared import OperatorVisitor, Visitor, render_page
from app.service import Service, service_of
from blocklist.model.claims import Claims
from blocklist.model.draft import Draft, claims_on, not_blocked_message
from blocklist.model.errors import (
    BlocklistError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    LimitError,
    NotFoundError,
)
from blocklist.model.inventory import select_nodes
from blocklist.model.node import MAX_CAUSE_LENGTH, MAX_NODES, BlockedNode, TaskCount, check_text
from blocklist.model.selector import parse_selector
from blocklist.model.usable_nodes import Shortfall

PreviewResult = tuple[str, dict[str, tuple[BlockedNode | None, BlockedNode | None]]]
"""What `seen_of` returns, and node id to the node before and after; None if it is not blocked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodePreview:
    """A node before and after (None: not blocked), and what runs there."""

    id: str
    before: BlockedNode | None
    after: BlockedNode | None
    task_managers: Sequence[TaskManager]

    @property
    def tasks(self) -> TaskCount:
        return TaskCount.of(each.running_tasks for each in self.task_managers)

    @property
    def unchanged(self) -> bool:
        return self.before == self.after


@dataclass(frozen=True, kw_only=True, slots=True)
class Preview:
    """The effects of a change. `limit_error` is the message if a limit rejects it.

    `unknown` are the nodes that are not known, with a similar known one, or None. `ambiguous` are those
    that several nodes claim, with the ids of these; `several` are short names, with the nodes that they mean. `seen`
    identifies the blocks and claims on which the preview is based: a confirmation is for these only.
    """

    nodes: Sequence[NodePreview]
    shortfalls: Sequence[Shortfall]
    limit_error: str | None
    unknown: Mapping[str, str | None]
    ambiguous: Mapping[str, Sequence[str]]
    several: Mapping[str, Sequence[str]]
    seen: str
    ask_above: int

    @property
    def is_many(self) -> bool:
        """Whether the number of nodes is named once more, as the command asks about it."""
        return len(self.nodes) > self.ask_above

    @property
    def already_blocked(self) -> int:
        """The number of nodes that are already blocked."""
        return sum(node.before is not None for node in self.nodes)

    @property
    def task_managers(self) -> int:
        return sum(len(node.task_managers) for node in self.nodes)

    @property
    def tasks(self) -> TaskCount:
        return TaskCount.of(each.running_tasks for node in self.nodes for each in node.task_managers)

    @property
    def applications(self) -> int:
        return len({task_manager.listener for node in self.nodes for task_manager in node.task_managers})


async def preview_block(service: Service, requested: BlockForm, visitor: Visitor) -> Preview:
    """Preview blocking nodes, or merging with existing blocks. Raises InvalidError, UnavailableError."""

    def command(draft: Draft) -> PreviewResult:
        return seen_of(draft, requested.nodes), {
            node.id: (draft.get_blocked(node.id), draft.block(node, allow_merge=True))
            for node in nodes_to_block(requested, draft.now)
        }

    return await preview_command(service, visitor, command)


async def preview_unblock(service: Service, node_id: str, visitor: Visitor) -> tuple[Preview, Claims]:
    """Preview unblocking a node, with the claims on it. Raises NotFoundError, UnavailableError."""
    claims: Claims = ()

    def command(draft: Draft) -> PreviewResult:
        nonlocal claims
        seen, node = seen_of(draft, [node_id]), draft.get_blocked(node_id)
        claims = () if node is None else draft.live_claims(node)
        return seen, {node_id: (draft.unblock(node_id), None)}

    return await preview_command(service, visitor, command), claims


def check_seen(draft: Draft, node_ids: Iterable[str], seen: str) -> None:
    """Raise ConflictError unless these nodes are as in the preview with this `seen`."""
    if seen_of(draft, node_ids) != seen:
        raise ConflictError("Someone has changed this since the preview was shown.", {})


def nodes_to_block(requested: BlockForm, now: int) -> list[BlockedNode]:
    """The requested blocks. Raises InvalidError."""
    return [
        BlockedNode(id=node_id, action=requested.action, start=now, end=requested.end, cause=requested.cause)
        for node_id in requested.nodes
    ]


def seen_of(draft: Draft, node_ids: Iterable[str]) -> str:
    """Identifies the blocks of these nodes with all claims: another owner's claim may leave a block as it was."""
    blocks = [draft.get_blocked(node_id) for node_id in node_ids]
    state = [None if node is None else (node, claims_on(draft, node, draft.now)) for node in blocks]
    return hashlib.sha256(repr(state).encode()).hexdigest()[:16]


async def preview_command(service: Service, visitor: Visitor, command: Command[PreviewResult]) -> Preview:
    """Preview a command. Raises what it raises, UnavailableError."""
    dry_run = service.limit_guard.dry_run(command, visitor.principal.role)
    result = (await service.handler.submit(dry_run, visitor.author())).value
    seen, effects = result.value
    nodes = [
        NodePreview(id=node_id, before=before, after=after, task_managers=task_managers_on(service, node_id))
        for node_id, (before, after) in effects.items()
    ]
    known, created = service.known_nodes, [node.id for node in nodes if node.before is None]
    return Preview(
        nodes=nodes,
        shortfalls=result.shortfalls,
        limit_error=result.refusal,
        unknown=known.unknown(created),
        ambiguous=known.ambiguous(created),
        several=known.several(node.id for node in nodes),
        seen=seen,
        ask_above=service.ask_above,
    )


# Block, extend and unblock nodes: form, preview, confirmation.

router = APIRouter(route_class=HtmlRoute, include_in_schema=False)


@router.get("/page/block")
async def get_block(request: Request, visitor: OperatorVisitor) -> Response:
    """The form, filled in with the nodes and fields of the query."""
    nodes = "\n".join(request.query_params.getlist("node"))
    return block_form(request, visitor, {"nodes": nodes[:100_000], **_typed_before(request)})


@router.post("/page/block")
async def post_block(request: Request, visitor: OperatorVisitor, form: SubmittedForm) -> Response:
    """The preview; after confirmation, block the nodes."""
    return await _block(request, visitor, form, None)


@router.get("/page/nodes/{node_id}/extend")
async def get_extend(request: Request, visitor: OperatorVisitor, node_id: NodeId) -> Response:
    """The form, filled in with the current block."""
    node = _blocked_node(service_of(request), node_id)
    return block_form(request, visitor, {**_typed_before(request), "nodes": node_id}, node)


@router.post("/page/nodes/{node_id}/extend")
async def post_extend(request: Request, visitor: OperatorVisitor, node_id: NodeId, form: SubmittedForm) -> Response:
    """Merge another block into the current one: extend it, or change its action or cause, never to a weaker block."""
    node = service_of(request).view.get(node_id)
    if node is None:
        return _block_again(request, visitor, node_id, form)
    return await _block(request, visitor, {**form, "nodes": node_id}, node)


@router.get("/page/nodes/{node_id}/unblock")
async def get_unblock(request: Request, visitor: OperatorVisitor, node_id: NodeId) -> Response:
    return await _unblock_preview(request, visitor, node_id)


@router.post("/page/nodes/{node_id}/unblock")
async def post_unblock(request: Request, visitor: OperatorVisitor, node_id: NodeId, form: SubmittedForm) -> Response:
    """Unblock the node, or remove the visitor's claim; if its block is not what the preview showed, a new preview."""
    owner = form_owner(form, visitor.own_owner)

    def command(draft: Draft) -> object:
        if draft.get_blocked(node_id) is not None:
            check_seen(draft, [node_id], form.get("seen", ""))
        return draft.unblock(node_id) if owner is None else draft.remove_claim(node_id, owner)

    try:
        await service_of(request).handler.submit(command, visitor.author())
    except ConflictError as error:
        return await _unblock_preview(request, visitor, node_id, error.lines)
    return RedirectResponse(f"/page/nodes/{node_id}", HTTPStatus.SEE_OTHER)


async def _unblock_preview(request: Request, visitor: Visitor, node_id: str, conflicts: Sequence[str] = ()) -> Response:
    preview, claims = await preview_unblock(service_of(request), node_id, visitor)
    status = HTTPStatus.CONFLICT if conflicts else HTTPStatus.OK
    return render_page(
        request,
        "unblock.html.j2",
        visitor,
        status,
        preview=preview.nodes[0],
        claims=claims,
        has_own=any(claim.owner == visitor.own_owner for claim in claims),
        seen=preview.seen,
        conflicts=conflicts,
    )


async def _block(request: Request, visitor: Visitor, form: Form, node: BlockedNode | None) -> Response:
    service = service_of(request)
    try:
        form = with_selected_nodes(service, form)
        requested = parse_block_form(form, service.clock(), node, service.inventory.aliases)
    except FormError as error:
        return block_form(request, visitor, form, node, error.errors)
    if "back" in form:
        return block_form(request, visitor, form, node)
    rejection = None
    if "confirmed" in form:
        try:
            await _apply_block(request, visitor, requested, form)
        except (ConflictError, LimitError) as error:
            rejection = error
        else:
            return RedirectResponse(_path_afterwards(requested), HTTPStatus.SEE_OTHER)
    return await _confirmation(request, visitor, requested, form, node, rejection)


async def _apply_block(request: Request, visitor: Visitor, requested: BlockForm, form: Form) -> None:
    """Raises LimitError, ConflictError if a block was made or changed since the preview, and others."""
    merge = form.get("merge") == "yes"

    def command(draft: Draft) -> object:
        nodes = nodes_to_block(requested, draft.now)
        if merge and not _all_blocked(draft, nodes):
            check_seen(draft, requested.nodes, form.get("seen", ""))
        return draft.block_many({node.id: (node, merge) for node in nodes})

    forced = force_reason(visitor, form)
    await submit_within_limits(request, command, visitor.principal, visitor.author(forced=forced))


def _all_blocked(draft: Draft, nodes: Sequence[BlockedNode]) -> bool:
    """Whether merging with these blocks changes nothing, for example because they were confirmed twice."""
    trial = draft.fork()
    return all(trial.get_blocked(node.id) == trial.block(node, allow_merge=True) for node in nodes)


async def _confirmation(
    request: Request,
    visitor: Visitor,
    requested: BlockForm,
    form: Form,
    node: BlockedNode | None,
    rejection: BlocklistError | None,
) -> Response:
    preview = await preview_block(service_of(request), requested, visitor)
    fields = {name: form.get(name, "") for name in FIELDS} | {"end": str(requested.end)}
    if preview.already_blocked:
        fields |= {"merge": "yes", "seen": preview.seen}
    # The preview reports limits. A conflict means that a block was made or changed after the preview was shown.
    conflicts = rejection.lines if isinstance(rejection, ConflictError) else ()
    status = HTTPStatus.OK if rejection is None else HTTPStatus.CONFLICT
    return render_page(
        request,
        "confirm.html.j2",
        visitor,
        status,
        requested=requested,
        preview=preview,
        fields=fields,
        path=_form_path(node),
        current=node,
        conflicts=conflicts,
    )


def block_form(
    request: Request,
    visitor: Visitor,
    form: Form,
    node: BlockedNode | None = None,
    errors: dict[str, str] | None = None,
    names: Sequence[str] = (),
    changed: Sequence[str] = (),
) -> Response:
    """The form that blocks nodes, or extends the block of this `node` or of these `names`."""
    return render_page(
        request,
        "block.html.j2",
        visitor,
        HTTPStatus.BAD_REQUEST if errors else HTTPStatus.OK,
        form={**initial_form(service_of(request).settings.default_end, node), **form},
        errors=errors or {},
        node=node,
        names=names,
        changed=changed,
        path="/page/selection/extend" if names else _form_path(node),
    )


def _block_again(request: Request, visitor: Visitor, node_id: str, form: Form) -> Response:
    """The form that blocks, with what was typed to extend a block that is gone by now."""
    typed = {name: form[name] for name in ("action", "cause", "until") if name in form}
    if (ends := form.get("ends")) in {"until", "never"}:
        typed["ends"] = ends
    gone = f"{not_blocked_message(node_id).removesuffix('.')} any more. To block it again, use this form."
    return block_form(request, visitor, {**typed, "nodes": node_id}, errors={"nodes": gone})


def _typed_before(request: Request) -> Form:
    """What was typed before the session ended."""
    return {name: value for name, value in request.query_params.items() if name in FIELDS}


def _form_path(node: BlockedNode | None) -> str:
    return "/page/block" if node is None else f"/page/nodes/{node.id}/extend"


def _path_afterwards(requested: BlockForm) -> str:
    return f"/page/nodes/{requested.nodes[0]}" if len(requested.nodes) == 1 else "/"


def _blocked_node(service: Service, node_id: str) -> BlockedNode:
    node = service.view.get(node_id)
    if node is None:
        raise NotFoundError(not_blocked_message(node_id))
    return node


def force_reason(visitor: Visitor, form: Form) -> str | None:
    """The reason for overriding a limit, or None. Raises ForbiddenError, InvalidError."""
    reason = " ".join(form.get("force", "").split())
    if not reason:
        return None
    if not visitor.may_force:
        raise ForbiddenError("To override a limit requires the role admin.")
    if len(reason) > MAX_CAUSE_LENGTH:
        raise InvalidError(f"The reason may have at most {MAX_CAUSE_LENGTH:,} characters.")
    return check_text(reason)


# A selector in place of node names in the form that blocks nodes.

_SYMBOLS: Final = frozenset("=!()")
"""Characters of selectors that no node id and no range has."""


def with_selected_nodes(service: Service, form: Form) -> Form:
    """The form with the names of the selected nodes in place of a selector. Raises FormError.

    So the preview shows what a confirmation blocks, even if labels change in between.
    """
    text = form.get("nodes", "")
    if _SYMBOLS.isdisjoint(text):
        return form
    try:
        selection = select_nodes(parse_selector(text), service.inventory)
        selection.require_known_labels()
        return {**form, "nodes": "\n".join(selection.require_nodes(MAX_NODES))}
    except BlocklistError as error:
        raise FormError({"nodes": error.detail}) from None
