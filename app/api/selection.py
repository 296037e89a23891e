"""`?selector=`: the nodes with these labels, and the changes of all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final

from fastapi import Depends, Query, Request

from app.engine.handler import Command
from app.requests import BlockRequest
from app.service import Service
from blocklist.model.claims import claim_of
from blocklist.model.draft import Draft
from blocklist.model.errors import InvalidError, NotFoundError
from blocklist.model.inventory import label_hints, select_nodes, selects
from blocklist.model.node import MAX_NODES, BlockedNode
from blocklist.model.selector import MAX_LENGTH, Selector, parse_selector

# The syntax of blocklist.model.selector, for JSON Schema.
_WS: Final = r"[ \t\r\n]*"
_NAME: Final = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY: Final = f"([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?{_NAME}"
_LIST: Final = f"[(]{_WS}({_NAME})?{_WS}(,{_WS}({_NAME})?{_WS})*[)]"
_PART: Final = f"(!{_WS}{_KEY}|{_KEY}({_WS}(=|==|!=){_WS}({_NAME})?)?|{_KEY}[ \\t\\r\\n]{_WS}(in|notin){_WS}{_LIST})"
_PARTS: Final = f"{_WS}{_PART}{_WS}(,{_WS}{_PART}{_WS}){{0,31}}"


def _parameter(pattern: str) -> Any:
    return Query(
        max_length=MAX_LENGTH,
        description="Only nodes with these labels, in kubectl's syntax: `=`, `==`, `!=`, `in`, `notin`, `key`, `!key`,"
        " joined by commas that mean and.",
        examples=["rack=r12,pool in (batch, gpu)"],
        # Not `pattern`: the parser's error has the position.
        json_schema_extra={"pattern": pattern},
    )


_PARAMETER: Final = _parameter(f"^{_PARTS}$")
# A read may have an empty selector, which selects every node; a change may not.
_PARAMETER_OF_READS: Final = _parameter(f"^({_PARTS}|{_WS})$")


async def _required(request: Request, selector: Annotated[str, _PARAMETER]) -> Selector:
    if len(request.query_params.getlist("selector")) > 1:
        raise InvalidError("selector: give it once; a comma joins its parts.")
    return parse_selector(selector)


async def _optional(request: Request, selector: Annotated[str | None, _PARAMETER] = None) -> Selector | None:
    return None if selector is None else await _required(request, selector)


async def _of_read(request: Request, selector: Annotated[str | None, _PARAMETER_OF_READS] = None) -> Selector | None:
    return await _optional(request, selector)


RequiredSelector = Annotated[Selector, Depends(_required)]
"""The selector in the query. Raises InvalidError."""
OptionalSelector = Annotated[Selector | None, Depends(_optional)]
"""The selector in the query, or None. Raises InvalidError."""
ReadSelector = Annotated[Selector | None, Depends(_of_read)]
"""The selector in the query of a read, or None; an empty one selects every node. Raises InvalidError."""


def block_selected(
    service: Service, selector: Selector, block: BlockRequest, *, strict: bool
) -> Command[dict[str, BlockedNode]]:
    """The command that blocks all nodes that are selected when it runs; if `strict`, only by labels that exist.

    Raises InvalidError for an empty selector. The command also raises NotFoundError, UnknownNodeError.
    """
    now = service.clock()
    block.node("any", now)  # Raises what is wrong with the request, before it is queued.
    _require_labels(selector)

    def run(draft: Draft) -> dict[str, BlockedNode]:
        selection = select_nodes(selector, service.inventory)
        if strict:
            selection.require_known_labels()
        selected = selection.require_nodes(MAX_NODES)
        return draft.block_many({node_id: (block.node(node_id, now), block.allow_merge) for node_id in selected})

    return run


@dataclass(frozen=True, kw_only=True, slots=True)
class UnblockedSelection:
    """The nodes that were selected, and those of them that were blocked, as they were."""

    selected: Sequence[str]
    unblocked: dict[str, BlockedNode]


def unblock_selected(service: Service, selector: Selector, owner: str | None = None) -> Command[UnblockedSelection]:
    """The command that unblocks those of the selected nodes that are blocked, or removes the claims of `owner` on them.

    Raises InvalidError for an empty selector. The command raises NotFoundError if no node is selected or none of them
    is blocked, InvalidError for too many.
    """
    _require_labels(selector)

    def run(draft: Draft) -> UnblockedSelection:
        selected = select_nodes(selector, service.inventory).require_nodes()
        blocked = [node_id for node_id in selected if _is_blocked(draft, node_id, owner)]
        if not blocked:
            by_whom = "is blocked" if owner is None else f"is blocked by {owner}"
            raise NotFoundError(f"None of the {len(selected):,} nodes that {selector} selects {by_whom}.")
        if len(blocked) > MAX_NODES:
            raise InvalidError(
                f"{len(blocked):,} of the nodes that {selector} selects are blocked; at most {MAX_NODES:,} can be"
                " changed at once. Nothing was changed."
            )
        # Two known nodes may be one block, under their short name.
        unblocked = {
            node_id: draft.unblock(node_id) if owner is None else draft.remove_claim(node_id, owner)
            for node_id in blocked
            if _is_blocked(draft, node_id, owner)
        }
        return UnblockedSelection(selected=selected, unblocked=unblocked)

    return run


def _is_blocked(draft: Draft, node_id: str, owner: str | None) -> bool:
    """Whether a node is blocked, by this owner if one is given."""
    node = draft.get_blocked(node_id)
    return node is not None and (owner is None or claim_of(draft.live_claims(node), owner) is not None)


def _require_labels(selector: Selector) -> None:
    if not selector:
        raise InvalidError("selector: it is empty, and would select every node. Name a label. Nothing was changed.")


def selected_by(service: Service, selector: Selector | None) -> Callable[[str], bool] | None:
    """Whether a node id is selected, by the labels at the moment of the call; None if there is no selector."""
    if not selector:
        return None
    return partial(selects, selector, service.inventory)


def warnings_of(service: Service, selector: Selector | None) -> list[tuple[bytes, bytes]]:
    """A Warning header, as Kubernetes sends it, for each label in the selector that no known node has."""
    hints = [] if selector is None else label_hints(selector, service.inventory)
    return [(b"warning", b'299 - "%b"' % hint.encode()) for hint in hints]
