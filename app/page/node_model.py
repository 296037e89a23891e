"""One node as its page shows it: its block, the jobs that run there, and what is reported about it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from app.api.applied import TaskManager, by_listener, task_managers_on
from app.listeners.reports import TasksOnHost
from app.page.excerpt import Excerpt
from app.page.host_rows import EXPLANATIONS, STATE_ORDER, BlockAtListener, HostState, host_state, is_settled
from app.page.listener_blocks import block_at
from app.service import Service
from blocklist.model.evidence import AssessedEvidence
from blocklist.model.inventory import Inventory, InventoryNode
from blocklist.model.listener import Drift, DriftReport, UnknownTasks
from blocklist.model.names import normalize_name
from blocklist.model.node import BlockedNode, TaskCount
from blocklist.model.reported_node import NodeSource, SourceKind


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRow:
    """A listener with TaskManagers on the node; `lapsed_at` (Unix ms) if it has stopped reporting.

    `task_managers` are their ids, as far as they are known.
    """

    listener: str
    number: int
    task_managers: Sequence[str]
    tasks: TaskCount
    block: BlockAtListener | None
    state: HostState
    lapsed_at: int | None = None

    @property
    def explanation(self) -> str:
        return EXPLANATIONS[self.state]

    @property
    def settled(self) -> bool:
        """Whether nothing is expected to change soon."""
        return self.lapsed_at is not None or is_settled(self.block, self.tasks)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reporter:
    """Who reports the node: a listener, or the file of nodes. `last_seen` is its last heartbeat (Unix ms)."""

    name: str
    kind: SourceKind
    last_seen: int | None

    @property
    def is_listener(self) -> bool:
        return self.kind is not SourceKind.FILE


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """What is known about a name: its node, None if nobody reports it, and who does.

    `ambiguous` are the nodes that the name may mean, if there are several; `suggestion` is the node that was probably
    meant; `any_known` is whether any node at all is reported.
    """

    node: InventoryNode | None
    reporters: Excerpt[Reporter]
    ambiguous: Sequence[str]
    suggestion: str | None
    any_known: bool

    @property
    def last_seen(self) -> int | None:
        """The latest heartbeat of a listener that reports it (Unix ms)."""
        return max((each.last_seen for each in self.reporters.rows if each.last_seen is not None), default=None)


@dataclass(frozen=True, slots=True)
class NodeEvidence:
    """The evidence about a node; `counted` applications count."""

    excerpt: Excerpt[AssessedEvidence]
    counted: int


@dataclass(frozen=True, slots=True)
class NodeDrift:
    """Where listeners report something else than the list says about a node, as of a time (Unix ms)."""

    observed_at: int
    drift: Excerpt[Drift]
    unknown: Sequence[UnknownTasks]


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeState:
    """What listeners report about a node, under any of its names."""

    identity: Identity
    jobs: Excerpt[JobRow]
    evidence: NodeEvidence
    drift: NodeDrift | None
    settled: bool

    @property
    def is_reported(self) -> bool:
        """Whether any listener, or the file of nodes, reports something about the node."""
        drift = self.drift is not None and self.drift.drift.total
        return self.identity.node is not None or bool(self.jobs.total or self.evidence.excerpt.total or drift)


def node_state(service: Service, asked: str, node_id: str, block: BlockedNode | None) -> NodeState:
    """The state of a node that was `asked` for under this name, and has this id and block."""
    names = machine_names(service.inventory, asked, node_id)
    jobs = jobs_on(service, node_id, block, names)
    return NodeState(
        identity=identity_of(service, node_id),
        jobs=Excerpt.of(jobs),
        evidence=evidence_about(service, node_id),
        drift=drift_of(service.drift.latest, names),
        settled=all(job.settled for job in jobs),
    )


def identity_of(service: Service, node_id: str) -> Identity:
    """What the inventory knows about a name."""
    inventory = service.inventory
    found, claimants = inventory.known_as(node_id), inventory.claimants(node_id)
    several = sorted(claimants or (found if len(found) > 1 else ()))
    node = inventory.get(next(iter(found))) if len(found) == 1 else None
    sources = () if node is None else node.sources
    reporters = sorted(
        (_reporter(service, source) for source in sources), key=lambda each: (each.kind, -(each.last_seen or 0))
    )
    return Identity(
        node=node,
        reporters=Excerpt.of(reporters),
        ambiguous=[inventory.spelling(each) for each in several],
        suggestion=None if node is not None or several else service.known_nodes.suggestion(node_id),
        any_known=bool(inventory),
    )


def machine_names(inventory: Inventory, *names: str) -> set[str]:
    """These names of a machine and all others that are known, in normal form."""
    return {normalize_name(name) for name in names}.union(*(inventory.aliases(name) for name in names))


def jobs_on(service: Service, node_id: str, block: BlockedNode | None, names: Collection[str]) -> list[JobRow]:
    """The jobs that run on a node, those that need attention first; and those that ran there when they lapsed."""
    rows = [_job(service, *item, block) for item in by_listener(task_managers_on(service, node_id)).items()]
    rows += _lapsed_jobs(service, block, names)
    return sorted(rows, key=lambda row: (STATE_ORDER[row.state], -row.tasks.known, row.listener))


def evidence_about(service: Service, node_id: str) -> NodeEvidence:
    """What applications report about a node, under any of its names."""
    found = service.evidence.assess_node(node_id, service.clock())
    return NodeEvidence(Excerpt.of(found), sum(each.ignored_reason is None for each in found))


def drift_of(report: DriftReport | None, names: Collection[str]) -> NodeDrift | None:
    """The drift of a node with these names, in normal form; None before the first observation."""
    if report is None:
        return None
    return NodeDrift(
        report.observed_at,
        Excerpt.of(each for each in report.drift if each.node.lower() in names),
        [each for each in report.unknown if each.node.lower() in names],
    )


def _reporter(service: Service, source: NodeSource) -> Reporter:
    entry = None if source.kind is SourceKind.FILE else service.directory.get(source.name)
    seen = None if entry is None else entry.listener.lease_end - entry.listener.lease
    return Reporter(name=source.name, kind=source.kind, last_seen=seen)


def _job(service: Service, listener: str, task_managers: Sequence[TaskManager], block: BlockedNode | None) -> JobRow:
    entry = service.directory.get(listener)
    tasks = TaskCount.of(each.running_tasks for each in task_managers)
    at = None if block is None or entry is None else block_at(service, entry, block)
    return JobRow(
        listener=listener,
        number=len(task_managers),
        task_managers=[each.id for each in task_managers],
        tasks=tasks,
        block=at,
        state=host_state(at, tasks, reports=True),
    )


def _lapsed_jobs(service: Service, block: BlockedNode | None, names: Collection[str]) -> Iterator[JobRow]:
    directory = service.directory
    for listener, host in directory.last_reports.on_hosts(names):
        if (entry := directory.get(listener)) is not None:
            yield _lapsed_job(host, entry.id, entry.listener.lease_end, block)


def _lapsed_job(host: TasksOnHost, listener: str, lapsed_at: int, block: BlockedNode | None) -> JobRow:
    at = None if block is None else BlockAtListener(block, applied=False, refused=None)
    return JobRow(
        listener=listener,
        number=host.task_managers,
        task_managers=(),
        tasks=host.tasks,
        block=at,
        state=host_state(at, host.tasks, reports=False),
        lapsed_at=lapsed_at,
    )
