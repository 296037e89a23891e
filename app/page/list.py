"""The list as the page shows it: filtered, sorted, in pages."""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response

from app.api.node_status import task_managers_on
from app.api.parameters import public_url_of
from app.listeners.state import ListenerEntry
from app.page.forms import HtmlRoute
from app.page.history import cause_group
from app.page.shared import ReaderVisitor, SharedValues, Visitor, in_turns, pages_of, render_page, shared_of
from app.requests import EXAMPLE_BODY
from app.service import Service, service_of
from blocklist.model.claims import ANONYMOUS, Claims
from blocklist.model.draft import claims_on, find_blocked, nodes_claimed_by
from blocklist.model.node import ACTION_BY_NAME, BlockedNode, TaskCount
from blocklist.model.reported_node import CLUSTER_LABEL

PAGE_SIZE: Final = 100
"""Rows of a page: few enough to render without a noticeable delay."""
_SORT_KEYS: Final[dict[str, Callable[[BlockedNode], Any]]] = {
    "node": lambda node: node.id,
    "since": lambda node: -node.start,
    "end": lambda node: node.end,
}
_MAX_TEXT: Final = 300
_PAGE_NUMBER: Final = re.compile(r"[0-9]{1,15}", re.ASCII)
SORTS: Final = tuple(_SORT_KEYS)


@dataclass(frozen=True, kw_only=True, slots=True)
class ListFilter:
    """Text in the id or cause, action, owner or author; sort order; page.

    With `group` "cause", a row is a group of nodes.
    """

    q: str = ""
    action: str = ""
    by: str = ""
    sort: str = "since"
    group: str = ""
    page: int = 1

    def at_page(self, page: int) -> ListFilter:
        """The same, with this page."""
        return replace(self, page=page)

    def query(self, **other: object) -> str:
        """The query string, without default values."""
        defaults = ListFilter()
        list_filter = asdict(self) | {"page": 1} | other
        changed = {name: value for name, value in list_filter.items() if value != getattr(defaults, name)}
        return f"?{urlencode(changed)}" if changed else ""

    @property
    def active(self) -> bool:
        """Whether it excludes any node."""
        return bool(self.q or self.action or self.by)


@dataclass(frozen=True, kw_only=True, slots=True)
class ListRow:
    """A blocked node and its owners; `applied` of `listeners` have its last change, `tasks` run there."""

    node: BlockedNode
    cluster: str | None
    owners: Sequence[str]
    created_by: str | None
    tasks: TaskCount
    applied: int
    listeners: int

    @property
    def settled(self) -> bool:
        """All listeners have applied the block, and no task runs there if the node is evacuated."""
        return self.applied == self.listeners and not (self.node.evacuates and self.tasks.may_end)


@dataclass(frozen=True, kw_only=True, slots=True)
class ListPage:
    """A page of the list. `blocked` and `evacuated` count the whole list, `matched` the filtered one."""

    rows: Sequence[ListRow]
    filter: ListFilter
    blocked: int
    evacuated: int
    matched: int
    authors: Sequence[str]
    listeners: int

    @property
    def first(self) -> int:
        return (self.filter.page - 1) * PAGE_SIZE + 1

    @property
    def pages(self) -> int:
        return pages_of(self.matched, PAGE_SIZE)

    @property
    def settled(self) -> bool:
        return all(row.settled for row in self.rows)


def list_page(service: Service, list_filter: ListFilter) -> ListPage:
    """The current list."""
    nodes = list(service.view.tracker.blocked(service.clock()).values())
    matched = _sorted(service, nodes, list_filter)
    last = pages_of(len(matched), PAGE_SIZE)
    list_filter = list_filter.at_page(min(list_filter.page, last))
    shown = matched[(list_filter.page - 1) * PAGE_SIZE : list_filter.page * PAGE_SIZE]
    live = service.directory.applying()
    acked = sorted(entry.confirmed_revision for entry in live)
    not_in_force = _not_in_force(live, shown)
    silent_on = service.directory.silent_on()
    return ListPage(
        rows=[_row(service, node, acked, not_in_force[node.id], silent=silent_on(node.id)) for node in shown],
        filter=list_filter,
        blocked=len(nodes),
        evacuated=sum(node.evacuates for node in nodes),
        matched=len(matched),
        authors=authors_of(service, nodes),
        listeners=len(acked),
    )


