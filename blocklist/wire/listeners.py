"""The bodies of /listeners and reports, and those that /nodes, /taskmanagers, /evidence and /drift answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Final, Literal

from blocklist.model.listener import Report
from blocklist.model.node import TaskCount
from blocklist.model.reported_node import ReportedNode
from blocklist.wire.body import Body, Doc, Json, Millis, Page, camel, matching, with_example
from blocklist.wire.nodes import NodeBody, RepeatBody

if TYPE_CHECKING:
    from blocklist.model.evidence import AssessedEvidence, Finding
    from blocklist.model.listener import Drift, DriftReport, Listener, Mode, ModeRecord

AgentState = Literal["live", "lapsed", "none"]
ListenerRoleName = Literal["JOB_MASTER", "RESOURCE_MANAGER"]
ModeName = Literal["apply", "observe", "off"]
BlockStateName = Literal["refused", "pending", "running", "unknown", "empty", "not-here"]


@dataclass(kw_only=True)
class SecretBody(Body):
    """The secret that signs pushes; shown only once."""

    secret: Annotated[str, matching("^whsec_")]


@dataclass(kw_only=True)
class LeaseBody(Body):
    """The response to a heartbeat."""

    revision: int
    lease_end: Millis
    mode: Annotated[
        ModeName,
        Doc("The mode that the service wants: the listener takes this one or its own, whichever does less."),
    ] = "apply"
    reported: Annotated[
        list[str],
        Doc(
            "The fields of the listener's report that the service has, evidence excepted. Send a field"
            " that is missing here again: the service has restarted, or not all replicas can know it yet."
        ),
    ]


@dataclass(kw_only=True)
class ListenerBody(Body):
    """A listener, and how far it lags behind."""

    id: str
    role: ListenerRoleName
    session_id: str
    callback_url: str | None
    cluster: Annotated[
        str | None,
        Doc(
            "The cluster whose nodes it manages or uses: as it registered, or of a job that of the nodes where it runs."
        ),
    ] = None
    product: Annotated[str | None, Doc("What it is, such as `blocklist-spark`; null if it does not say.")] = None
    version: Annotated[str | None, Doc("The version of the product.")] = None
    platform: Annotated[str | None, Doc("What it runs on, with versions.")] = None
    mode: Annotated[ModeName, Doc("The mode that it is in; only in `apply` it counts.")] = "apply"
    wanted_mode: Annotated[ModeName, Doc("The mode that the service wants.")] = "apply"
    state: Literal["live", "lapsed"]
    acked_revision: Annotated[int, Doc("0 until it has applied the first list.")]
    lag_revisions: int
    lag_ms: Annotated[int, Doc("Age of the oldest change that it has not applied, in milliseconds.")]
    last_error: str | None
    min_nodes: int
    usable_nodes: Annotated[int | None, Doc("Number of its usable nodes; null if it reports none.")]
    lease_end: Millis
    revision: Annotated[int, Doc("The current revision.")]
    secret: Annotated[str | None, Doc("Only in the response that creates the listener.")] = None


@dataclass(kw_only=True)
class ListenersBody(Body):
    """All listeners, by id."""

    listeners: list[ListenerBody]


@dataclass(kw_only=True)
class ModeRecordBody(Body):
    """The mode that somebody has set for the listeners whose ids match."""

    pattern: str
    mode: ModeName
    created_by: Annotated[str | None, Doc("The author; null if unknown.")]
    at: Millis


@dataclass(kw_only=True)
class ModesBody(Body):
    """All modes that are set, by pattern."""

    modes: list[ModeRecordBody]


def modes_body(records: Iterable[ModeRecord]) -> Json:
    """The answer of /listeners/modes."""
    return {
        "modes": [
            {"pattern": it.pattern, "mode": it.mode, "createdBy": it.created_by, "at": str(it.at)}
            for it in sorted(records)
        ]
    }


def listener_body(
    listener: Listener,
    *,
    cluster: str | None,
    mode: Mode,
    wanted_mode: Mode,
    now: int,
    revision: int,
    lag: int,
    error: str | None,
    usable: int | None,
) -> Json:
    """A listener in /listeners; `lag` is in milliseconds, `usable` is the number of its usable nodes."""
    acked = listener.acked or 0
    return {
        "id": listener.id,
        "role": listener.role.value,
        "sessionId": listener.session,
        "callbackUrl": listener.callback_url,
        "cluster": cluster,
        **listener.software._asdict(),
        "mode": mode,
        "wantedMode": wanted_mode,
        "state": "live" if listener.is_live(now) else "lapsed",
        "ackedRevision": acked,
        "lagRevisions": revision - acked if listener.is_behind(revision) else 0,
        "lagMs": lag,
        "lastError": error,
        "minNodes": listener.min_nodes,
        "usableNodes": usable,
        "leaseEnd": str(listener.lease_end),
        "revision": revision,
    }


@dataclass(kw_only=True)
class JobBody(Body):
    """A job that runs, as its listener or a manager says."""

    id: Annotated[str, Doc("The id of the application, under which its agent registers.")]
    agent: Annotated[
        AgentState,
        Doc("`none`: it runs without an agent, and obeys no block. `lapsed`: its agent has stopped reporting."),
    ]
    mode: Annotated[ModeName | None, Doc("The mode of its agent; null without a live one.")]
    description: Annotated[str | None, Doc("Its name and user, as a manager reports them.")]
    cluster: str | None
    reported_by: Annotated[list[str], Doc("The managers that say that it runs.")]


@dataclass(kw_only=True)
class JobSourceBody(Body):
    """A manager that reports which applications run in its cluster."""

    id: str
    cluster: str | None
    applications: Annotated[int, Doc("Number of applications that it reports.")]
    unknown: Annotated[str | None, Doc("Why more may run, or others; null if these are all.")]


@dataclass(kw_only=True)
class JobsBody(Body):
    """The jobs that run, those that do not obey first."""

    jobs: list[JobBody]
    sources: Annotated[
        list[JobSourceBody], Doc("Without any, it is not known whether there are jobs without an agent.")
    ]


# The bodies of node status and of /taskmanagers.


@dataclass(kw_only=True)
class TaskManagerBody(Body):
    """The node of a TaskManager."""

    node_id: str
    blocked: bool
    blocked_node: NodeBody | None = None


@dataclass(kw_only=True)
class TaskManagerOnNode(Body):
    """A TaskManager that is still on the node."""

    id: str
    running_tasks: Annotated[int | None, Doc("Null if its listener does not report it.")]


@dataclass(kw_only=True)
class AppliedBody(Body):
    """Whether one listener has applied the node's last change."""

    id: str
    role: ListenerRoleName
    cluster: Annotated[str | None, Doc("As in `GET /listeners`.")] = None
    applied: bool
    not_here: Annotated[
        bool, Doc("Whether it says that the node is none of its own: then it counts neither as applied nor in `of`.")
    ] = False
    mode: Annotated[
        ModeName, Doc("The mode that it is in; unless that is `apply`, it counts neither as applied nor in `of`.")
    ] = "apply"
    would: Annotated[str | None, Doc("In the mode `observe`: what it would do.")] = None
    applied_at: Annotated[Millis | None, Doc("Null if it has not, or if the time is unknown.")]
    late_ms: Annotated[int | None, Doc("Milliseconds from the change until it was applied.")]
    refused: Annotated[str | None, Doc("Why it refuses to carry out the block.")]
    pending_reason: Annotated[
        str | None,
        Doc(
            "Why the change is not in force yet: it is being tried, tasks are ending, or it is not known."
            " While the listener has not acknowledged the change, it may be why it refused an earlier block."
        ),
    ] = None
    task_managers: list[TaskManagerOnNode]
    reports_task_managers: Annotated[
        bool,
        Doc("Whether it has reported where its TaskManagers run; if not, `taskManagers` is unknown."),
    ] = True

    @property
    def counts(self) -> bool:
        """Whether the change is for it: the node is one of its own, and it applies blocks."""
        return not self.not_here and self.mode == "apply"

    @property
    def is_silent(self) -> bool:
        """Whether it may run tasks on the node that it does not report; a ResourceManager runs none itself."""
        return self.role == "JOB_MASTER" and not self.reports_task_managers

    def tasks(self) -> TaskCount:
        """Its tasks on the node."""
        return TaskCount.of((each.running_tasks for each in self.task_managers), silent=self.is_silent)


