"""One listener as its page shows it: what it is, what it has applied and refused, and where its tasks run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from http import HTTPStatus
from typing import Final

from fastapi import APIRouter, Request, Response

from app.api.parameters import ResourceId
from app.listeners.jobs import Jobs
from app.listeners.replication import FORGET_AFTER_MS
from app.listeners.reports import LastReport, TasksOnHost, tasks_by_host, total_tasks
from app.listeners.state import ListenerEntry
from app.page.forms import HtmlRoute, int_param
from app.page.node import BlockAtListener, HostState, TasksRow, block_at, count_states, host_rows
from app.page.shared import (
    MAX_ROWS,
    Excerpt,
    ReaderVisitor,
    SharedValues,
    Visitor,
    in_turns,
    pages_of,
    render_page,
    shared_of,
)
from app.service import Service, service_of
from blocklist.model.draft import find_blocked
from blocklist.model.errors import NotFoundError
from blocklist.model.evidence import TTL_MS, Evidence
from blocklist.model.listener import Drift, Listener, ListenerRole, Mode
from blocklist.model.node import BlockedNode, TaskCount

# What runs on the nodes of a listener, for its page.

USABLE_AGE_MS: Final = 2_000
"""The nodes that are blocked are compared with those of all listeners at most once in this time."""
MAX_UNCACHED: Final = 500
"""The rows of a listener with at most this number of nodes are computed for each visitor: some 10 ms."""
MS_PER_HOST: Final = 1
"""Others are computed at most once in this time for each of their nodes: 10,000 take some 200 ms every 10 s."""


@dataclass(frozen=True, slots=True)
class TasksRows:
    """The rows of a listener as of a time (Unix ms), of what it reported."""

    at: int
    report: LastReport
    rows: Sequence[TasksRow]


async def listener_rows(
    service: Service, shared: SharedValues, entry: ListenerEntry, report: Callable[[], LastReport], *, live: bool
) -> TasksRows:
    """The rows of a listener, from what `report` returns; many of them are up to MS_PER_HOST old for each."""

    async def compute() -> TasksRows:
        at, current = service.clock(), report()
        return TasksRows(at, current, await _compute(service, entry, current.hosts, live=live))

    return await shared.get(("rows", entry.id, *entry.listener.registration_key, live), compute, _max_age)


def usable_nodes(service: Service, shared: SharedValues, entry: ListenerEntry) -> int | None:
    """The number of nodes of the listener that are not blocked, USABLE_AGE_MS old at most; None if it has none."""
    return shared.get_now("usable", service.usable_nodes.counter, USABLE_AGE_MS)(entry)


def _max_age(found: TasksRows) -> float:
    return MS_PER_HOST * len(found.rows) if len(found.rows) > MAX_UNCACHED else 0


async def _compute(
    service: Service, entry: ListenerEntry, hosts: Sequence[TasksOnHost], *, live: bool
) -> Sequence[TasksRow]:
    blocks: dict[str, BlockAtListener | None] = {}
    async for host in in_turns(hosts):
        blocks[host.node] = _block_of_host(service, entry, host.node)
    return host_rows(hosts, blocks.__getitem__, reports=live)


def _block_of_host(service: Service, entry: ListenerEntry, name: str) -> BlockAtListener | None:
    """The strongest block of a node, under any name of its machine."""
    found = find_blocked(service.view.tracker, name, service.clock())
    return block_at(service, entry, max(found, key=lambda block: (block.action, block.end))) if found else None


PAGE_SIZE: Final = 100
"""Nodes of a page."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """A node whose block the listener refuses, under the name that it uses; `blocked` is whether it is blocked now."""

    node: str
    reason: str
    blocked: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class HostsPage:
    """A page of the nodes with TaskManagers of a listener; `states`, `task_managers` and `tasks` are those of all.

    They are as of `at` (Unix ms). `unlisted` nodes are on no page: of a lapsed listener only those with most tasks are
    still known.
    """

    at: int
    rows: Sequence[TasksRow]
    number: int
    pages: int
    total: int
    unlisted: int
    states: Sequence[tuple[HostState, int]]
    task_managers: int
    tasks: TaskCount
    settled: bool

    @classmethod
    def of(cls, found: TasksRows, page: int) -> HostsPage:
        """A page of the rows, at most the last one."""
        rows, hosts = found.rows, found.report.hosts
        pages = pages_of(len(rows), PAGE_SIZE)
        number = min(page, pages)
        return cls(
            at=found.at,
            rows=rows[(number - 1) * PAGE_SIZE : number * PAGE_SIZE],
            number=number,
            pages=pages,
            total=found.report.reported_hosts,
            unlisted=found.report.reported_hosts - len(rows),
            states=count_states(rows),
            task_managers=sum(host.task_managers for host in hosts),
            tasks=total_tasks(hosts),
            settled=all(row.settled for row in rows),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ListenerRow:
    """A listener now: `behind` in revisions, None if it has not applied the whole list yet; `lag` in milliseconds."""

    listener: Listener
    mode: Mode
    cluster: str | None
    live: bool
    behind: int | None
    lag: int
    error: str | None
    refused: int
    usable: int | None

    @classmethod
    def of(cls, service: Service, entry: ListenerEntry, usable: Callable[[ListenerEntry], int | None]) -> ListenerRow:
        live = entry.is_live(service.directory.lease_time())
        acked, revision = entry.listener.acked, service.view.tracker.revision
        return cls(
            listener=entry.listener,
            mode=entry.mode,
            cluster=service.directory.cluster_of(entry),
            live=live,
            behind=None if acked is None else max(0, revision - acked),
            lag=entry.lag_ms(service.feed, service.clock()),
            error=entry.error,
            refused=len(entry.refused),
            usable=usable(entry) if live else None,
        )

    @property
    def is_manager(self) -> bool:
        return self.listener.role is ListenerRole.RESOURCE_MANAGER


@dataclass(frozen=True, kw_only=True, slots=True)
class ListenerState:
    """All about a listener.

    Of one that is not live, `hosts` and `refusals` are as old as its last heartbeat; None if they are not known any
    more. `unknown` has a sentence for each fact that it does not report; `not_here` is the number of blocks of nodes of
    others.
    """

    row: ListenerRow
    wanted_mode: Mode
    hosts: HostsPage | None
    refusals: Excerpt[Refusal] | None
    not_here: int
    unknown: Sequence[str]
    evidence: Excerpt[Evidence]
    drift: Excerpt[Drift]

    @property
    def settled(self) -> bool:
        """Whether nothing is expected to change soon."""
        return not self.row.live or (self.row.behind == 0 and self.hosts is not None and self.hosts.settled)


async def listener_state(service: Service, shared: SharedValues, entry: ListenerEntry, page: int) -> ListenerState:
    """The state of a listener, with this page of its nodes, or the last one."""
    row = ListenerRow.of(service, entry, partial(usable_nodes, service, shared))
    hosts = await _hosts(service, shared, entry, page, live=row.live)
    return ListenerState(
        row=row,
        wanted_mode=service.directory.modes.wanted(entry.id),
        hosts=hosts,
        refusals=_refusals(service, entry),
        not_here=len(entry.report.not_here or ()),
        unknown=unknown_facts(entry, hosts, live=row.live),
        evidence=Excerpt.of(reversed(service.evidence.of_application(entry.id))),
        drift=Excerpt.of(_drift(service, entry)),
    )


def unknown_facts(entry: ListenerEntry, hosts: HostsPage | None, *, live: bool) -> list[str]:
    """What is not known of a listener, because it does not report it; a sentence each."""
    if not live:
        return ["Where its tasks run now, and which blocks are in force there: it has stopped reporting."]
    facts = []
    report, is_manager = entry.report, entry.listener.role is ListenerRole.RESOURCE_MANAGER
    if entry.listener.acked is None:
        facts.append("Whether any block is in force there: it has not acknowledged the list yet.")
    if report.task_managers is None and not is_manager:
        facts.append("Where its tasks run: it has not reported its TaskManagers.")
    if entry.has_unplaced_tasks:
        facts.append("Where all its tasks run: it does not report the nodes of some of their TaskManagers.")
    if hosts is not None and (unreported := hosts.tasks.unreported):
        total = hosts.task_managers
        which = "its only TaskManager" if total == 1 else f"{unreported:,} of its {total:,} TaskManagers"
        facts.append(f"How many tasks run on {which}: it does not report them.")
    if report.refused is None:
        facts.append("Whether it refuses a block: it has not reported that.")
    if report.nodes is None and is_manager:
        facts.append("Which nodes it has: it has not reported any.")
    return facts


async def _hosts(
    service: Service, shared: SharedValues, entry: ListenerEntry, page: int, *, live: bool
) -> HostsPage | None:
    """A page of the nodes; None if they are not known any more."""
    last = service.directory.last_reports.get(entry.id)
    if entry.expired and last is None:
        return None
    found = await listener_rows(service, shared, entry, lambda: last or _current_report(service, entry), live=live)
    return HostsPage.of(found, page)


def _current_report(service: Service, entry: ListenerEntry) -> LastReport:
    """What it reports, without TaskManagers that a newer report of another listener took."""
    task_managers = service.view.task_managers.reported_by(entry.id)
    hosts = tasks_by_host(task_managers, entry.running_tasks)
    return LastReport(
        hosts=hosts, reported_hosts=len(hosts), refused=entry.report.refused, reported_refusals=len(entry.refused)
    )


def _blocks(service: Service, name: str) -> list[BlockedNode]:
    return find_blocked(service.view.tracker, name, service.clock())


def _refusals(service: Service, entry: ListenerEntry) -> Excerpt[Refusal] | None:
    """What it refuses, or refused when it lapsed; None if that is not known."""
    refused, total = entry.report.refused, len(entry.refused)
    if entry.expired and (last := service.directory.last_reports.get(entry.id)) is not None:
        refused, total = last.refused, last.reported_refusals
    if refused is None:
        return None
    rows = [
        Refusal(node=node, reason=refused[node], blocked=bool(_blocks(service, node)))
        for node in nsmallest(MAX_ROWS, refused)
    ]
    return Excerpt(rows, total)


def _drift(service: Service, entry: ListenerEntry) -> list[Drift]:
    latest = service.drift.latest
    return [] if latest is None else [each for each in latest.drift if each.listener == entry.id]


# The pages of listeners, of one listener and of evidence.

router = APIRouter(route_class=HtmlRoute, include_in_schema=False)

MAX_LISTED = 500
"""Maximum number of rows on a page."""


@router.get("/page/listeners")
async def get_listeners(request: Request, visitor: ReaderVisitor) -> Response:
    """Lapsed listeners first, then those with the largest lag."""
    service = service_of(request)
    feed, now = service.feed, service.clock()
    lease_time = service.directory.lease_time()
    entries = sorted(
        service.directory.entries,
        key=lambda entry: (entry.is_live(lease_time), -entry.lag_ms(feed, now), entry.id),
    )
    usable = service.usable_nodes.counter()
    shown = [ListenerRow.of(service, entry, usable) for entry in entries[:MAX_LISTED]]
    jobs = Jobs(service.directory)
    without_agent = jobs.without_agent()
    return render_page(
        request,
        "listeners.html.j2",
        visitor,
        listeners=shown,
        total=len(entries),
        jobs=jobs,
        without_agent=without_agent[:MAX_LISTED],
        total_without_agent=len(without_agent),
    )


@router.get("/page/evidence")
async def get_evidence(request: Request, visitor: ReaderVisitor) -> Response:
    """The same evidence as GET /evidence."""
    service = service_of(request)
    assessed = service.evidence.assess(service.clock())
    settings = service.settings
    return render_page(
        request,
        "evidence.html.j2",
        visitor,
        assessed=assessed[:MAX_LISTED],
        total=len(assessed),
        required=settings.evidence_applications,
        window=TTL_MS,
    )


# The page of one listener, and its state, which the page reloads after a change.


@router.get("/page/listeners/{id}")
async def get_listener(request: Request, visitor: ReaderVisitor, listener_id: ResourceId) -> Response:
    """The whole page; with status 404 if there is no such listener."""
    state = await _state(request, listener_id)
    status = HTTPStatus.NOT_FOUND if state is None else HTTPStatus.OK
    return _render(request, visitor, "listener.html.j2", listener_id, state, status)


@router.get("/page/listeners/{id}/state")
async def get_state(request: Request, visitor: ReaderVisitor, listener_id: ResourceId) -> Response:
    """The state only; with status 200 also if the listener has left, as the page does not show errors."""
    return _render(request, visitor, "_listener.html.j2", listener_id, await _state(request, listener_id))


async def _state(request: Request, listener_id: str) -> ListenerState | None:
    service = service_of(request)
    try:
        entry = await service.registry.get(listener_id)
    except NotFoundError:
        return None
    page = max(1, int_param(request, "page") or 1)
    return await listener_state(service, shared_of(request), entry, page)


def _render(
    request: Request,
    visitor: Visitor,
    template: str,
    listener_id: str,
    state: ListenerState | None,
    status: HTTPStatus = HTTPStatus.OK,
) -> Response:
    service = service_of(request)
    return render_page(
        request,
        template,
        visitor,
        status,
        id=listener_id,
        state=state,
        authenticated=service.authenticator.enabled,
        forget_ms=FORGET_AFTER_MS,
    )
