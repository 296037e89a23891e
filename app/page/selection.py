"""Extend, evacuate or unblock several nodes at once: the nodes are chosen in the list, one by one or by cause."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Final
from urllib.parse import parse_qsl

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse

from app.api.change import submit_within_limits
from app.engine.handler import Command
from app.page.change import Preview, PreviewResult, block_form, force_reason, preview_command, seen_of
from app.page.forms import (
    FIELDS,
    Form,
    FormError,
    HtmlRoute,
    SubmittedForm,
    form_cause,
    form_owner,
    parse_until,
    read_pairs,
)
from app.page.list import groups_of, matching_nodes, parse_filter
from app.page.shared import OperatorVisitor, Visitor, render_page
from app.service import Service, service_of
from blocklist.model.claims import claim_of
from blocklist.model.draft import Draft
from blocklist.model.errors import BlocklistError, ConflictError, InvalidError, LimitError, NotFoundError
from blocklist.model.node import MAX_NODES, PERMANENT, BlockAction, BlockedNode, parse_duration

# Changes of several blocked nodes at once: what a preview shows is what its confirmation changes, all or none.

MAX_NAMED = 20
"""Maximum number of nodes that a message names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unblocking:
    """Remove the claims of an owner on the nodes; of all owners without one."""

    owner: str | None = None

    def apply(self, draft: Draft, nodes: Sequence[BlockedNode]) -> dict[str, BlockedNode | None]:
        """Change the nodes of the draft; return what they are afterwards."""
        for node in nodes:
            if self.owner is None:
                draft.unblock(node.id)
            elif claim_of(draft.live_claims(node), self.owner) is not None:
                draft.remove_claim(node.id, self.owner)
        return {node.id: draft.get_blocked(node.id) for node in nodes}


@dataclass(frozen=True, kw_only=True, slots=True)
class Extension:
    """Merge another block into that of each node: `by` milliseconds after its end, or until `end`, or as long as now.

    Never to an earlier end or a weaker action. Without a `cause`, each block keeps its own.
    """

    by: int = 0
    end: int = 0
    evacuate: bool = False
    cause: str = ""

    def apply(self, draft: Draft, nodes: Sequence[BlockedNode]) -> dict[str, BlockedNode | None]:
        """Change the nodes of the draft; return what they are afterwards."""
        return {**draft.block_many({node.id: (self._block(node, draft.now), True) for node in nodes})}

    def _block(self, node: BlockedNode, now: int) -> BlockedNode:
        # Merging a part of the current cause changes nothing; the whole cause could be too long.
        cause = self.cause or next((part for part in node.cause.split(",") if part), node.cause)
        action = BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS if self.evacuate else node.action
        end = min(max(node.end + self.by, self.end), PERMANENT)
        return BlockedNode(id=node.id, action=action, start=now, end=end, cause=cause)


SelectionChange = Unblocking | Extension


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectionPreview:
    """`done` identifies the blocks after the change, `free` are nodes that were chosen but are not blocked any more.

    `owners` are those of the claims on each node, before the change.
    """

    preview: Preview
    done: str
    free: Sequence[str]
    owners: Mapping[str, Sequence[str]]

    @property
    def names(self) -> str:
        """The nodes, as the confirmation sends them."""
        return " ".join(node.id for node in self.preview.nodes)

    @property
    def changed(self) -> int:
        """The number of nodes that would change."""
        return sum(not node.unchanged for node in self.preview.nodes)


def parse_extension(form: Form, now: int) -> Extension:
    """Parse the form to extend several blocks. Raises FormError."""
    errors: dict[str, str] = {}
    by = end = 0
    try:
        by, end = _ends(form, now)
    except ValueError as error:
        errors["ends"] = str(error)
    cause = ""
    try:
        cause = form_cause(form)
    except ValueError as error:
        errors["cause"] = str(error)
    if form.get("action") not in {"keep", "evacuate"}:
        errors["action"] = "Choose an action."
    evacuate = form.get("action") == "evacuate"
    if not errors and not (by or end or cause or evacuate):
        errors["ends"] = "Nothing would change: choose a later end, another action or another reason."
    if errors:
        raise FormError(errors)
    return Extension(by=by, end=end, evacuate=evacuate, cause=cause)


