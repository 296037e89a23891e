"""Block, extend and unblock: a form, a page that says what it would do, and then it is done."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from app.api.parameters import NodeId
from app.components import Service, service_of
from app.page.csrf_form import Sent
from app.page.errors import HtmlRoute
from app.page.forms import EMPTY, Form, FormError, Wish, read_wish
from app.page.preview import blocked, preview_block, preview_unblock
from app.page.render import page
from app.page.visitor import Changing, Visitor
from blocklist.model.draft import Draft, not_blocked
from blocklist.model.errors import (
    BlocklistError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    LimitError,
    NotFoundError,
)
from blocklist.model.node import MAX_CAUSE, BlockedNode, check_text

router = APIRouter(route_class=HtmlRoute, include_in_schema=False)


@router.get("/page/block")
async def get_block(request: Request, visitor: Changing) -> Response:
    """The form, with nodes if the address names some."""
    nodes = "\n".join(request.query_params.getlist("node"))
    return _form(request, visitor, {**EMPTY, "nodes": nodes[:100_000]})


@router.post("/page/block")
async def post_block(request: Request, visitor: Changing, form: Sent) -> Response:
    """First what it would do; confirmed, it is done."""
    return await _block(request, visitor, form, None)


@router.get("/page/nodes/{node_id}/extend")
async def get_extend(request: Request, visitor: Changing, node_id: NodeId) -> Response:
    """The form, as the block is now."""
    node = _present(service_of(request), node_id)
    return _form(request, visitor, {**EMPTY, "nodes": node_id, "action": node.action.word}, node)


@router.post("/page/nodes/{node_id}/extend")
async def post_extend(request: Request, visitor: Changing, node_id: NodeId, form: Sent) -> Response:
    """The same as a block that is merged with the present one: so it never ends earlier, nor gets weaker."""
    node = _present(service_of(request), node_id)
    return await _block(request, visitor, {**form, "nodes": node_id}, node)


@router.get("/page/nodes/{node_id}/unblock")
async def get_unblock(request: Request, visitor: Changing, node_id: NodeId) -> Response:
    """What it would do."""
    preview = await preview_unblock(service_of(request), node_id, visitor)
    return page(request, "unblock.html.j2", visitor, touched=preview.nodes[0])


@router.post("/page/nodes/{node_id}/unblock")
async def post_unblock(request: Request, visitor: Changing, node_id: NodeId, _: Sent) -> Response:
    """It is done."""
    handler = service_of(request).handler
    await handler.submit(lambda draft: draft.unblock(node_id), visitor.author())
    return RedirectResponse(f"/page/nodes/{node_id}", HTTPStatus.SEE_OTHER)


async def _block(request: Request, visitor: Visitor, form: Form, present: BlockedNode | None) -> Response:
    service = service_of(request)
    try:
        wish = read_wish(form, service.clock(), present)
    except FormError as error:
        return _form(request, visitor, form, present, error.faults)
    if "back" in form:
        return _form(request, visitor, form, present)
    said = None
    if "confirmed" in form:
        try:
            await _carry_out(service, visitor, wish, form)
        except (ConflictError, LimitError) as error:
            said = error
        else:
            return RedirectResponse(_after(wish), HTTPStatus.SEE_OTHER)
    return await _ask(request, visitor, wish, form, present, said)


async def _carry_out(service: Service, visitor: Visitor, wish: Wish, form: Form) -> None:
    """Raises LimitError, ConflictError for a block that came since it was asked, and others."""
    merge = form.get("merge") == "yes"

    def command(draft: Draft) -> object:
        return draft.block_many({node.id: (node, merge) for node in blocked(wish, draft.now)})

    forced = _forced(visitor, form)
    guarded = service.guard.guarded(command, visitor.principal.access)
    await service.handler.submit(guarded, visitor.author(forced=forced))


async def _ask(
    request: Request,
    visitor: Visitor,
    wish: Wish,
    form: Form,
    present: BlockedNode | None,
    said: BlocklistError | None,
) -> Response:
    preview = await preview_block(service_of(request), wish, visitor)
    kept = {name: form.get(name, "") for name in EMPTY}
    fields = kept | ({"merge": "yes"} if preview.known else {})
    # A limit is said by the preview; a conflict is news: somebody was quicker.
    news = said.lines if isinstance(said, ConflictError) else ()
    status = HTTPStatus.OK if said is None else HTTPStatus.CONFLICT
    return page(
        request,
        "confirm.html.j2",
        visitor,
        status,
        wish=wish,
        preview=preview,
        fields=fields,
        path=_here(present),
        extends=present is not None,
        news=news,
    )


def _form(
    request: Request,
    visitor: Visitor,
    form: Form,
    present: BlockedNode | None = None,
    faults: dict[str, str] | None = None,
) -> Response:
    status = HTTPStatus.BAD_REQUEST if faults else HTTPStatus.OK
    values = {**EMPTY, **form}
    path = _here(present)
    return page(request, "block.html.j2", visitor, status, form=values, faults=faults or {}, node=present, path=path)


def _here(present: BlockedNode | None) -> str:
    return "/page/block" if present is None else f"/page/nodes/{present.id}/extend"


def _after(wish: Wish) -> str:
    return f"/page/nodes/{wish.nodes[0]}" if len(wish.nodes) == 1 else "/"


def _present(service: Service, node_id: str) -> BlockedNode:
    node = service.view.get(node_id)
    if node is None:
        raise NotFoundError(not_blocked(node_id))
    return node


def _forced(visitor: Visitor, form: Form) -> str | None:
    """Why a limit is to be passed, if it is. Raises ForbiddenError, InvalidError."""
    reason = " ".join(form.get("force", "").split())
    if not reason:
        return None
    if not visitor.may_force:
        raise ForbiddenError("Only an admin may go beyond a limit.")
    if len(reason) > MAX_CAUSE:
        raise InvalidError(f"The reason may have {MAX_CAUSE:,} characters.")
    return check_text(reason)