def matching_nodes(service: Service, list_filter: ListFilter) -> list[BlockedNode]:
    """The blocked nodes that match the filter, sorted."""
    return _sorted(service, list(service.view.tracker.blocked(service.clock()).values()), list_filter)


def parse_filter(params: Mapping[str, str]) -> ListFilter:
    """The filter in a query; invalid values are ignored, so that every link works."""
    action, sort, page = params.get("action", ""), params.get("sort", ""), params.get("page", "")
    return ListFilter(
        q=params.get("q", "").strip()[:_MAX_TEXT],
        action=action if action in ACTION_BY_NAME else "",
        by=params.get("by", "")[:_MAX_TEXT],
        sort=sort if sort in SORTS else "since",
        group="cause" if params.get("group") == "cause" else "",
        page=max(1, int(page)) if _PAGE_NUMBER.fullmatch(page) else 1,
    )


def _sorted(service: Service, nodes: Sequence[BlockedNode], list_filter: ListFilter) -> list[BlockedNode]:
    key = _SORT_KEYS[list_filter.sort]
    return sorted(_filtered(service, nodes, list_filter), key=lambda node: (key(node), node.id))


def _filtered(service: Service, nodes: Sequence[BlockedNode], list_filter: ListFilter) -> list[BlockedNode]:
    text, action, by = list_filter.q.casefold(), ACTION_BY_NAME.get(list_filter.action), list_filter.by
    owned = {*nodes_claimed_by(service.view.tracker, [by], service.clock())[by]} if by else set()
    return [
        node
        for node in nodes
        if (not text or text in node.id.casefold() or text in node.cause.casefold())
        and (action is None or node.action is action)
        and (not by or node.id in owned or by == service.last_changes.created_by(node.id))
    ]


class _NotInForce(NamedTuple):
    """The acknowledged revisions of listeners: those that refuse a node or where it is pending, those without it."""

    refused: list[int]
    not_here: list[int]


def _not_in_force(live: Sequence[ListenerEntry], shown: Sequence[BlockedNode]) -> Mapping[str, _NotInForce]:
    """What listeners report of each node that is shown."""
    found = {node.id: _NotInForce([], []) for node in shown}
    for entry in live:
        for node in shown if entry.refused or entry.pending or entry.report.not_here else ():
            if (entry.refusal_of(node.id) or entry.pending_reason_of(node.id)) is not None:
                found[node.id].refused.append(entry.confirmed_revision)
            elif entry.says_not_here(node.id):
                found[node.id].not_here.append(entry.confirmed_revision)
    return found


def _row(
    service: Service, node: BlockedNode, acked: Sequence[int], not_in_force: _NotInForce, *, silent: bool
) -> ListRow:
    """`acked` are the acknowledged revisions of the listeners, sorted."""
    last_changes = service.last_changes
    revision = last_changes.revision_of(node.id, service.view.tracker.revision)
    refused, not_here = (sum(own >= revision for own in revisions) for revisions in not_in_force)
    return ListRow(
        node=node,
        cluster=service.inventory.labels_of(node.id).get(CLUSTER_LABEL),
        owners=owners_of(claims_on(service.view.tracker, node, service.clock())),
        created_by=last_changes.created_by(node.id),
        tasks=service.directory.tasks_on(node.id, silent=silent),
        applied=len(acked) - bisect_left(acked, revision) - refused - not_here,
        listeners=len(acked) - not_here,
    )


def owners_of(claims: Claims) -> Sequence[str]:
    """The owners of the claims, the oldest first; none if nobody has a name."""
    owners = [claim.owner for claim in claims]
    return [] if owners == [ANONYMOUS] else owners


def authors_of(service: Service, nodes: Sequence[BlockedNode]) -> list[str]:
    """The authors of the blocks, sorted, at most a hundred."""
    names = {service.last_changes.created_by(node.id) for node in nodes}
    return sorted(name for name in names if name is not None)[:100]


# The list at /, by node or by cause; its table and the header's share, which the page reloads after a change.

router = APIRouter(route_class=HtmlRoute, include_in_schema=False)


@router.get("/")
async def get_list(request: Request, visitor: ReaderVisitor) -> Response:
    """The whole page."""
    return await _render(request, visitor, "list.html.j2")