def _ends(form: Form, now: int) -> tuple[int, int]:
    match form.get("ends"):
        case "by":
            return parse_duration("".join(form.get("by", "").split())), 0
        case "until":
            return 0, parse_until(form.get("until", ""), now)
        case "never":
            return 0, PERMANENT
        case "same":
            return 0, 0
    raise ValueError("Choose when the blocks end.")


def names_of(text: str) -> list[str]:
    """The names of nodes in a field of the page. Raises InvalidError for none and for too many."""
    names = list(dict.fromkeys(text.split()))
    if not names:
        raise InvalidError("No node is selected: select at least one and try again. Nothing was changed.")
    check_number(len(names))
    return names


def check_number(count: int) -> None:
    """Raise InvalidError for more nodes than one request may change."""
    if count > MAX_NODES:
        raise InvalidError(
            f"{count:,} nodes are selected; at most {MAX_NODES:,} can be changed at once. Filter the list, or select"
            " fewer nodes. Nothing was changed."
        )


async def preview_selection(
    service: Service, visitor: Visitor, change: SelectionChange, names: Sequence[str]
) -> SelectionPreview:
    """What the change would do to those of the nodes that are blocked. Raises NotFoundError if none is."""
    found: tuple[str, list[str]] = "", []
    owners: dict[str, list[str]] = {}

    def command(draft: Draft) -> PreviewResult:
        nonlocal found, owners
        before = _blocked(draft, names)
        owners = {node.id: [claim.owner for claim in draft.live_claims(node)] for node in before}
        if not before:
            raise NotFoundError("None of the selected nodes is blocked any more.")
        seen = _seen_each(draft, before)
        after = change.apply(draft, before)
        present = {node.id for node in before}
        found = _state(after.values()), [name for name in names if name not in present]
        return seen, {node.id: (node, after[node.id]) for node in before}

    preview = await preview_command(service, visitor, command)
    return SelectionPreview(preview=preview, done=found[0], free=found[1], owners=owners)


def confirmed(change: SelectionChange, names: Sequence[str], seen: str, done: str) -> Command[object]:
    """The command that changes these nodes if they are as the preview showed them; nothing if that is done already.

    It raises ConflictError with the nodes that have changed.
    """

    def command(draft: Draft) -> object:
        nodes = [draft.get_blocked(name) for name in names]
        if _state(nodes) == done:
            return None
        changed = _changed(draft, names, seen)
        if changed:
            raise ConflictError("Nodes have changed since the preview was shown.", {}, [_changed_message(changed)])
        return change.apply(draft, [node for node in nodes if node is not None])

    return command


def _blocked(draft: Draft, names: Iterable[str]) -> list[BlockedNode]:
    """The blocked nodes with these ids."""
    return [node for name in names if (node := draft.get_blocked(name)) is not None and node.id == name]


def _seen_each(draft: Draft, nodes: Iterable[BlockedNode]) -> str:
    return " ".join(seen_of(draft, [node.id])[:8] for node in nodes)


def _changed(draft: Draft, names: Sequence[str], seen: str) -> list[str]:
    """The nodes whose blocks or claims are not those that were seen."""
    before = seen.split()
    before += [""] * (len(names) - len(before))
    return [name for name, own in zip(names, before, strict=False) if seen_of(draft, [name])[:8] != own]


