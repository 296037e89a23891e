"""One node as its page shows it: its block, the jobs that run there, and what is reported about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from app.api.inventory import clusters_of, last_seen
from app.api.node_status import ListenerProgress, TaskManager, applied_by_live_listeners, by_listener, task_managers_on
from app.api.parameters import NodeId, PageRequest
from app.listeners.reports import TasksOnHost
from app.listeners.state import ListenerEntry
from app.page.forms import HtmlRoute, int_param
from app.page.history import WIDTH, BlockInterval, Box, intervals, time_labels
from app.page.list import owners_of
from app.page.shared import Excerpt, ReaderVisitor, Visitor, render_page
from app.service import Service, service_of
from app.store.queries import ChangeFilter
from blocklist.model.changes import Change
from blocklist.model.claims import DETECTION_OWNER, Claim, claim_of
from blocklist.model.draft import claims_on
from blocklist.model.errors import UnavailableError
from blocklist.model.evidence import EVIDENCE_OWNER, TTL_MS
from blocklist.model.inventory import Inventory
from blocklist.model.names import normalize_name
from blocklist.model.node import BlockAction, BlockedNode, BlockState, TaskCount, block_state

# The nodes on which a listener's tasks run: what is blocked there, and what still runs. Pure.
#
# What a listener does not report is unknown, never zero.


class HostState(StrEnum):
    """What happens to the tasks of a listener on a node. In the order in which people look at them."""

    REFUSED = "refused"
    EVACUATING = "evacuating"
    UNKNOWN = "unknown"
    PENDING = "not applied yet"
    OBSERVED = "not applied in this mode"
    LEFT_ALONE = "left alone"
    EMPTY = "empty"
    FREE = "free"


STATE_ORDER: Final = {state: place for place, state in enumerate(HostState)}
EXPLANATIONS: Final = {
    HostState.REFUSED: "The listener does not carry out the block.",
    HostState.EVACUATING: "Tasks that run there are being stopped and restart elsewhere.",
    HostState.UNKNOWN: "It is not known whether tasks run there.",
    HostState.PENDING: "The listener has not applied the last change of the block.",
    HostState.OBSERVED: "The listener only observes, or is off: it applies no block.",
    HostState.LEFT_ALONE: "No new tasks start there; those that run may finish.",
    HostState.EMPTY: "No task runs there.",
    HostState.FREE: "The node is not blocked.",
}

_STATES: Final = {
    BlockState.REFUSED: HostState.REFUSED,
    BlockState.PENDING: HostState.PENDING,
    BlockState.UNKNOWN: HostState.UNKNOWN,
    BlockState.EMPTY: HostState.EMPTY,
}


@dataclass(frozen=True, slots=True)
class BlockAtListener:
    """A block, whether the listener has applied its last change, and why it refuses the block, if it does.

    `observed`: the listener applies no blocks; `would` is what it would do.
    """

    node: BlockedNode
    applied: bool
    refused: str | None
    observed: bool = False
    would: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TasksRow:
    """What runs on a node for a listener, on the page of either: `name` is that of the other one.

    `task_managers` is a number, `ids` are those that are known; `block` is None if the node is free; `lapsed_at` (Unix
    ms) is when the listener stopped reporting, if it has.
    """

    name: str
    task_managers: int
    tasks: TaskCount
    block: BlockAtListener | None
    state: HostState
    ids: Sequence[str] = ()
    lapsed_at: int | None = None

    @property
    def explanation(self) -> str:
        return EXPLANATIONS[self.state]

    @property
    def settled(self) -> bool:
        """Whether nothing is expected to change: also if the block is refused, or evacuates, and nothing may run."""
        block = self.block
        if self.lapsed_at is not None or block is None or block.observed or block.refused is not None:
            return True
        return block.applied and not (block.node.evacuates and self.tasks.may_run)


def host_state(block: BlockAtListener | None, tasks: TaskCount, *, reports: bool) -> HostState:
    """What happens to the tasks; `reports` is whether the listener still reports them."""
    if block is None:
        return HostState.FREE
    if not reports:
        return HostState.UNKNOWN
    if block.observed:
        return HostState.OBSERVED
    state = block_state(tasks, refused=block.refused is not None, applied=block.applied)
    if state is BlockState.RUNNING:
        return HostState.EVACUATING if block.node.evacuates else HostState.LEFT_ALONE
    return _STATES[state]


def host_rows(
    hosts: Iterable[TasksOnHost], block_of: Callable[[str], BlockAtListener | None], *, reports: bool
) -> list[TasksRow]:
    """The rows of a listener; `block_of` returns the block of a node."""
    rows = []
    for host in hosts:
        block = block_of(host.node)
        state = host_state(block, host.tasks, reports=reports)
        rows.append(
            TasksRow(name=host.node, task_managers=host.task_managers, tasks=host.tasks, block=block, state=state)
        )
    return by_urgency(rows)


def by_urgency(rows: Iterable[TasksRow]) -> list[TasksRow]:
    """Those that need attention first."""
    return sorted(rows, key=lambda row: (STATE_ORDER[row.state], -row.tasks.known, row.name))


def count_states(rows: Iterable[TasksRow]) -> Sequence[tuple[HostState, int]]:
    """The number of blocked nodes in each state, without states that no node has."""
    counts = Counter(row.state for row in rows)
    return [(state, counts[state]) for state in HostState if counts[state] and state is not HostState.FREE]


def machine_names(inventory: Inventory, *names: str) -> set[str]:
    """These names of a machine and all others that are known, in normal form."""
    return {normalize_name(name) for name in names}.union(*(inventory.aliases(name) for name in names))


def jobs_on(service: Service, node_id: str, block: BlockedNode | None, names: Collection[str]) -> list[TasksRow]:
    """The jobs that run on a node, and those that ran there when they lapsed."""
    rows = [_job(service, *item, block) for item in by_listener(task_managers_on(service, node_id)).items()]
    return by_urgency([*rows, *_lapsed_jobs(service, block, names)])


def _job(service: Service, listener: str, task_managers: Sequence[TaskManager], block: BlockedNode | None) -> TasksRow:
    entry = service.directory.get(listener)
    tasks = TaskCount.of(each.running_tasks for each in task_managers)
    at = None if block is None or entry is None else block_at(service, entry, block)
    return TasksRow(
        name=listener,
        task_managers=len(task_managers),
        ids=[each.id for each in task_managers],
        tasks=tasks,
        block=at,
        state=host_state(at, tasks, reports=True),
    )


def _lapsed_jobs(service: Service, block: BlockedNode | None, names: Collection[str]) -> Iterator[TasksRow]:
    directory = service.directory
    at = None if block is None else BlockAtListener(block, applied=False, refused=None)
    for listener, host in directory.last_reports.on_hosts(names):
        if (entry := directory.get(listener)) is not None:
            yield TasksRow(
                name=entry.id,
                task_managers=host.task_managers,
                tasks=host.tasks,
                block=at,
                state=host_state(at, host.tasks, reports=False),
                lapsed_at=entry.listener.lease_end,
            )


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
    older: str | None
    last: Change | None
    strip: BlockStrip | None


async def node_history(service: Service, node_id: str, block: BlockedNode | None, before: int | None) -> NodeHistory:
    """The changes of a node under any of its names, before a revision. Raises UnavailableError."""
    store = service.store
    limit = (MAX_CHANGES if before is None else PAGE_SIZE) + 1
    changes = await store.latest_changes(limit, ChangeFilter(node_id=node_id), before=before)
    last = changes[0] if changes and before is None else await store.last_change(node_id)
    shown, older = PageRequest(PAGE_SIZE).cut(changes, lambda change: change.revision)
    return NodeHistory(
        changes=shown,
        older=older,
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
    service, before = service_of(request), int_param(request, "after")
    settings, now = service.settings, service.clock()
    node = service.view.get(asked)
    node_id = asked if node is None else node.id
    history = await _history(service, node_id, node, before)
    last = None if history is None else history.last
    names = machine_names(service.inventory, asked, node_id)
    machine, jobs = _machine(service, node_id), jobs_on(service, node_id, node, names)
    evidence = service.evidence.assess_node(node_id, now)
    observed = service.drift.latest
    drift = [] if observed is None else [each for each in observed.drift if each.node.lower() in names]
    listeners = [] if last is None else _progress(service, last)
    claims = () if node is None else claims_on(service.view.tracker, node, now)
    changes = history.changes if history is not None and before is None else ()
    reported = bool(machine["node"] or jobs or evidence or drift)
    known = node is not None or history is None or last is not None or reported
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
        owners=owners_of(claims),
        evidence_claims=latest_evidence_claims(changes, claims),
        dismissals=service.dismissals.of_node(node_id),
        history=history,
        strip_days=STRIP_DAYS,
        machine=machine,
        jobs=Excerpt.of(jobs),
        evidence=Excerpt.of(evidence),
        counting=sum(each.ignored_reason is None for each in evidence),
        observed=observed,
        drift=Excerpt.of(drift),
        unknown_tasks=[] if observed is None else [it for it in observed.unknown if it.node.lower() in names],
        listeners=Excerpt.of(listeners),
        counted=sum(listener.counts for listener in listeners),
        applied=sum(listener.applied for listener in listeners),
        settled=all(job.settled for job in jobs) and not any(listener.pending for listener in listeners),
        required=settings.evidence_applications,
        window=TTL_MS,
    )


def _machine(service: Service, node_id: str) -> dict[str, Any]:
    """What the inventory knows about a name: its node, None if nobody reports it, and who does.

    Also the nodes that the name may mean, if there are several, and the node that was probably meant.
    """
    inventory = service.inventory
    found, claimants = inventory.known_as(node_id), inventory.sharing(node_id)
    several = sorted(claimants or (found if len(found) > 1 else ()))
    node = inventory.get(next(iter(found))) if len(found) == 1 else None
    seen = {} if node is None else {source: last_seen(service, source) for source in node.sources}
    return {
        "node": node,
        "reporters": sorted(seen, key=lambda source: (source.kind, -(seen[source] or 0))),
        "last_seen": max((at for at in seen.values() if at is not None), default=None),
        "clusters": {} if node is None else clusters_of(service, node),
        "ambiguous": [inventory.spelling(each) for each in several],
        "suggestion": None if node is not None or several else service.known_nodes.suggestion(node_id),
        "any_known": bool(inventory),
    }


async def _history(service: Service, node_id: str, node: BlockedNode | None, before: int | None) -> NodeHistory | None:
    """None while the change log cannot be read: all else is in memory, and needed then."""
    try:
        return await node_history(service, node_id, node, before)
    except UnavailableError:
        return None


def _progress(service: Service, change: Change) -> list[ListenerProgress]:
    """The live listeners; first those that have not applied the change."""
    progress = applied_by_live_listeners(service, change)
    return sorted(progress, key=lambda it: (not it.counts, it.applied, not it.refused, not it.task_managers))


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
        if (claim := claim_of(change.claims, owner)) is not None:
            yield change, claim


# A block as one listener has it.


def block_at(service: Service, entry: ListenerEntry, block: BlockedNode) -> BlockAtListener:
    """Whether the listener has applied the last change of a block, or refuses the block."""
    revision = service.last_changes.revision_of(block.id, service.view.tracker.revision)
    state = entry.state_of(revision, block.id)
    refused = entry.refusal_of(block.id) if state is BlockState.REFUSED else None
    return BlockAtListener(block, state.is_applied, refused, not entry.applies, entry.would_do(block.id))