@router.get("/page/list")
async def get_table(request: Request, visitor: ReaderVisitor) -> Response:
    return await _render(request, visitor, "_list.html.j2")


async def _render(request: Request, visitor: Visitor, template: str) -> Response:
    service, list_filter = service_of(request), parse_filter(request.query_params)
    listing = (
        await grouped_page(service, shared_of(request), list_filter)
        if list_filter.group
        else list_page(service, list_filter)
    )
    base, bearer = public_url_of(request), service.authenticator.enabled
    return render_page(request, template, visitor, listing=listing, base=base, bearer=bearer, example=EXAMPLE_BODY)


# The share of the cluster in the header, which the page reloads after a change.


@router.get("/page/share")
async def get_share(request: Request, visitor: ReaderVisitor) -> Response:
    """The element of the header only."""
    return render_page(request, "_share.html.j2", visitor)


# The list by cause and owner: how many nodes each group has, where, and which listeners have applied all of it.
#
# The cause of a group is the first part of a block's cause, as in the charts of the history: text after a colon is a
# detail. The owner is that of the block's oldest claim, up to a slash: each alert has an owner of its own, and a
# storm of them is one group.

GROUPS_PER_PAGE: Final = 30
"""Groups of a page."""
MAX_AGE_MS: Final = 2000
"""All visitors share one computation for this long, unless the list changes."""
RACK_LABEL: Final = "rack"


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockGroup:
    """The blocks of a group, by their start. `owner` may be `alertmanager/*`, for all owners of this kind."""

    cause: str
    owner: str
    nodes: Sequence[BlockedNode]

    @property
    def common_cause(self) -> str | None:
        """The whole cause of each block; None if they differ in details or further causes."""
        causes = {node.cause for node in self.nodes}
        return causes.pop() if len(causes) == 1 else None

    @property
    def first(self) -> int:
        """The earliest start (Unix ms)."""
        return self.nodes[0].start

    @property
    def last(self) -> int:
        """The latest start (Unix ms)."""
        return self.nodes[-1].start

    @property
    def earliest_end(self) -> int:
        return min(node.end for node in self.nodes)

    @property
    def latest_end(self) -> int:
        return max(node.end for node in self.nodes)

    @property
    def evacuated(self) -> int:
        """The number of nodes that are evacuated."""
        return sum(node.evacuates for node in self.nodes)

    @property
    def canaries(self) -> int:
        """The number of nodes on which an executor of each Spark application may stay."""
        return sum(node.canary for node in self.nodes)


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupRow:
    """A group as it is shown. `racks` has the number of nodes of each rack, `no_rack` those whose rack is not known.

    Of the `listeners` that are live, `pending` have not applied the last change of each of its nodes yet, and `refused`
    do not carry out a block of it.
    """

    group: BlockGroup
    racks: Sequence[tuple[str, int]]
    no_rack: int
    listeners: int
    pending: Sequence[str]
    refused: Sequence[str]
    tasks: TaskCount

    @property
    def applied(self) -> int:
        """The number of listeners that have applied the whole group."""
        return self.listeners - len(self.pending) - len(self.refused)

    @property
    def settled(self) -> bool:
        """All listeners have applied it, and no task runs on a node that is evacuated."""
        return self.applied == self.listeners and not (self.group.evacuated and self.tasks.may_end)


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupedPage:
    """A page of the groups of the `matched` nodes, of all that are `blocked`, at a revision; `total` counts groups."""

    rows: Sequence[GroupRow]
    filter: ListFilter
    revision: int
    blocked: int
    matched: int
    total: int
    authors: Sequence[str]

    @property
    def pages(self) -> int:
        return pages_of(self.total, GROUPS_PER_PAGE)

    @property
    def settled(self) -> bool:
        return all(row.settled for row in self.rows)


