"""Rows: the list as the page shows it, filtered, sorted and cut into pages."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from app.components import Service
from blocklist.model.node import ACTIONS, BlockAction, BlockedNode

PAGE: Final = 100
"""Rows on a page: what a browser and the event loop do without being felt."""
_KEYS: Final[dict[str, Callable[[BlockedNode], Any]]] = {
    "node": lambda node: node.id,
    "since": lambda node: -node.start,
    "end": lambda node: node.end,
}
SORTS: Final = tuple(_KEYS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Filter:
    """What of the list is wanted: text in the id or the cause, an action, an author; order and page."""

    q: str = ""
    action: str = ""
    by: str = ""
    sort: str = "since"
    page: int = 1

    def query(self, **other: object) -> str:
        """As it goes into an address, without what is usual."""
        usual = Filter()
        wanted = {"q": self.q, "action": self.action, "by": self.by, "sort": self.sort, "page": 1} | other
        given = {name: value for name, value in wanted.items() if value != getattr(usual, name)}
        return f"?{urlencode(given)}" if given else ""

    @property
    def narrow(self) -> bool:
        """Whether it leaves anything out."""
        return bool(self.q or self.action or self.by)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A blocked node; `applied` of `listeners` have its last change."""

    node: BlockedNode
    by: str | None
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
class Listing:
    """A page of the list. `blocked` and `evacuated` count the whole list, `found` what the filter lets through."""

    rows: Sequence[Row]
    filter: Filter
    blocked: int
    evacuated: int
    found: int
    authors: Sequence[str]
    listeners: int

    @property
    def first(self) -> int:
        return (self.filter.page - 1) * PAGE + 1

    @property
    def pages(self) -> int:
        return max(1, -(-self.found // PAGE))

    @property
    def settled(self) -> bool:
        return all(row.settled for row in self.rows)


def listing(service: Service, wanted: Filter) -> Listing:
    """The list at this moment."""
    nodes = list(service.view.tracker.blocked(service.clock()).values())
    found = sorted(_filtered(service, nodes, wanted), key=lambda node: (_KEYS[wanted.sort](node), node.id))
    last = max(1, -(-len(found) // PAGE))
    wanted = Filter(q=wanted.q, action=wanted.action, by=wanted.by, sort=wanted.sort, page=min(wanted.page, last))
    shown = found[(wanted.page - 1) * PAGE : wanted.page * PAGE]
    acked = sorted(-1 if own.listener.acked is None else own.listener.acked for own in service.roll.live())
    return Listing(
        rows=[_row(service, node, acked) for node in shown],
        filter=wanted,
        blocked=len(nodes),
        evacuated=sum(node.action is BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS for node in nodes),
        found=len(found),
        authors=_authors(service, nodes),
        listeners=len(acked),
    )


def _filtered(service: Service, nodes: Sequence[BlockedNode], wanted: Filter) -> list[BlockedNode]:
    text, action = wanted.q.casefold(), ACTIONS.get(wanted.action)
    return [
        node
        for node in nodes
        if (not text or text in node.id.casefold() or text in node.cause.casefold())
        and (action is None or node.action is action)
        and (not wanted.by or wanted.by == service.origins.created_by(node.id))
    ]


def _row(service: Service, node: BlockedNode, acked: Sequence[int]) -> Row:
    origin = service.origins.of(node.id)
    return Row(
        node=node,
        by=origin.created_by if origin is not None else None,
        task_managers=len(service.view.task_managers.on(node.id)),
        applied=len(acked) - bisect_left(acked, origin.revision if origin is not None else 0),
        listeners=len(acked),
    )


def _authors(service: Service, nodes: Sequence[BlockedNode]) -> list[str]:
    """Who has blocked any of them, by name, at most a hundred."""
    names = {service.origins.created_by(node.id) for node in nodes}
    return sorted(name for name in names if name is not None)[:100]