def _changed_message(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
    return f"Changed since the preview was shown: {', '.join(names[:MAX_NAMED])}{more}."


def _state(nodes: Iterable[BlockedNode | None]) -> str:
    """Identifies what is blocked, until when, how and why."""
    blocks = [None if node is None else (node.id, node.short_action, node.end, node.cause) for node in nodes]
    return hashlib.sha256(repr(blocks).encode()).hexdigest()[:16]


router = APIRouter(route_class=HtmlRoute, include_in_schema=False)

_DIGITS: Final = re.compile(r"[0-9]{1,16}", re.ASCII)


async def _checked_nodes(request: Request, _: OperatorVisitor) -> list[str]:
    return [value for name, value in await read_pairs(request) if name == "node"]


@router.get("/page/selection")
@router.get("/page/selection/extend")
@router.get("/page/selection/unblock")
async def get_selection(_: OperatorVisitor) -> Response:
    """A selection is not kept when the session ends: back to the list."""
    return RedirectResponse("/", HTTPStatus.SEE_OTHER)


@router.post("/page/selection")
async def post_selection(
    request: Request,
    visitor: OperatorVisitor,
    form: SubmittedForm,
    nodes: Annotated[list[str], Depends(_checked_nodes)],
) -> Response:
    """The form or the preview of what is to be done (`do`) with the nodes that are checked, or with all that match."""
    service = service_of(request)
    chosen, changed = await choose(service, form, nodes)
    names = names_of(" ".join(chosen))
    match form.get("do"):
        case "unblock":
            change = Unblocking(owner=visitor.own_owner)
            return await _preview(request, visitor, change, names, form, changed=changed)
        case "extend" | "evacuate" as action:
            initial = {"action": "keep", "ends": "by"} if action == "extend" else {"action": action, "ends": "same"}
            initial["nodes"] = " ".join(names)
            return block_form(request, visitor, initial, names=names, changed=changed)
    raise InvalidError("Choose what to do with the selected nodes. Nothing was changed.")


@router.post("/page/selection/unblock")
async def post_unblock(request: Request, visitor: OperatorVisitor, form: SubmittedForm) -> Response:
    """Unblock the nodes, or remove the visitor's claims, if they are as the preview showed them."""
    if "all" in form:
        return await _preview(request, visitor, Unblocking(), names_of(form.get("nodes", "")), form)
    change = Unblocking(owner=form_owner(form, visitor.own_owner))
    return await _apply(request, visitor, change, form)


@router.post("/page/selection/extend")
async def post_extend(request: Request, visitor: OperatorVisitor, form: SubmittedForm) -> Response:
    """The preview; after confirmation, extend the blocks."""
    names = names_of(form.get("nodes", ""))
    if "back" in form:
        return block_form(request, visitor, form, names=names)
    try:
        change = parse_extension(form, service_of(request).clock())
    except FormError as error:
        return block_form(request, visitor, form, errors=error.errors, names=names)
    if "confirmed" in form:
        return await _apply(request, visitor, change, form)
    return await _preview(request, visitor, change, names, form)


async def choose(service: Service, form: Form, checked: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The nodes that a form of the list means, and those left out because they have changed since the page was shown.

    Raises InvalidError for too many.
    """
    if form.get("all") != "yes":
        return checked, ()
    list_filter = parse_filter(dict(parse_qsl(form.get("filter", "").removeprefix("?"))))
    if list_filter.group:
        named = form.get("cause"), form.get("owner")
        groups = [group for group in await groups_of(service, list_filter) if (group.cause, group.owner) == named]
        matched = [node.id for group in groups for node in group.nodes]
    else:
        matched = [node.id for node in matching_nodes(service, list_filter)]
    shown = int(revision) if _DIGITS.fullmatch(revision := form.get("revision", "")) else 0
    changed = {name for name in matched if (last := service.last_changes.get(name)) and last.revision > shown}
    check_number(len(matched) - len(changed))
    return [name for name in matched if name not in changed], [name for name in matched if name in changed]


async def _apply(request: Request, visitor: Visitor, change: SelectionChange, form: Form) -> Response:
    names = names_of(form.get("nodes", ""))
    command = confirmed(change, names, form.get("seen", ""), form.get("done", ""))
    author = visitor.author(forced=force_reason(visitor, form))
    try:
        await submit_within_limits(request, command, visitor.principal, author)
    except (ConflictError, LimitError) as error:
        return await _preview(request, visitor, change, names, form, error)
    return RedirectResponse("/", HTTPStatus.SEE_OTHER)


async def _preview(
    request: Request,
    visitor: Visitor,
    change: SelectionChange,
    names: Sequence[str],
    form: Form,
    rejection: BlocklistError | None = None,
    changed: Sequence[str] = (),
) -> Response:
    found = await preview_selection(service_of(request), visitor, change, names)
    unblocks = isinstance(change, Unblocking)
    only_own = isinstance(change, Unblocking) and change.owner is not None
    fields = ({"only": "own"} if only_own else {}) if unblocks else {name: form.get(name, "") for name in FIELDS}
    return render_page(
        request,
        "selection_confirm.html.j2",
        visitor,
        HTTPStatus.OK if rejection is None else HTTPStatus.CONFLICT,
        found=found,
        preview=found.preview,
        change=change,
        unblocks=unblocks,
        only_own=only_own,
        fields=fields | {"nodes": found.names, "seen": found.preview.seen, "done": found.done},
        # The preview reports limits.
        conflicts=rejection.lines if isinstance(rejection, ConflictError) else (),
        changed=changed,
    )