async def grouped_page(service: Service, shared: SharedValues, list_filter: ListFilter) -> GroupedPage:
    """The groups of the nodes that match, at most MAX_AGE_MS old and with all changes of the list."""

    async def compute() -> GroupedPage:
        revision, groups = service.view.tracker.revision, await groups_of(service, list_filter)
        page = min(list_filter.page, pages_of(len(groups), GROUPS_PER_PAGE))
        reports = await reported_blocks(service)
        shown = groups[(page - 1) * GROUPS_PER_PAGE : page * GROUPS_PER_PAGE]
        nodes = list(service.view.tracker.blocked(service.clock()).values())
        return GroupedPage(
            rows=[await _group_row(service, group, reports) for group in shown],
            filter=list_filter.at_page(page),
            revision=revision,
            blocked=len(nodes),
            matched=sum(len(group.nodes) for group in groups),
            total=len(groups),
            authors=authors_of(service, nodes),
        )

    # Whoever has just changed something sees the change.
    key = "groups", list_filter, service.view.tracker.revision
    return await shared.get(key, compute, lambda _: MAX_AGE_MS)


async def groups_of(service: Service, list_filter: ListFilter) -> list[BlockGroup]:
    """The groups of the nodes that match."""
    tracker, now = service.view.tracker, service.clock()
    blocks = []
    async for node in in_turns(matching_nodes(service, list_filter)):
        claims = claims_on(tracker, node, now) if tracker.get(node.id) is node else ()
        blocks.append((node, claims[0].owner if claims else ANONYMOUS))
    # In a thread, because of 10,000 blocks this takes some 25 ms.
    return await asyncio.to_thread(group_blocks, blocks)


def group_blocks(blocks: Iterable[tuple[BlockedNode, str]]) -> list[BlockGroup]:
    """The groups of blocks, each with the owner of its oldest claim; the one with the latest block first."""
    groups: dict[tuple[str, str], list[BlockedNode]] = {}
    for node, owner in blocks:
        kind, slash, _ = owner.partition("/")
        groups.setdefault((cause_group(node.cause), f"{kind}/*" if slash else kind), []).append(node)
    found = [
        BlockGroup(cause=cause, owner=owner, nodes=sorted(nodes, key=lambda node: (node.start, node.id)))
        for (cause, owner), nodes in groups.items()
    ]
    return sorted(found, key=lambda group: (-group.last, group.cause, group.owner))


@dataclass(frozen=True, slots=True)
class ReportedBlocks:
    """A live listener, and the blocked nodes that it reports as refused, as pending and as not here, by their ids."""

    entry: ListenerEntry
    refused: frozenset[str]
    pending: frozenset[str]
    not_here: frozenset[str]


async def reported_blocks(service: Service) -> list[ReportedBlocks]:
    """All live listeners, by id."""
    live = sorted(service.directory.applying(), key=lambda entry: entry.id)
    return [
        ReportedBlocks(
            entry,
            await _blocked(service, entry.refused),
            await _blocked(service, entry.pending),
            frozenset(filter(entry.says_not_here, await _blocked(service, entry.report.not_here or ()))),
        )
        for entry in live
    ]


async def _blocked(service: Service, names: Iterable[str]) -> frozenset[str]:
    tracker, now = service.view.tracker, service.clock()
    nodes = set[str]()
    async for name in in_turns(list(names)):
        nodes.update(node.id for node in find_blocked(tracker, name, now))
    return frozenset(nodes)


async def _group_row(service: Service, group: BlockGroup, reports: Sequence[ReportedBlocks]) -> GroupRow:
    newest = service.view.tracker.revision
    revision, racks, running = 0, Counter[str](), list[int | None]()
    async for node in in_turns(group.nodes):
        revision = max(revision, service.last_changes.revision_of(node.id, newest))
        racks[service.inventory.labels_of(node.id).get(RACK_LABEL, "")] += 1
        running += [each.running_tasks for each in task_managers_on(service, node.id)]
    names = {node.id for node in group.nodes}
    reports = [each for each in reports if not (each.entry.has_confirmed(revision) and names <= each.not_here)]
    acked = [each for each in reports if each.entry.has_confirmed(revision)]
    refusing = [each.entry.id for each in acked if not names.isdisjoint(each.refused)]
    applied = {each.entry.id for each in acked if names.isdisjoint(each.refused | each.pending)}
    no_rack = racks.pop("", 0)
    return GroupRow(
        group=group,
        racks=sorted(racks.items(), key=lambda rack: (-rack[1], rack[0])),
        no_rack=no_rack,
        listeners=len(reports),
        pending=[each.entry.id for each in reports if each.entry.id not in applied.union(refusing)],
        refused=refusing,
        tasks=TaskCount.of(running, silent=bool(group.evacuated) and any(map(service.directory.silent_on(), names))),
    )
