"""Listeners: registration, leases, sessions, what each has applied, its reports, and drift. Pure.

FLIP-224's JobMasters and ResourceManagers, with the leases and session ids of Flink's heartbeats.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from blocklist.model.errors import BlocklistError, InvalidError, NotFoundError
from blocklist.model.evidence import Finding
from blocklist.model.node import TaskCount
from blocklist.model.reported_node import ReportedNode, make_label_value, node_ids
from blocklist.model.selector import MAX_NAME_LENGTH, check_label_value

MAX_FORMER_SESSIONS: Final = 16
"""Number of former sessions of a listener that stay fenced."""
LEASE_SECONDS: Final = 50
"""Default lease: a listener without a heartbeat for this time lapses (Flink's heartbeat.timeout)."""
HEARTBEAT_SECONDS: Final = 10.0
"""Interval between two heartbeats (Flink's heartbeat.interval)."""
MAX_ENTRIES: Final = 10_000
"""Maximum number of entries in each map of a heartbeat."""
MAX_APPLICATIONS: Final = 2_000
"""Maximum number of applications that a manager reports."""
MAX_APPLICATION_LENGTH: Final = 100
"""Maximum length of what a manager reports about an application, in characters."""
MAX_SOFTWARE_LENGTH: Final = 200
"""Maximum length of each text that says which software a listener is, in characters."""
MAX_REASON_LENGTH: Final = 300
"""Maximum length of the reason for refusing a block, and of a node's reported state, in characters."""


class ListenerRole(StrEnum):
    """FLIP-224, Blocklist synchronisation: ResourceManagers are notified before JobMasters."""

    JOB_MASTER = "JOB_MASTER"
    RESOURCE_MANAGER = "RESOURCE_MANAGER"


class Mode(StrEnum):
    """How a listener acts: it applies blocks; says what it would do and changes nothing; has freed all and rests."""

    APPLY = "apply"
    OBSERVE = "observe"
    OFF = "off"

    def weaker(self, other: Mode) -> Mode:
        """The one that does less."""
        return max(self, other, key=list(Mode).index)


class ModeRecord(NamedTuple):
    """The mode that somebody has set for listeners at a time (Unix ms). `pattern`: an id, the beginning of ids and `*`,
    or `*`.
    """

    pattern: str
    mode: Mode
    created_by: str | None
    at: int


class Modes:
    """The modes that are set, indexed: each heartbeat of each listener asks for its own. Immutable."""

    def __init__(self, records: Iterable[ModeRecord] = ()) -> None:
        """At most one record for each pattern."""
        self.records: Final = tuple(records)
        self._by_id = {it.pattern: it.mode for it in self.records if not it.pattern.endswith("*")}
        self._by_prefix = {it.pattern[:-1]: it.mode for it in self.records if it.pattern.endswith("*")}
        self._lengths = sorted({len(prefix) for prefix in self._by_prefix}, reverse=True)

    def wanted(self, listener_id: str) -> Mode:
        """The mode of the most exact pattern, which is an id, else the longest; `apply` if none matches."""
        if (mode := self._by_id.get(listener_id)) is not None:
            return mode
        prefixes = (listener_id[:length] for length in self._lengths if length <= len(listener_id))
        return next((self._by_prefix[it] for it in prefixes if it in self._by_prefix), Mode.APPLY)


class FencedError(BlocklistError):
    """Another session of the listener has taken over; this session is rejected from now on."""


def truncate_reasons(reasons: Mapping[str, str]) -> dict[str, str]:
    """Truncate a map from node id to reason to what a heartbeat may contain: the first ids, with shortened reasons."""
    return {node_id: reasons[node_id][:MAX_REASON_LENGTH] for node_id in sorted(reasons)[:MAX_ENTRIES]}


def check_cluster(name: str) -> str:
    """The name of a cluster, which is the value of a label. Raises InvalidError."""
    if not name:
        raise InvalidError("The name of a cluster is empty.")
    return check_label_value(name)


def default_cluster(kind: str, listener_id: str) -> str:
    """The name of a cluster that was given none: `yarn-rm1` or `kubernetes`, and `slurm-c1` of the listener `c1`."""
    has_kind = listener_id == kind or listener_id.startswith(f"{kind}-")
    name = make_label_value(listener_id if has_kind else f"{kind}-{listener_id}")
    return name[:MAX_NAME_LENGTH].strip("_.-")


class Software(NamedTuple):
    """What a listener runs: `blocklist-spark`, `0.1.0`, and on what: `Spark 4.3.0, Scala 2.13.17, Java 17.0.9`."""

    product: str | None = None
    version: str | None = None
    platform: str | None = None


NO_SOFTWARE: Final = Software()
"""Of a listener that does not say it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Registration:
    """A request to register. Without a `callback_url` the listener watches; `lease` is in milliseconds.

    `min_nodes` is the number of its nodes that must stay usable; 0 means no minimum. `cluster` is the cluster whose
    nodes it manages or uses, None if unknown. `mode` is the one that it begins with.
    """

    id: str
    role: ListenerRole
    session: str
    callback_url: str | None = None
    lease: int = LEASE_SECONDS * 1000
    min_nodes: int = 0
    cluster: str | None = None
    software: Software = NO_SOFTWARE
    mode: Mode = Mode.APPLY


@dataclass(frozen=True, kw_only=True, slots=True)
class Listener:
    """A registered listener. Times are Unix milliseconds; it is live before `lease_end`.

    `acked` is the revision up to which it has applied the list; None until it has applied the whole list once.
    `former_sessions` were taken over, the latest last. `registered_at` is not changed by renewals. `principal` is who
    registered it; None if unknown, or without authentication. `confirmed` is whether it is known to live: false if the
    service was away since its last heartbeat, or registration, so that nobody could notice its end.
    """

    id: str
    role: ListenerRole
    session: str
    callback_url: str | None
    lease: int
    lease_end: int
    acked: int | None
    former_sessions: tuple[str, ...] = ()
    min_nodes: int = 0
    cluster: str | None = None
    software: Software = NO_SOFTWARE
    mode: Mode = Mode.APPLY
    registered_at: int = 0
    principal: str | None = None
    confirmed: bool = True

    def is_live(self, now: int) -> bool:
        return now < self.lease_end

    @property
    def last_heartbeat(self) -> int:
        return self.lease_end - self.lease

    def is_behind(self, revision: int) -> bool:
        """Whether the listener has not applied everything up to this revision."""
        return self.acked is None or self.acked < revision

    @property
    def registration_key(self) -> tuple[str, int]:
        """Identifies the registration: a renewal does not change it."""
        return self.session, self.registered_at

    def with_latest(self, other: Listener) -> Listener:
        """The listener with the later cursor and lease of both, if `other` is the same registration."""
        if self.registration_key != other.registration_key:
            return self
        acked = other.acked if self.acked is None or (other.acked or 0) > self.acked else self.acked
        return replace(self, acked=acked, lease_end=max(self.lease_end, other.lease_end))


def register(
    current: Listener | None,
    requested: Registration,
    *,
    now: int,
    revision: int,
    empty: bool,
    principal: str | None = None,
) -> Listener:
    """The listener after registering, renewing or taking over; `empty` means that nothing is blocked at `revision`.

    A renewal keeps the cursor. A new session or principal, or one whose lease had lapsed, starts from the whole list.
    From an empty list a JobMaster, which has just begun, is up to date at once (FLIP-224, Register). A ResourceManager
    is not: in its cluster, nodes that are free by now may still be blocked. Raises FencedError for a session that was
    taken over.
    """
    if current is not None and requested.session in current.former_sessions:
        raise FencedError(
            f"Session {requested.session} of listener {requested.id} was taken over by {current.session}."
        )
    renewed = current if current is not None and _is_renewal(current, requested, principal, now) else None
    up_to_date = empty and requested.role is ListenerRole.JOB_MASTER
    return Listener(
        id=requested.id,
        role=requested.role,
        session=requested.session,
        callback_url=requested.callback_url,
        lease=requested.lease,
        lease_end=now + requested.lease,
        acked=renewed.acked if renewed is not None else (revision if up_to_date else None),
        former_sessions=_former_sessions(current, requested.session),
        min_nodes=requested.min_nodes,
        cluster=requested.cluster,
        software=requested.software,
        mode=requested.mode,
        registered_at=renewed.registered_at if renewed is not None else now,
        principal=principal,
        confirmed=renewed is None or renewed.confirmed,
    )


def _is_renewal(current: Listener, requested: Registration, principal: str | None, now: int) -> bool:
    """What one principal reported must not become another's; an unknown principal becomes known."""
    same_principal = current.principal is None or current.principal == principal
    return current.session == requested.session and same_principal and current.is_live(now)


def _former_sessions(current: Listener | None, session: str) -> tuple[str, ...]:
    if current is None:
        return ()
    taken_over = (current.session,) if current.session != session else ()
    return (*current.former_sessions, *taken_over)[-MAX_FORMER_SESSIONS:]


def heartbeat(
    current: Listener | None,
    session: str,
    acked: int | None,
    *,
    now: int,
    revision: int,
    principal: str | None = None,
    lease_time: int | None = None,
) -> Listener:
    """The listener after a heartbeat that acknowledges the list up to `acked`; None acknowledges nothing.

    A revision lower than the acknowledged one is ignored. Raises NotFoundError if the listener must register again,
    also because another principal registered it, FencedError for a session other than the current one, InvalidError
    for a revision above the current one. `principal` is None without authentication. `lease_time`, by default now, is
    the time up to which all renewals are known.
    """
    if current is None:
        raise NotFoundError("There is no such listener: register again.")
    if current.session != session:
        raise FencedError(f"Listener {current.id} is registered with another session.")
    if principal is not None and principal != current.principal:
        raise NotFoundError(f"Listener {current.id} was not registered with this token: register again.")
    if not current.is_live(now if lease_time is None else lease_time):
        raise NotFoundError(f"The lease of listener {current.id} has lapsed: register again.")
    if acked is not None and acked > revision:
        raise InvalidError(f"ackedRevision: {acked} is above the current revision {revision}.")
    known = current.acked
    latest = known if acked is None or (known is not None and acked < known) else acked
    return replace(current, acked=latest, lease_end=now + current.lease, confirmed=True)


# Report: what a listener reports about itself in a heartbeat or in its response to a push.


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The state of a listener. A field replaces its previous value; None leaves it unchanged.

    `task_managers` maps TaskManager id to node id, `running_tasks` TaskManager id to the number of its tasks, `refused`
    node id to the reason why the block will not be carried out unless somebody acts, `pending` node id to the reason
    why a block, or the end of one, is not in force yet, or not known to be, `evidence` node id to finding; `nodes` are
    all nodes that the listener may use: ids, or what it knows about them. A manager reports in `not_here` the blocked
    nodes that its whole inventory does not have, in `schedulable` the blocked nodes that still get work, in
    `unschedulable` the nodes that get none for another reason than a block: node id to its state, and in `replaced` the
    blocked nodes whose name another machine has since; in `new_machines` those of which that is certain, with the time
    since when (Unix ms). `mode` is the one that it is in; in the mode observe, `would` has what it would do for blocks:
    node id to a sentence. A manager that knows which applications run reports them in `applications`, id to name and
    user, and in `applications_unknown` why these may not be all; empty if they are. Do not change them afterwards.
    """

    task_managers: Mapping[str, str] | None = None
    running_tasks: Mapping[str, int] | None = None
    refused: Mapping[str, str] | None = None
    pending: Mapping[str, str] | None = None
    not_here: frozenset[str] | None = None
    evidence: Mapping[str, Finding] | None = None
    nodes: Sequence[str | ReportedNode] | None = None
    schedulable: Mapping[str, str] | None = None
    unschedulable: Mapping[str, str] | None = None
    replaced: Mapping[str, str] | None = None
    new_machines: Mapping[str, int] | None = None
    mode: Mode | None = None
    would: Mapping[str, str] | None = None
    applications: Mapping[str, str] | None = None
    applications_unknown: str | None = None

    def given(self) -> dict[str, Any]:
        """The fields that are not None, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def changed_from(self, earlier: Report) -> set[str]:
        """Names of the given fields that differ from an earlier report."""
        return {name for name, value in self.given().items() if value != getattr(earlier, name)}

    def over(self, earlier: Report) -> Report:
        """All that is reported once this report follows an earlier one."""
        return replace(earlier, **self.given())

    def only(self, names: Collection[str]) -> Report:
        """The same with these fields alone."""
        return Report(**{name: value for name, value in self.given().items() if name in names})

    def of_role(self, role: ListenerRole) -> Report:
        """The same without what only the other role may report."""
        return self.only([name for name in self.given() if ONLY_FROM.get(name, role) is role])

    def named_nodes(self) -> set[str]:
        """All nodes that the listener says it may use or has TaskManagers on."""
        return {*self.node_ids(), *(self.task_managers or {}).values()}

    def node_ids(self) -> Sequence[str]:
        """The ids of all nodes that the listener says it may use."""
        return node_ids(self.nodes or ())


EMPTY_REPORT: Final = Report()
ONLY_FROM: Final[Mapping[str, ListenerRole]] = MappingProxyType(
    {
        "evidence": ListenerRole.JOB_MASTER,
        "not_here": ListenerRole.RESOURCE_MANAGER,
        "schedulable": ListenerRole.RESOURCE_MANAGER,
        "unschedulable": ListenerRole.RESOURCE_MANAGER,
        "replaced": ListenerRole.RESOURCE_MANAGER,
        "new_machines": ListenerRole.RESOURCE_MANAGER,
        "applications": ListenerRole.RESOURCE_MANAGER,
        "applications_unknown": ListenerRole.RESOURCE_MANAGER,
    }
)
"""The fields of a Report that only one role may report: a job knows its tasks, a manager its cluster's nodes."""


# Drift: where a listener's nodes are not as the list says, and since when. Pure; times are Unix milliseconds.
#
# Only what listeners report counts. A number of running tasks that is not reported is unknown, not zero.


class DriftKind(StrEnum):
    """What differs.

    Blocked here: evacuated, but tasks still run there; tasks started after the listener had applied the block; the
    manager still gives out the node; another machine has its name since. Free here: the manager does not give out the
    node.
    """

    TASKS_RUNNING = "tasks-running"
    TASKS_STARTED = "tasks-started"
    SCHEDULABLE = "schedulable"
    REPLACED = "replaced"
    UNSCHEDULABLE = "unschedulable"

    @property
    def blocked_here(self) -> bool:
        """Whether the node is blocked on the list."""
        return self is not DriftKind.UNSCHEDULABLE


_NOBODY: Final[Mapping[str, ReportingListener]] = MappingProxyType({})
MAX_NAMED: Final = 5
"""Maximum number of TaskManagers that a reason names."""


class _Begin(NamedTuple):
    """When drift was first observed, and whether it began then."""

    at: int
    observed: bool


class _Key(NamedTuple):
    node: str
    kind: DriftKind
    listener: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Drift:
    """One difference between the list and what a listener reports, observed without a gap since a time.

    `begin_observed` is whether it began then; otherwise it may be older: it was there when the observation began.
    """

    node: str
    kind: DriftKind
    listener: str
    since: int
    reason: str
    begin_observed: bool = False


class ReportingListener(NamedTuple):
    """A live listener that reports its state: its registration, and its lease in milliseconds."""

    registration: tuple[str, int]
    lease: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TasksOnBlockedNode:
    """The TaskManagers of a live listener on a blocked node: id to the number of running tasks, None if not reported.

    `block_start` and `evacuates` are those of the block, `registration` and `lease` (milliseconds) of the listener.
    `acked` is whether the block is in force there or refused, `refused` why it does not carry it out.
    """

    node: str
    block_start: int
    evacuates: bool
    listener: str
    registration: tuple[str, int]
    lease: int
    acked: bool
    refused: str | None
    running: Mapping[str, int | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportedState:
    """A node that a listener reports as schedulable although blocked, or as unschedulable although free."""

    node: str
    kind: DriftKind
    listener: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class UnknownTasks:
    """A listener with TaskManagers on an evacuated node whose running tasks it does not report."""

    node: str
    listener: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DriftReport:
    """All drift at a time, and where it is unknown whether tasks run; both sorted by node."""

    observed_at: int
    drift: Sequence[Drift] = ()
    unknown: Sequence[UnknownTasks] = ()


@dataclass(slots=True)
class _Baseline:
    """The fewest running tasks on each TaskManager since the listener applied the block; None if not reported yet.

    `fewest` is None until a lease has passed since `acked_at`: what was reported before may be older than the block.
    """

    acked_at: int
    fewest: dict[str, int | None] | None = None


@dataclass(slots=True)
class DriftObserver:
    """Compares one observation with the ones before. Observe every few seconds, as tasks come and go.

    `evacuation_ms` is how long tasks may still run on an evacuated node. All maps hold only what the last observation
    contained.
    """

    evacuation_ms: int
    _since: dict[_Key, _Begin] = field(default_factory=dict)
    _reporting_since: dict[tuple[str, tuple[str, int]], int] = field(default_factory=dict)
    _baselines: dict[tuple[str, tuple[str, int], str, int], _Baseline] = field(default_factory=dict)

    def observe(
        self,
        tasks: Sequence[TasksOnBlockedNode],
        reported: Iterable[ReportedState],
        now: int,
        reporting: Mapping[str, ReportingListener] = _NOBODY,
    ) -> DriftReport:
        """The drift at this time. `reporting` are the live listeners that report their state, by id."""
        reasons = dict(self._started(tasks, now))
        for each in tasks:
            if (reason := _running_reason(each)) is not None:
                reasons[_Key(each.node, DriftKind.TASKS_RUNNING, each.listener)] = reason
        reasons |= {_Key(state.node, state.kind, state.listener): state.reason for state in reported}
        complete = self._completely_reporting(reporting, now)
        self._since = {key: self._since.get(key) or _Begin(now, key.listener in complete) for key in reasons}
        drift = [
            Drift(
                node=key.node,
                kind=key.kind,
                listener=key.listener,
                since=begin.at,
                reason=reasons[key],
                begin_observed=begin.observed,
            )
            for key, begin in sorted(self._since.items())
            if now - begin.at >= (self.evacuation_ms if key.kind is DriftKind.TASKS_RUNNING else 0)
        ]
        return DriftReport(observed_at=now, drift=drift, unknown=_unknown(tasks))

    def _completely_reporting(self, reporting: Mapping[str, ReportingListener], now: int) -> set[str]:
        """The listeners that have reported all of their state before: at the latest after a lease."""
        earlier = self._reporting_since
        self._reporting_since = {
            (name, listener.registration): earlier.get((name, listener.registration), now)
            for name, listener in reporting.items()
        }
        return {
            name
            for name, listener in reporting.items()
            if now - self._reporting_since[name, listener.registration] >= listener.lease
        }

    def _started(self, tasks: Iterable[TasksOnBlockedNode], now: int) -> Iterator[tuple[_Key, str]]:
        earlier, self._baselines = self._baselines, {}
        for each in tasks:
            identity = each.listener, each.registration, each.node, each.block_start
            baseline = earlier.get(identity)
            if baseline is None and not each.acked:
                continue
            baseline = self._baselines[identity] = baseline or _Baseline(now)
            if started := _started_on(baseline, each, now):
                named = ", ".join(started[:MAX_NAMED])
                more = f" and {len(started) - MAX_NAMED} more" if len(started) > MAX_NAMED else ""
                reason = f"tasks started on {named}{more} after the listener had applied the block"
                yield _Key(each.node, DriftKind.TASKS_STARTED, each.listener), reason


def _started_on(baseline: _Baseline, tasks: TasksOnBlockedNode, now: int) -> list[str]:
    """The TaskManagers on which more tasks run than before, and the new ones that run any."""
    fewest = baseline.fewest
    if fewest is None:
        if now - baseline.acked_at >= tasks.lease:
            baseline.fewest = dict(tasks.running)
        return []
    before = {task_manager: fewest.get(task_manager, 0) for task_manager in tasks.running}
    baseline.fewest = {name: _fewer(before[name], count) for name, count in tasks.running.items()}
    return [name for name, count in sorted(tasks.running.items()) if _is_more(count, before[name])]


def _fewer(before: int | None, count: int | None) -> int | None:
    return count if before is None else before if count is None else min(before, count)


def _is_more(count: int | None, before: int | None) -> bool:
    return count is not None and before is not None and count > before


def _running_reason(tasks: TasksOnBlockedNode) -> str | None:
    """How many tasks run on an evacuated node, and why; None if none do, or none are reported."""
    count = TaskCount.of(tasks.running.values())
    if not tasks.evacuates or not count.known:
        return None
    if tasks.refused is not None:
        return f"{count.text()}; the listener refuses the block: {tasks.refused}"
    return f"{count.text()}; the listener has {'' if tasks.acked else 'not '}applied the block"


def _unknown(tasks: Iterable[TasksOnBlockedNode]) -> list[UnknownTasks]:
    unreported = [each for each in tasks if each.evacuates and None in each.running.values()]
    return sorted(
        (UnknownTasks(node=each.node, listener=each.listener) for each in unreported),
        key=lambda each: (each.node, each.listener),
    )
