"""The list as the page shows it: filtered, sorted, in pages."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlencode

from app.api.applied import task_managers_on
from app.listeners.state import ListenerEntry
from app.service import Service
from blocklist.model.node import ACTION_BY_NAME, BlockAction, BlockedNode, TaskCount

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
    """Text in the id or cause, action, author; sort order; page. With `group` "cause", a row is a group of nodes."""

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
        own = {"q": self.q, "action": self.action, "by": self.by, "sort": self.sort, "group": self.group, "page": 1}
        list_filter = own | other
        changed = {name: value for name, value in list_filter.items() if value != getattr(defaults, name)}
        return f"?{urlencode(changed)}" if changed else ""

    @property
    def active(self) -> bool:
        """Whether it excludes any node."""
        return bool(self.q or self.action or self.by)


@dataclass(frozen=True, kw_only=True, slots=True)
class ListRow:
    """A blocked node; `applied` of `listeners` have its last change, `tasks` run there."""

    node: BlockedNode
    created_by: str | None
    task_managers: int
    tasks: TaskCount
    applied: int
    listeners: int

    @property
    def evacuates(self) -> bool:
        return self.node.action is BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS

    @property
    def settled(self) -> bool:
        """All listeners have applied the block, and no task runs there if the node is evacuated."""
        return self.applied == self.listeners and not (self.evacuates and self.tasks.may_run)


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
        return max(1, -(-self.matched // PAGE_SIZE))

    @property
    def settled(self) -> bool:
        return all(row.settled for row in self.rows)


def list_page(service: Service, list_filter: ListFilter) -> ListPage:
    """The current list."""
    nodes = list(service.view.tracker.blocked(service.clock()).values())
    matched = _sorted(service, nodes, list_filter)
    last = max(1, -(-len(matched) // PAGE_SIZE))
    list_filter = list_filter.at_page(min(list_filter.page, last))
    shown = matched[(list_filter.page - 1) * PAGE_SIZE : list_filter.page * PAGE_SIZE]
    live = service.directory.live()
    acked = sorted(entry.confirmed_revision for entry in live)
    refusals = _refusals(live, shown)
    return ListPage(
        rows=[_row(service, node, acked, refusals.get(node.id, ())) for node in shown],
        filter=list_filter,
        blocked=len(nodes),
        evacuated=sum(node.action is BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS for node in nodes),
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
    text, action = list_filter.q.casefold(), ACTION_BY_NAME.get(list_filter.action)
    return [
        node
        for node in nodes
        if (not text or text in node.id.casefold() or text in node.cause.casefold())
        and (action is None or node.action is action)
        and (not list_filter.by or list_filter.by == service.last_changes.created_by(node.id))
    ]


def _refusals(live: Sequence[ListenerEntry], shown: Sequence[BlockedNode]) -> dict[str, list[int]]:
    """For each refused node, the acknowledged revisions of the listeners that refuse it."""
    refusals = defaultdict[str, list[int]](list)
    for entry in live:
        for node in shown if entry.refused else ():
            if entry.refusal_of(node.id) is not None:
                refusals[node.id].append(entry.confirmed_revision)
    return refusals


def _row(service: Service, node: BlockedNode, acked: Sequence[int], refusals: Sequence[int]) -> ListRow:
    """`acked` are the acknowledged revisions of the listeners, sorted; `refusals` of those that refuse the node."""
    last_changes = service.last_changes
    revision = last_changes.revision_of(node.id, service.view.tracker.revision)
    task_managers = task_managers_on(service, node.id)
    return ListRow(
        node=node,
        created_by=last_changes.created_by(node.id),
        task_managers=len(task_managers),
        tasks=TaskCount.of(each.running_tasks for each in task_managers),
        applied=len(acked) - bisect_left(acked, revision) - sum(own >= revision for own in refusals),
        listeners=len(acked),
    )


def authors_of(service: Service, nodes: Sequence[BlockedNode]) -> list[str]:
    """The authors of the blocks, sorted, at most a hundred."""
    names = {service.last_changes.created_by(node.id) for node in nodes}
    return sorted(name for name in names if name is not None)[:100]
