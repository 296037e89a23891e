"""Rows: the list as the page shows it, filtered, sorted and cut into pages."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from app.components import Components
from blocklist.model.node import ACTION_BY_NAME, BlockAction, BlockedNode

PAGE_SIZE: Final = 100
"""Rows on a page: what a browser and the event loop do without being felt."""
_SORT_KEYS: Final[dict[str, Callable[[BlockedNode], Any]]] = {
    "node": lambda node: node.id,
    "since": lambda node: -node.start,
    "end": lambda node: node.end,
}
SORTS: Final = tuple(_SORT_KEYS)


@dataclass(frozen=True, kw_only=True, slots=True)
class ListFilter:
    """What of the list is wanted: text in the id or the cause, an action, an author; order and page."""

    q: str = ""
    action: str = ""
    by: str = ""
    sort: str = "since"
    page: int = 1

    def query(self, **other: object) -> str:
        """As it goes into an address, without what is usual."""
        defaults = ListFilter()
        list_filter = {"q": self.q, "action": self.action, "by": self.by, "sort": self.sort, "page": 1} | other
        changed = {name: value for name, value in list_filter.items() if value != getattr(defaults, name)}
        return f"?{urlencode(changed)}" if changed else ""

    @property
    def active(self) -> bool:
        """Whether it leaves anything out."""
        return bool(self.q or self.action or self.by)


@dataclass(frozen=True, kw_only=True, slots=True)
class ListRow:
    """A blocked node; `applied` of `listeners` have its last change."""

    node: BlockedNode
    created_by: str | None
    task_managers: int
    applied: int
    listeners: int

    @property
    def evacuates(self) -> bool:
        return self.node.action is BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS

    @property
    def settled(self) -> bool:
        """Nothing more is going to happen: all have applied it, and nobody is left where everybody has to leave."""
        return self.applied == self.listeners and not (self.evacuates and self.task_managers)


@dataclass(frozen=True, kw_only=True, slots=True)
class ListPage:
    """A page of the list. `blocked` and `evacuated` count the whole list, `found` what the filter lets through."""

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


def list_page(service: Components, list_filter: ListFilter) -> ListPage:
    """The list at this moment."""
    nodes = list(service.view.tracker.blocked(service.clock()).values())
    matched = sorted(
        _filtered(service, nodes, list_filter), key=lambda node: (_SORT_KEYS[list_filter.sort](node), node.id)
    )
    last = max(1, -(-len(matched) // PAGE_SIZE))
    list_filter = ListFilter(
        q=list_filter.q,
        action=list_filter.action,
        by=list_filter.by,
        sort=list_filter.sort,
        page=min(list_filter.page, last),
    )
    shown = matched[(list_filter.page - 1) * PAGE_SIZE : list_filter.page * PAGE_SIZE]
    acked = sorted(-1 if each.listener.acked is None else each.listener.acked for each in service.listeners.live())
    return ListPage(
        rows=[_row(service, node, acked) for node in shown],
        filter=list_filter,
        blocked=len(nodes),
        evacuated=sum(node.action is BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS for node in nodes),
        matched=len(matched),
        authors=_authors(service, nodes),
        listeners=len(acked),
    )


def _filtered(service: Components, nodes: Sequence[BlockedNode], list_filter: ListFilter) -> list[BlockedNode]:
    text, action = list_filter.q.casefold(), ACTION_BY_NAME.get(list_filter.action)
    return [
        node
        for node in nodes
        if (not text or text in node.id.casefold() or text in node.cause.casefold())
        and (action is None or node.action is action)
        and (not list_filter.by or list_filter.by == service.last_changes.created_by(node.id))
    ]


def _row(service: Components, node: BlockedNode, acked: Sequence[int]) -> ListRow:
    origin = service.last_changes.get(node.id)
    return ListRow(
        node=node,
        created_by=origin.created_by if origin is not None else None,
        task_managers=len(service.view.task_managers.on_node(node.id)),
        applied=len(acked) - bisect_left(acked, origin.revision if origin is not None else 0),
        listeners=len(acked),
    )


def _authors(service: Components, nodes: Sequence[BlockedNode]) -> list[str]:
    """Who has blocked any of them, by name, at most a hundred."""
    names = {service.last_changes.created_by(node.id) for node in nodes}
    return sorted(name for name in names if name is not None)[:100]