@dataclass(kw_only=True)
class NodeStatusBody(Body):
    """Which live listeners have applied the last change of a node."""

    id: str
    blocked: bool
    revision: int
    at: Millis
    applied: int
    of: int
    state: Annotated[
        BlockStateName,
        Doc(
            "What is known of the change at all of them, and of its node: a listener refuses it; one has not applied it"
            " yet; tasks run there; whether tasks run there is unknown, as not every job reports them; nothing runs"
            " there."
        ),
    ]
    automatic_blocks: Annotated[int, Doc("Number of automatic blocks that count for the duration of the next one.")] = 0
    repeat: Annotated[RepeatBody | None, Doc("Why the present block lasts longer than usual; null if it does not.")] = (
        None
    )
    listeners: list[AppliedBody]


# Reports of listeners, as they are in heartbeats and in answers to pushes.

REPORT_FIELDS: Final = {field.name: camel(field.name) for field in fields(Report)}
"""Names of the fields of a Report: in Python, and in the API."""


def report_fields(report: Report) -> Json:
    """What a report contains, as JSON values under their names in the API."""
    values = {REPORT_FIELDS[name]: value for name, value in report.given().items()}
    if report.evidence is not None:
        values[REPORT_FIELDS["evidence"]] = findings_body(report.evidence)
    if report.nodes is not None:
        values[REPORT_FIELDS["nodes"]] = list(map(_node_json, report.nodes))
    if report.not_here is not None:
        values[REPORT_FIELDS["not_here"]] = sorted(report.not_here)
    if report.new_machines is not None:
        values[REPORT_FIELDS["new_machines"]] = {node: str(since) for node, since in report.new_machines.items()}
    return values


