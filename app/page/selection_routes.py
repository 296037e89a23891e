"""Extend, evacuate or unblock several nodes at once: the nodes are chosen in the list, one by one or by cause."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Final
from urllib.parse import parse_qsl

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse

from app.api.change import submit_within_limits
from app.page.block_routes import force_reason
from app.page.errors import HtmlRoute
from app.page.forms import FIELDS, Form, FormError, SubmittedForm, initial_form, read_pairs
from app.page.groups import groups_of
from app.page.list_model import matching_nodes, parse_filter
from app.page.render import render_page
from app.page.selection import (
    SelectionChange,
    Unblocking,
    check_number,
    confirmed,
    names_of,
    parse_extension,
    preview_selection,
)
from app.page.visitor import OperatorVisitor, Visitor
from app.service import Service, service_of
from blocklist.model.errors import BlocklistError, ConflictError, InvalidError, LimitError

router = APIRouter(route_class=HtmlRoute, include_in_schema=False)

_DIGITS: Final = re.compile(r"[0-9]{1,16}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The chosen nodes, and those that were left out because they have changed since the page was shown."""

    names: Sequence[str]
    changed: Sequence[str] = ()


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
    chosen = await choose(service, form, nodes)
    names = names_of(" ".join(chosen.names))
    match form.get("do"):
        case "unblock":
            return await _preview(request, visitor, Unblocking(), names, form, changed=chosen.changed)
        case "extend" | "evacuate" as action:
            initial = {**initial_form(service.settings.default_duration), "nodes": " ".join(names)}
            action_and_end = ("keep", "by") if action == "extend" else ("evacuate", "same")
            initial |= dict(zip(("action", "ends"), action_and_end, strict=True))
            return _form(request, visitor, initial, changed=chosen.changed)
    raise InvalidError("Choose what to do with the selected nodes. Nothing was changed.")


@router.post("/page/selection/unblock")
async def post_unblock(request: Request, visitor: OperatorVisitor, form: SubmittedForm) -> Response:
    """Unblock the nodes, if they are as the preview showed them."""
    return await _apply(request, visitor, Unblocking(), form)


@router.post("/page/selection/extend")
async def post_extend(request: Request, visitor: OperatorVisitor, form: SubmittedForm) -> Response:
    """The preview; after confirmation, extend the blocks."""
    names = names_of(form.get("nodes", ""))
    if "back" in form:
        return _form(request, visitor, form)
    try:
        change = parse_extension(form, service_of(request).clock())
    except FormError as error:
        return _form(request, visitor, form, error.errors)
    if "confirmed" in form:
        return await _apply(request, visitor, change, form)
    return await _preview(request, visitor, change, names, form)


async def choose(service: Service, form: Form, checked: Sequence[str]) -> Chosen:
    """The nodes that a form of the list means. Raises InvalidError for too many."""
    if form.get("all") != "yes":
        return Chosen(checked)
    list_filter = parse_filter(dict(parse_qsl(form.get("filter", "").removeprefix("?"))))
    if list_filter.group:
        named = form.get("cause"), form.get("owner")
        groups = [group for group in await groups_of(service, list_filter) if (group.cause, group.owner) == named]
        matched = [node.id for group in groups for node in group.nodes]
    else:
        matched = [node.id for node in matching_nodes(service, list_filter)]
    return unchanged_since(service, matched, form.get("revision", ""))


def unchanged_since(service: Service, names: Sequence[str], revision: str) -> Chosen:
    """Only the nodes whose last change is not later than what the page showed. Raises InvalidError for too many."""
    shown = int(revision) if _DIGITS.fullmatch(revision) else 0
    last_changes = service.last_changes
    changed = [name for name in names if (last := last_changes.get(name)) is not None and last.revision > shown]
    check_number(len(names) - len(changed))
    left_out = set(changed)
    return Chosen([name for name in names if name not in left_out], changed)


async def _apply(request: Request, visitor: Visitor, change: SelectionChange, form: Form) -> Response:
    service, names = service_of(request), names_of(form.get("nodes", ""))
    command = confirmed(change, names, form.get("seen", ""), form.get("done", ""))
    author = visitor.author(forced=force_reason(visitor, form))
    try:
        await submit_within_limits(service, command, visitor.principal, author)
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
    fields = {} if unblocks else {name: form.get(name, "") for name in FIELDS}
    return render_page(
        request,
        "selection_confirm.html.j2",
        visitor,
        HTTPStatus.OK if rejection is None else HTTPStatus.CONFLICT,
        found=found,
        preview=found.preview,
        change=change,
        unblocks=unblocks,
        fields=fields | {"nodes": found.names, "seen": found.preview.seen, "done": found.done},
        # The preview reports limits.
        conflicts=rejection.lines if isinstance(rejection, ConflictError) else (),
        changed=changed,
    )


def _form(
    request: Request,
    visitor: Visitor,
    form: Form,
    errors: dict[str, str] | None = None,
    changed: Sequence[str] = (),
) -> Response:
    status = HTTPStatus.BAD_REQUEST if errors else HTTPStatus.OK
    names = names_of(form.get("nodes", ""))
    return render_page(
        request,
        "selection_form.html.j2",
        visitor,
        status,
        form={**dict.fromkeys(FIELDS, ""), **form},
        names=names,
        errors=errors or {},
        changed=changed,
    )
