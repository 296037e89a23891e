"""The map that all visitors share: names in rows, and the states of all hosts as one string."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import cached_property
from itertools import chain
from typing import Final
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from markupsafe import Markup, escape

from app.page.forms import HtmlRoute, int_param
from app.page.history import cause_group
from app.page.list import reported_blocks
from app.page.shared import ReaderVisitor, Visitor, in_turns, pages_of, render_page, shared_of
from app.service import Service, service_of
from blocklist.model.changes import Change
from blocklist.model.draft import find_blocked
from blocklist.model.errors import NotFoundError, UnavailableError
from blocklist.model.names import normalize_address
from blocklist.model.node import BlockedNode, BlockState, TaskCount, block_state
from blocklist.wire.body import dump_json

# The state of a host on the map: one of a few, each with a colour, a sign and a word. Pure.


class MapState(StrEnum):
    """What is known about a host. The value is its code in the page and in static/map.css."""

    REFUSED = "r"
    PENDING = "p"
    UNKNOWN = "u"
    EVACUATING = "e"
    EVACUATED = "d"
    MARKED = "m"
    NOT_READY = "n"
    FREE = "f"


@dataclass(frozen=True, slots=True)
class Legend:
    """How people read a state."""

    word: str
    explanation: str


LEGENDS: Final = {
    MapState.REFUSED: Legend("refused", "A listener does not carry out the block."),
    MapState.PENDING: Legend("not applied yet", "A listener has not applied the last change of the block."),
    MapState.UNKNOWN: Legend("unknown", "It is not known whether tasks run there, or no cluster has the node."),
    MapState.EVACUATING: Legend("evacuating", "Tasks that run there are being stopped and restart elsewhere."),
    MapState.EVACUATED: Legend("evacuated", "It is evacuated, and no task runs there."),
    MapState.MARKED: Legend("no new tasks", "No new tasks start there; those that run may finish."),
    MapState.NOT_READY: Legend("not ready", "It is not blocked, but a listener reports that it gets no work."),
    MapState.FREE: Legend("free", "It is not blocked."),
}
"""In the order in which people look at them."""
UNSETTLED: Final = frozenset({MapState.PENDING, MapState.EVACUATING})
"""States that are expected to change soon, without a change of the list."""


_STATES: Final = {
    BlockState.REFUSED: MapState.REFUSED,
    BlockState.PENDING: MapState.PENDING,
    BlockState.RUNNING: MapState.EVACUATING,
    BlockState.UNKNOWN: MapState.UNKNOWN,
    BlockState.NOT_HERE: MapState.UNKNOWN,
    BlockState.EMPTY: MapState.EVACUATED,
}


def state_of_blocked(node: BlockedNode, state: BlockState) -> MapState:
    """The state of a blocked host."""
    return MapState.MARKED if state.is_applied and not node.evacuates else _STATES[state]


# The rows of the map: hosts by rack, or by what else is known about them. Pure.
#
# The group of a host is its label `rack`; without it `pool`; without it the zone; else its name up to the first
# number, or of an address its network. Blocked hosts that nobody reports are groups of their own, as they may be
# misspelt.

MAX_ROW: Final = 200
"""Maximum number of hosts in a row; a group with more has several rows."""
_LABELS: Final = (
    ("rack", "rack"),
    ("pool", "pool"),
    ("zone", "zone"),
    ("zone", "topology.kubernetes.io/zone"),
)
"""Kinds of groups, each with the label that it comes from; the first that a host has counts."""
BY_NAME: Final = "name"
UNREPORTED: Final = "not reported"
_KINDS: Final = ("rack", "pool", "zone", BY_NAME, UNREPORTED)
_NUMBER: Final = re.compile(r"(\d+)", re.ASCII)


@dataclass(frozen=True, order=True, slots=True)
class Group:
    """A group of hosts: of which kind, and its name."""

    kind: str
    name: str

    @property
    def key(self) -> str:
        """Names it in a URL: `rack=r12`."""
        return f"{self.kind}={self.name}"


@dataclass(frozen=True, slots=True)
class MapRow:
    """A row: hosts of a group, in order. `part` of `parts` counts from 1."""

    group: Group
    hosts: Sequence[str]
    part: int
    parts: int


def group_of(host: str, labels: Mapping[str, str]) -> Group:
    """The group of a reported host."""
    for kind, label in _LABELS:
        if value := labels.get(label):
            return Group(kind, value)
    return Group(BY_NAME, _prefix(host))


def map_rows(hosts: Iterable[tuple[str, Group]]) -> list[MapRow]:
    """The rows: racks first, then pools, zones and names, each in natural order, as are the hosts in them."""
    groups = defaultdict[Group, list[str]](list)
    for host, group in hosts:
        groups[group].append(host)
    rows = []
    for group in sorted(groups, key=lambda each: (_KINDS.index(each.kind), natural_order(each.name))):
        members = sorted(groups[group], key=natural_order)
        parts = pages_of(len(members), MAX_ROW)
        rows += [
            MapRow(group, members[part * MAX_ROW : (part + 1) * MAX_ROW], part + 1, parts) for part in range(parts)
        ]
    return rows


def natural_order(name: str) -> tuple[tuple[str, int, str], ...]:
    """A key that sorts `n2` before `n10`."""
    parts = _NUMBER.split(name.lower())
    numbers = [*parts[1::2], "0"]
    # The text as well, so that n1 and n01 have an order.
    return tuple((text, int(number), number) for text, number in zip(parts[::2], numbers, strict=True))


def _prefix(host: str) -> str:
    """`worker` of `worker-017.example.com`; the first part of an address."""
    if normalize_address(host) is not None:
        separator = ":" if ":" in host else "."
        return host.rsplit(separator, 1)[0] + separator
    label = host.split(".", 1)[0].lower()
    return _NUMBER.split(label, maxsplit=1)[0].rstrip("-_") or label


# All hosts that are known, with their state: computed in turns of the event loop, as there may be 10,000.


MIN_AGE_MS: Final = 1_000
MS_PER_HOST: Final = 0.1
MS_PER_BLOCK: Final = 0.5
"""The map is computed at most once in the sum of these: some tenth of the time is spent on it, while somebody looks."""


@dataclass(frozen=True, slots=True)
class BlockedHost:
    """A blocked host: its state, its block and the tasks that run there."""

    state: MapState
    node: BlockedNode
    tasks: TaskCount


@dataclass(frozen=True, kw_only=True)
class HostMap:
    """All hosts at a revision: rows of ids, those that are blocked, and those that are free but get no work.

    `layout` names the order of hosts, `states` has the code of each in this order.
    """

    revision: int
    rows: Sequence[MapRow]
    blocked: Mapping[str, BlockedHost]
    not_ready: frozenset[str]

    def state(self, host: str) -> MapState:
        found = self.blocked.get(host)
        if found is not None:
            return found.state
        return MapState.NOT_READY if host in self.not_ready else MapState.FREE

    @cached_property
    def layout(self) -> str:
        return hashlib.sha256(repr(self.rows).encode()).hexdigest()[:16]

    @cached_property
    def states(self) -> str:
        return "".join(map(self.state, chain.from_iterable(row.hosts for row in self.rows)))

    @property
    def counts(self) -> list[tuple[MapState, int]]:
        """The number of hosts in each state, in the order of the legend."""
        counts = Counter(self.states)
        return [(state, counts[state.value]) for state in LEGENDS]

    @property
    def total(self) -> int:
        return len(self.states)

    @property
    def settled(self) -> bool:
        return UNSETTLED.isdisjoint(map(MapState, set(self.states)))

    def max_age(self) -> float:
        """In milliseconds, from the constants above."""
        return MIN_AGE_MS + MS_PER_HOST * self.total + MS_PER_BLOCK * len(self.blocked)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reports:
    """What all hosts share: the revision that all live listeners have acknowledged, what they refuse, silent jobs.

    `refused` has for each refused node the latest revision that a listener which refuses it has acknowledged.
    """

    acked: int | None
    refused: Mapping[str, int]
    pending: frozenset[str]
    silent_on: Callable[[str], bool]


async def all_hosts(service: Service) -> HostMap:
    """The hosts that anybody reports, and all that are blocked."""
    inventory = service.inventory
    revision = service.view.tracker.revision
    spellings: dict[str, str] = {}
    groups: dict[str, Group] = {}
    async for node_id in in_turns(list(inventory)):
        # What has gone in between is left out.
        if (labels := inventory.labels_if_known(node_id)) is not None:
            spellings[node_id] = inventory.spelling(node_id)
            groups[node_id] = group_of(node_id, labels)
    blocks = await _blocks(service, spellings, groups)
    reports = await _reports(service)
    blocked = {}
    async for host, node in in_turns(blocks.items()):
        blocked[spellings[host]] = _blocked_host(service, node, reports)
    return HostMap(
        revision=revision,
        # In a thread, because to sort 10,000 names takes some 30 ms.
        rows=await asyncio.to_thread(map_rows, [(spellings[host], group) for host, group in groups.items()]),
        blocked=blocked,
        not_ready=await _not_ready(service, spellings),
    )


async def _blocks(service: Service, spellings: dict[str, str], groups: dict[str, Group]) -> dict[str, BlockedNode]:
    """The strongest block of each blocked host. Adds those that nobody reports."""
    tracker, now, inventory = service.view.tracker, service.clock(), service.inventory
    blocks: dict[str, BlockedNode] = {}
    async for node in in_turns(list(tracker.blocked(now).values())):
        known = [host for host in inventory.known_as(node.id) if host in spellings]
        for host in known:
            # A short name may mean several hosts, and each of them may have a block of its own.
            if found := find_blocked(tracker, spellings[host], now):
                blocks[host] = max(found, key=lambda block: (block.action, block.end))
        if not known and node.id not in spellings:
            spellings[node.id], groups[node.id] = node.id, Group(UNREPORTED, "")
            blocks[node.id] = node
    return blocks


async def _reports(service: Service) -> _Reports:
    directory = service.directory
    live = directory.applying()
    refused, pending = dict[str, int](), set[str]()
    for each in await reported_blocks(service):
        refused |= {node: max(each.entry.confirmed_revision, refused.get(node, -1)) for node in each.refused}
        pending |= each.pending
    return _Reports(
        acked=min((entry.confirmed_revision for entry in live), default=None),
        refused=refused,
        pending=frozenset(pending),
        silent_on=directory.silent_on(),
    )


def _blocked_host(service: Service, node: BlockedNode, reports: _Reports) -> BlockedHost:
    revision = service.last_changes.revision_of(node.id, service.view.tracker.revision)
    tasks = service.directory.tasks_on(node.id, silent=reports.silent_on(node.id))
    state = block_state(
        tasks,
        refused=reports.refused.get(node.id, -1) >= revision,
        applied=node.id not in reports.pending and (reports.acked is None or reports.acked >= revision),
        not_here=service.directory.is_nowhere(node.id),
    )
    return BlockedHost(state_of_blocked(node, state), node, tasks)


async def _not_ready(service: Service, spellings: Mapping[str, str]) -> frozenset[str]:
    """The hosts that a live listener reports as unschedulable."""
    inventory = service.inventory
    found = set[str]()
    for entry in service.directory.live():
        async for name in in_turns(list(entry.report.unschedulable or ())):
            host = inventory.find(name)
            if host is not None and host in spellings:
                found.add(spellings[host])
    return frozenset(found)


MAX_HTML_AGE_MS: Final = 60_000


class Variant(Enum):
    """For whom the cells are made: where they lead to, or nowhere."""

    OPERATOR = "/page/block?node="
    READER = "/page/nodes/"
    WALL = ""


async def host_map(request: Request) -> HostMap:
    """The map of the service that received the request."""
    return await shared_of(request).get("map", lambda: all_hosts(service_of(request)), HostMap.max_age)


def rows_html(request: Request, found: HostMap, variant: Variant) -> Sequence[tuple[MapRow, Markup]]:
    """The rows of the map with the HTML of their cells, made once for all visitors of a kind."""

    def render() -> Sequence[tuple[MapRow, Markup]]:
        return [(row, _cells(row, found, variant)) for row in found.rows]

    return shared_of(request).get_now(("cells", variant, found.layout, found.states), render, MAX_HTML_AGE_MS)


def table_url(row: MapRow) -> str:
    """The table of the group of a row."""
    return f"/page/map/hosts?{urlencode({'group': row.group.key})}"


def _cells(row: MapRow, hosts: HostMap, variant: Variant) -> Markup:
    """The cells of a row. Without the templates, as there may be 10,000 of them."""
    cells = []
    for host in row.hosts:
        state, name = hosts.state(host), escape(host)
        word, free = LEGENDS[state].word, state in {MapState.FREE, MapState.NOT_READY}
        if variant is Variant.WALL:
            cells.append(f'<span class="cell {state}">{name}, {word}</span>')
        else:
            path = variant.value if free else Variant.READER.value
            cells.append(f'<a class="cell {state}" tabindex="-1" href="{path}{name}">{name}, {word}</a>')
    return Markup("\n".join(cells))  # noqa: S704 - the ids are escaped


# The map of all hosts: for people, for a wall display, and as tables; and its states.

router = APIRouter(route_class=HtmlRoute, include_in_schema=False)

TABLE_SIZE: Final = 200
"""Hosts of a page of a table."""


@router.get("/page/map")
async def get_map(request: Request, visitor: ReaderVisitor) -> Response:
    """The whole page; with `?wall` for a wall display: large, without controls, with the last changes."""
    return await _render(request, visitor, "wall.html.j2" if _is_wall(request) else "map.html.j2")


@router.get("/page/map/rows")
async def get_rows(request: Request, visitor: ReaderVisitor) -> Response:
    """The rows only, which the page loads if hosts have joined or gone."""
    return await _render(request, visitor, "_map.html.j2")


@router.get("/page/map/states")
async def get_states(request: Request, visitor: ReaderVisitor) -> Response:  # noqa: ARG001 - requires the role
    """The states of all hosts, in the order of the `layout`, as JSON; the page loads all rows if it has another layout.

    `behind` is whether changes of the list are not in it yet, as it is not computed for each.
    """
    found = await host_map(request)
    body = {
        "layout": found.layout,
        "states": found.states,
        "counts": {state.value: count for state, count in found.counts},
        "settled": found.settled,
        "behind": found.revision < service_of(request).view.tracker.revision,
    }
    return Response(dump_json(body), media_type="application/json")


@router.get("/page/map/timeline")
async def get_timeline(request: Request, visitor: ReaderVisitor) -> Response:
    """The last changes only."""
    return render_page(request, "_timeline.html.j2", visitor, lines=await timeline(service_of(request)))


@router.get("/page/map/hosts")
async def get_hosts(request: Request, visitor: ReaderVisitor) -> Response:
    """A group of hosts as a table: for screen readers, and without scripts."""
    found = await host_map(request)
    key = request.query_params.get("group", "")
    rows = [row for row in found.rows if row.group.key == key]
    if not rows:
        raise NotFoundError("No host that is known belongs to this group. Hosts may have left: open the map again.")
    hosts = [host for row in rows for host in row.hosts]
    pages = pages_of(len(hosts), TABLE_SIZE)
    page = min(max(1, int_param(request, "page") or 1), pages)
    return render_page(
        request,
        "hosts.html.j2",
        visitor,
        group=rows[0].group,
        by_name=BY_NAME,
        url=table_url(rows[0]),
        legends=LEGENDS,
        hosts=[
            (host, found.state(host), found.blocked.get(host))
            for host in hosts[(page - 1) * TABLE_SIZE : page * TABLE_SIZE]
        ],
        total=len(hosts),
        page=page,
        pages=pages,
        free={MapState.FREE, MapState.NOT_READY},
    )


async def _render(request: Request, visitor: Visitor, template: str) -> Response:
    wall = _is_wall(request)
    variant = Variant.WALL if wall else Variant.OPERATOR if visitor.may_change else Variant.READER
    found = await host_map(request)
    return render_page(
        request,
        template,
        visitor,
        map=found,
        rows=rows_html(request, found, variant),
        table_url=table_url,
        legends=LEGENDS,
        wall=wall,
        path=variant.value,
        lines=await timeline(service_of(request)) if wall else None,
    )


def _is_wall(request: Request) -> bool:
    return "wall" in request.query_params


# The last changes for the wall display, those that belong together in one line.

MAX_CHANGES: Final = 300
"""Number of changes that are read: those of a storm become a few lines."""
MAX_LINES: Final = 40
NAMED: Final = 2
"""Number of nodes that a line names."""
_GAP_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class TimelineLine:
    """Changes of one kind by one author for one cause, each at most a minute after the one before, the newest first."""

    changes: Sequence[Change]

    @property
    def last(self) -> Change:
        return self.changes[0]

    @property
    def named(self) -> Sequence[str]:
        """The ids of its first nodes; all of them if only one more is left."""
        names = [change.node.id for change in reversed(self.changes)]
        return names if len(names) <= NAMED + 1 else names[:NAMED]

    @property
    def more(self) -> int:
        return len(self.changes) - len(self.named)


async def timeline(service: Service) -> list[TimelineLine] | None:
    """The lines, the newest first; None while the change log cannot be read."""
    feed = service.feed
    try:
        changes = await feed.changes(max(0, feed.revision - MAX_CHANGES), feed.revision)
        if changes is None:
            changes = list(reversed(await service.store.latest_changes(MAX_CHANGES)))
    except UnavailableError:
        return None
    return timeline_lines(list(reversed(changes)))


def timeline_lines(changes: Sequence[Change]) -> list[TimelineLine]:
    """The lines of changes, the newest first. Two kinds may alternate, as in a storm of alerts of both actions."""
    lines: list[list[Change]] = []
    latest: dict[tuple[object, ...], list[Change]] = {}
    for change in changes:
        line = latest.get(_kind(change))
        if line is None or line[-1].at - change.at > _GAP_MS:
            line = latest[_kind(change)] = []
            lines.append(line)
        line.append(change)
    return [TimelineLine(line) for line in lines[:MAX_LINES]]


def _kind(change: Change) -> tuple[object, ...]:
    return change.type, change.created_by, cause_group(change.node.cause), change.node.short_action
