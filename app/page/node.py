"""The page of a node: its block and claims, the jobs that run there, what is reported about it, and its changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from fastapi import APIRouter, Request, Response

from app.api.applied import ListenerProgress, applied_by_live_listeners
from app.api.parameters import NodeId
from app.page.block_intervals import BlockInterval, intervals
from app.page.charts import WIDTH, Box, time_labels
from app.page.errors import HtmlRoute
from app.page.excerpt import Excerpt
from app.page.forms import int_param
from app.page.node_model import node_state
from app.page.render import render_page
from app.page.visitor import ReaderVisitor, Visitor
from app.service import Service, service_of
from blocklist.model.changes import Change
from blocklist.model.claims import DETECTION_OWNER, Claim, claim_of
from blocklist.model.errors import UnavailableError
from blocklist.model.evidence import EVIDENCE_OWNER, TTL_MS
from blocklist.model.node import BlockAction, BlockedNode
from blocklist.model.tracker import claims_on

# The history of a node as its page shows it: a page of changes, and the last days as a strip. Bounded.

# When a node was blocked in the last days, as a strip. Pure; times are Unix milliseconds.

HEIGHT: Final = 22
"""Height of the strip, without its labels."""
_MIN_WIDTH: Final = 2.0
_KINDS: Final = {BlockAction.MARK_BLOCKED: "mark", BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS: "evacuate"}


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockStrip:
    """The blocks of a node in [begin, end): how many there were, and how long it was blocked in all.

    Nothing is known before `known_since`; merges and overlapping blocks are one.
    """

    begin: int
    end: int
    known_since: int
    boxes: Sequence[Box]
    time_labels: Sequence[tuple[float, str]]
    blocks: int
    blocked_ms: int

    @property
    def complete(self) -> bool:
        return self.known_since <= self.begin


def block_strip(
    changes: Iterable[Change], current: Mapping[str, BlockedNode], begin: int, known_since: int, now: int
) -> BlockStrip:
    """The strip of a node from its changes, in order, and its current block; the changes before `known_since` are not
    known.
    """
    known_since = min(max(begin, known_since), now)
    found = intervals((change for change in changes if change.at >= known_since), current, known_since, now)
    together = _together(found)
    boxes = [_box("unknown", begin, known_since, begin, now)] if known_since > begin else []
    boxes += [_box(_KINDS[each.node.action], each.begin, each.end, begin, now) for each in found]
    return BlockStrip(
        begin=begin,
        end=now,
        known_since=known_since,
        boxes=boxes,
        time_labels=time_labels(begin, now, left=0),
        blocks=len(together),
        blocked_ms=sum(end - start for start, end in together),
    )


def _together(found: Iterable[BlockInterval]) -> list[tuple[int, int]]:
    """The times in which any block was in force."""
    merged: list[tuple[int, int]] = []
    for each in sorted(found, key=lambda interval: interval.begin):
        if merged and each.begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], each.end)
        else:
            merged.append((each.begin, each.end))
    return merged


def _box(kind: str, start: int, end: int, begin: int, now: int) -> Box:
    scale = WIDTH / max(1, now - begin)
    width = max(_MIN_WIDTH, (end - start) * scale)
    return Box(kind, round(min((start - begin) * scale, WIDTH - width), 1), 0, round(width, 1), HEIGHT)


PAGE_SIZE: Final = 50
"""Maximum number of changes on a page."""
MAX_CHANGES: Final = 200
"""Maximum number of changes of which the strip consists, however many there are in the log."""
STRIP_DAYS: Final = 30
_DAY: Final = 86_400_000


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeHistory:
    """A page of changes, the newest first; `older` is where the next page begins, `last` the node's last change.

    `strip` is on the first page only.
    """

    changes: Sequence[Change]
    older: int | None
    last: Change | None
    strip: BlockStrip | None


async def node_history(service: Service, node_id: str, block: BlockedNode | None, before: int | None) -> NodeHistory:
    """The changes of a node under any of its names, before a revision. Raises UnavailableError."""
    store = service.store
    limit = (MAX_CHANGES if before is None else PAGE_SIZE) + 1
    changes = await store.latest_changes(limit, node_id=node_id, before=before)
    last = changes[0] if changes and before is None else await store.last_change(node_id)
    return NodeHistory(
        changes=changes[:PAGE_SIZE],
        older=changes[PAGE_SIZE - 1].revision if len(changes) > PAGE_SIZE else None,
        last=last,
        strip=await _strip(service, changes, block) if before is None else None,
    )


async def _strip(service: Service, changes: Sequence[Change], block: BlockedNode | None) -> BlockStrip | None:
    """The strip of a node with these changes, the newest first; None if it has none."""
    if not changes and block is None:
        return None
    now = service.clock()
    begin = now - STRIP_DAYS * _DAY
    current: Mapping[str, BlockedNode] = {} if block is None else {block.id: block}
    known_since = changes[-1].at if len(changes) > MAX_CHANGES else await _log_begin(service)
    return block_strip(reversed(changes), current, begin, known_since, now)


async def _log_begin(service: Service) -> int:
    """The time from which the change log is complete (Unix ms); 0 if nothing was removed from it."""
    page = await service.store.changes_page(0, 1)
    return page.changes[0].at if page.compacted and page.changes else 0


router = APIRouter(route_class=HtmlRoute, include_in_schema=False)

STATE_TEMPLATE: Final = "_node.html.j2"
"""The page without its frame."""


@router.get("/page/nodes/{node_id}")
async def get_node(request: Request, visitor: ReaderVisitor, node_id: NodeId) -> Response:
    """The whole page; with status 404 if nobody reports the node, it is not blocked and has no change in the log."""
    return await _render(request, visitor, "node.html.j2", node_id)


@router.get("/page/nodes/{node_id}/state")
async def get_state(request: Request, visitor: ReaderVisitor, node_id: NodeId) -> Response:
    """All but the frame of the page, which the page reloads after a change."""
    return await _render(request, visitor, STATE_TEMPLATE, node_id)


async def _render(request: Request, visitor: Visitor, template: str, asked: str) -> Response:
    service, before = service_of(request), int_param(request, "before")
    settings, now = service.settings, service.clock()
    node = service.view.get(asked)
    node_id = asked if node is None else node.id
    history = await _history(service, node_id, node, before)
    last = None if history is None else history.last
    state = node_state(service, asked, node_id, node)
    listeners = [] if last is None else _progress(service, last)
    claims = () if node is None else claims_on(service.view.tracker, node, now)
    changes = history.changes if history is not None and before is None else ()
    known = node is not None or history is None or last is not None or state.is_reported
    return render_page(
        request,
        template,
        visitor,
        HTTPStatus.OK if known or template == STATE_TEMPLATE else HTTPStatus.NOT_FOUND,
        id=node_id,
        asked=asked,
        before=before,
        known=known,
        node=node,
        by=service.last_changes.created_by(node_id),
        claims=claims,
        evidence_claims=latest_evidence_claims(changes, claims),
        dismissals=service.dismissals.of_node(node_id),
        probation_end=service.automatic_blocks.probation_end(service.view.tracker, node_id, now),
        history=history,
        strip_days=STRIP_DAYS,
        state=state,
        listeners=Excerpt.of(listeners),
        applied=sum(listener.applied for listener in listeners),
        settled=state.settled and not any(listener.pending for listener in listeners),
        required=settings.evidence_applications,
        window=TTL_MS,
    )


async def _history(service: Service, node_id: str, node: BlockedNode | None, before: int | None) -> NodeHistory | None:
    """None while the change log cannot be read: all else is in memory, and needed then."""
    try:
        return await node_history(service, node_id, node, before)
    except UnavailableError:
        return None


def _progress(service: Service, change: Change) -> list[ListenerProgress]:
    """The live listeners; first those that have not applied the change."""
    progress = applied_by_live_listeners(service, change)
    return sorted(progress, key=lambda listener: (listener.applied, not listener.refused, not listener.task_managers))


# The latest claims on a node that rest on evidence: of event logs, and of running applications. Pure.

_OWNERS: Final = (DETECTION_OWNER, EVIDENCE_OWNER)


@dataclass(frozen=True, kw_only=True, slots=True)
class EvidenceClaim:
    """The evidence as its owner claimed it last: `at` (Unix ms; None if not known).

    `in_force` is whether the claim holds; `end` is when it ends, or would have ended.
    """

    owner: str
    cause: str
    at: int | None
    end: int
    in_force: bool


def latest_evidence_claims(changes: Sequence[Change], claims: Iterable[Claim]) -> list[EvidenceClaim]:
    """The latest claim of each owner. `changes`: of the node, the newest first; `claims`: those in force."""
    live = list(claims)
    return [found for owner in _OWNERS if (found := _latest(owner, changes, claim_of(live, owner))) is not None]


def _latest(owner: str, changes: Sequence[Change], live: Claim | None) -> EvidenceClaim | None:
    past = [(change.at, claim) for change, claim in _claims_of(owner, changes)]
    claim = live or (past[0][1] if past else None)
    if claim is None:
        return None
    same = [at for at, other in past if other.block.cause == claim.block.cause and other.block.end == claim.block.end]
    return EvidenceClaim(
        owner=owner,
        cause=claim.block.cause,
        at=min(same, default=None),
        end=claim.block.end,
        in_force=live is not None,
    )


def _claims_of(owner: str, changes: Sequence[Change]) -> Iterator[tuple[Change, Claim]]:
    for change in changes:
        if (claim := claim_of(change.claims_after, owner)) is not None:
            yield change, claim