def _node_json(node: str | ReportedNode) -> str | Json:
    if isinstance(node, str):
        return node
    parts = {"names": list(node.names), "addresses": list(node.addresses), "labels": dict(node.labels)}
    return {"id": node.id, **{name: part for name, part in parts.items() if part}}


# The bodies of evidence: in heartbeats and in GET /evidence.

KindName = Literal["failing", "excluded", "slow"]


@dataclass(kw_only=True)
class EvidenceBody(Body):
    """What one application reports about one node, and whether it counts."""

    __pydantic_config__ = with_example(
        node="worker-17",
        application="app-1",
        kind="excluded",
        reason="Spark excluded the host.",
        firstSeen="1652313600000",
        lastSeen="1652313630000",
        believed=True,
        doubt=None,
    )

    node: str
    application: str
    kind: KindName
    reason: str
    first_seen: Annotated[Millis, Doc("Reported since then without a gap.")]
    last_seen: Millis
    believed: Annotated[bool, Doc("Whether the evidence counts.")]
    doubt: Annotated[
        str | None,
        Doc("Why it does not count, such as another application of the same token that reports the node."),
    ]


@dataclass(kw_only=True)
class EvidenceListBody(Body):
    """All evidence, by node and application."""

    evidence: list[EvidenceBody]


def findings_body(findings: Mapping[str, Finding]) -> Json:
    """The `evidence` of a heartbeat."""
    return {node: {"kind": finding.kind.value, "reason": finding.reason} for node, finding in findings.items()}


def evidence_list_body(assessed: Iterable[AssessedEvidence]) -> Json:
    """The response of GET /evidence."""
    return {
        "evidence": [
            {
                "node": piece.evidence.node,
                "application": piece.evidence.application,
                "kind": piece.evidence.finding.kind.value,
                "reason": piece.evidence.finding.reason,
                "firstSeen": str(piece.evidence.first_seen),
                "lastSeen": str(piece.evidence.last_seen),
                "believed": piece.ignored_reason is None,
                "doubt": piece.ignored_reason,
            }
            for piece in assessed
        ]
    }


# The bodies of /nodes: what is known about each node.


@dataclass(kw_only=True)
class NodeReporterBody(Body):
    """Who reports a node."""

    id: Annotated[str, Doc("The id of a listener; `file` for BLOCKLIST_NODES_FILE.")]
    kind: Literal["file", "RESOURCE_MANAGER", "JOB_MASTER"]
    last_seen: Annotated[Millis | None, Doc("Its last heartbeat (Unix ms); null for the file.")]


@dataclass(kw_only=True)
class NodeTaskManagerBody(Body):
    """A TaskManager on a node."""

    id: str
    listener: str | None
    running_tasks: Annotated[int | None, Doc("Null if its listener does not report it.")]


@dataclass(kw_only=True)
class NodeBlockBody(NodeBody):
    """A block of the node, under the id that it was given."""

    id: str
    created_by: Annotated[str | None, Doc("The author of its last change; null if unknown.")]


@dataclass(kw_only=True)
class KnownNodeBody(Body):
    """A node that somebody reports."""

    id: str
    names: Annotated[list[str], Doc("What else it is called, in lower case.")]
    addresses: list[str]
    labels: dict[str, str]
    conflicts: Annotated[
        dict[str, list[str]],
        Doc("Names and addresses that other nodes claim as well: they are not used for this node."),
    ]
    clusters: Annotated[list[str], Doc("The clusters whose managers report it.")]
    cluster_conflict: Annotated[
        bool,
        Doc(
            "Whether these may be different machines with one name: nothing that two of its clusters report, such as an"
            " address, shows that they have the same machine. A block of the name holds in all of them."
        ),
    ]
    reported_by: Annotated[list[NodeReporterBody], Doc("The first is believed where two differ.")]
    task_managers: Annotated[list[NodeTaskManagerBody], Doc("Executors that listeners report there.")]
    running_tasks: Annotated[int | None, Doc("Their running tasks, as far as they are reported; null if none are.")]
    unreported_tasks: Annotated[int, Doc("Number of TaskManagers whose tasks are not reported.")]
    blocked: bool
    blocks: Annotated[list[NodeBlockBody], Doc("One, unless it is blocked under several names.")]
    last_seen: Annotated[
        Millis | None,
        Doc("Last heartbeat of any of those who report it (Unix ms)."),
    ]


@dataclass(kw_only=True)
class KnownNodesPage(Page):
    """A page of nodes in order of their ids."""

    nodes: list[KnownNodeBody]
    total: Annotated[int, Doc("Number of all nodes, or of those that the selector selects.")]


# The body of GET /drift.

DriftKindName = Literal["tasks-running", "tasks-started", "schedulable", "replaced", "unschedulable"]


@dataclass(kw_only=True)
class DriftBody(Body):
    """One difference between the list and what a listener reports."""

    node: str
    blocked: Annotated[bool, Doc("Whether the node is blocked on the list.")]
    kind: Annotated[
        DriftKindName,
        Doc(
            "Blocked here: evacuated, but tasks still run there; tasks started after the listener had"
            " applied the block; the manager still gives out the node. Free here: the manager does not give it out."
        ),
    ]
    listener: Annotated[str, Doc("The listener that reports it.")]
    since: Annotated[Millis, Doc("Observed since then without a gap.")]
    begin_observed: Annotated[
        bool,
        Doc(
            "Whether it began then. If false, it may be older: it was there when the service, or the listener, started."
        ),
    ] = False
    reason: str


@dataclass(kw_only=True)
class UnknownTasksBody(Body):
    """A listener with TaskManagers on an evacuated node whose running tasks it does not report."""

    node: str
    listener: str


@dataclass(kw_only=True)
class DriftListBody(Body):
    """All differences, by node, and where it is unknown whether tasks run."""

    __pydantic_config__ = with_example(
        observedAt="1652313630000",
        drift=[
            {
                "node": "worker-17",
                "blocked": False,
                "kind": "unschedulable",
                "listener": "slurm-ctl1",
                "since": "1652313600000",
                "beginObserved": True,
                "reason": "DRAIN+IDLE, not by this manager (new disk)",
            }
        ],
        unknown=[],
    )

    observed_at: Annotated[Millis | None, Doc("The time of the observation; null before the first one.")]
    drift: list[DriftBody]
    unknown: list[UnknownTasksBody]


def drift_list_body(report: DriftReport | None) -> Json:
    """The response of GET /drift."""
    if report is None:
        return {"observedAt": None, "drift": [], "unknown": []}
    return {
        "observedAt": str(report.observed_at),
        "drift": [_drift_body(drift) for drift in report.drift],
        "unknown": [{"node": each.node, "listener": each.listener} for each in report.unknown],
    }


def _drift_body(drift: Drift) -> Json:
    return {
        "node": drift.node,
        "blocked": drift.kind.blocked_here,
        "kind": drift.kind.value,
        "listener": drift.listener,
        "since": str(drift.since),
        "beginObserved": drift.begin_observed,
        "reason": drift.reason,
    }
