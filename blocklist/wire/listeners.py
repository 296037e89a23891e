"""The bodies of /listeners: registration, heartbeat with its report, and state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, PrivateAttr, Tag, model_validator

from blocklist.model.errors import InvalidError
from blocklist.model.host_matching import normalize_name
from blocklist.model.listener import (
    LEASE_SECONDS,
    MAX_ENTRIES,
    MAX_REASON_LENGTH,
    Listener,
    ListenerRole,
    Registration,
)
from blocklist.model.node import check_node_id, check_text
from blocklist.model.report import Report
from blocklist.model.reported_node import MAX_LABELS, MAX_NAMES, ReportedNode, make_reported_node
from blocklist.wire.body import ID_PATTERN, TEXT_PATTERN, Body, MillisOut
from blocklist.wire.evidence import FindingBody, findings, findings_body
from blocklist.wire.json import Json

ListenerRoleName = Literal["JOB_MASTER", "RESOURCE_MANAGER"]


def _check_callback_url(text: str) -> str:
    parts = urlsplit(text)
    port = parts.port  # raises ValueError if it is invalid
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or port == 0:
        raise ValueError("give an http or https URL with a host and without a password")
    if not text.isascii() or not text.isprintable() or " " in text or len(text) > 2000:
        raise ValueError("give a URL of at most 2,000 printable ASCII characters")
    return text


Id = Annotated[str, AfterValidator(check_node_id), Field(json_schema_extra={"pattern": ID_PATTERN})]
_ENTRIES: Final = Field(max_length=MAX_ENTRIES, json_schema_extra={"additionalProperties": False})
Reason = Annotated[
    str, Field(max_length=MAX_REASON_LENGTH, json_schema_extra={"pattern": TEXT_PATTERN}), AfterValidator(check_text)
]


class RegistrationBody(Body):
    """A registration: of a new listener, to renew its lease, or to take over from another session."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"role": "JOB_MASTER", "sessionId": "0-1652313600000", "callbackUrl": "http://127.0.0.1:9000/blocklist"}
            ]
        },
    )

    role: ListenerRoleName
    session_id: Annotated[Id, Field(description="A new session takes over from the previous one.")]
    callback_url: Annotated[
        Annotated[str, AfterValidator(_check_callback_url)] | None,
        Field(description="URL to push to; without it, the listener watches."),
    ] = None
    lease_seconds: Annotated[
        int, Field(ge=1, le=3600, description=f"Duration of its lease, in seconds; without it, {LEASE_SECONDS}.")
    ] = LEASE_SECONDS
    min_nodes: Annotated[
        int, Field(ge=0, le=2**53, description="Number of its nodes that must stay usable; 0: no minimum.")
    ] = 0

    def value(self, listener_id: str) -> Registration:
        return Registration(
            id=listener_id,
            role=ListenerRole(self.role),
            session=self.session_id,
            callback_url=self.callback_url,
            lease=self.lease_seconds * 1000,
            min_nodes=self.min_nodes,
        )


_NONE: Final[list[str]] = []
_NO_LABELS: Final[dict[str, str]] = {}


class ReportedNodeBody(Body):
    """A node with what the listener knows about it."""

    model_config = ConfigDict(extra="forbid")

    id: Id
    names: Annotated[list[str], Field(max_length=MAX_NAMES, description="What else it is called.")] = _NONE
    addresses: Annotated[list[str], Field(max_length=MAX_NAMES, description="Its IP addresses.")] = _NONE
    labels: Annotated[
        dict[str, str],
        Field(max_length=MAX_LABELS, description="Facts such as rack or zone, with the syntax of Kubernetes' labels."),
    ] = _NO_LABELS
    _value: ReportedNode = PrivateAttr()

    @model_validator(mode="after")
    def _make(self) -> Self:
        try:
            self._value = make_reported_node(self.id, self.names, self.addresses, self.labels)
        except InvalidError as error:
            raise ValueError(error.detail) from None
        return self

    def value(self) -> ReportedNode:
        return self._value


def _kind_of_node(value: object) -> str:
    return "id" if isinstance(value, str) else "node"


NodeOrId = Annotated[Annotated[Id, Tag("id")] | Annotated[ReportedNodeBody, Tag("node")], Discriminator(_kind_of_node)]


class ReportBody(Body):
    """What a listener reports about itself. An absent field leaves the previous value."""

    model_config = ConfigDict(extra="ignore")

    task_managers: Annotated[
        Annotated[dict[Id, Id], _ENTRIES] | None, Field(description="All its TaskManagers: id to node id.")
    ] = None
    running_tasks: Annotated[
        Annotated[dict[Id, Annotated[int, Field(ge=0, le=2**53)]], _ENTRIES] | None,
        Field(description="Number of running tasks: TaskManager id to number."),
    ] = None
    refused: Annotated[
        Annotated[dict[Id, Reason], _ENTRIES] | None,
        Field(description="Blocks that it refuses to carry out: node id to reason."),
    ] = None
    nodes: Annotated[
        Annotated[list[NodeOrId], Field(max_length=MAX_ENTRIES)] | None,
        Field(
            description="All nodes that it may use, as ids or with what it knows about them; without it, the nodes of"
            " its TaskManagers."
        ),
    ] = None
    evidence: Annotated[
        Annotated[dict[Id, FindingBody], _ENTRIES] | None,
        Field(description="What a JobMaster has found out about nodes: node id to finding."),
    ] = None
    schedulable: Annotated[
        Annotated[dict[Id, Reason], _ENTRIES] | None,
        Field(description="Blocked nodes that still get work there: node id to their state. See GET /drift."),
    ] = None
    unschedulable: Annotated[
        Annotated[dict[Id, Reason], _ENTRIES] | None,
        Field(description="Nodes that get no work there, though not because of a block: node id to their state."),
    ] = None

    def value(self) -> Report:
        given = {name: getattr(self, name) for name in REPORT_FIELDS}
        return Report(**given | {"evidence": findings(self.evidence), "nodes": _reported_nodes(self.nodes)})


REPORT_FIELDS: Final = {name: field.alias or name for name, field in ReportBody.model_fields.items()}
"""Names of the fields of a Report: in Python, and in the API."""


def report_fields(report: Report) -> Json:
    """What a report contains, as JSON values under their names in the API."""
    values = {REPORT_FIELDS[name]: value for name, value in report.given().items()}
    if report.evidence is not None:
        values[REPORT_FIELDS["evidence"]] = findings_body(report.evidence)
    if report.nodes is not None:
        values[REPORT_FIELDS["nodes"]] = list(map(_node_json, report.nodes))
    return values


def _reported_nodes(nodes: Sequence[str | ReportedNodeBody] | None) -> Sequence[str | ReportedNode] | None:
    """The nodes of a report. Raises InvalidError if one is described twice."""
    if nodes is None:
        return None
    described = [normalize_name(node.id) for node in nodes if not isinstance(node, str)]
    if len(set(described)) < len(described):
        twice = next(node_id for node_id, number in Counter(described).items() if number > 1)
        raise InvalidError(f"nodes: {twice} is described twice.")
    return [node if isinstance(node, str) else node.value() for node in nodes]


def _node_json(node: str | ReportedNode) -> str | Json:
    if isinstance(node, str):
        return node
    parts = {"names": list(node.names), "addresses": list(node.addresses), "labels": dict(node.labels)}
    return {"id": node.id, **{name: part for name, part in parts.items() if part}}


class HeartbeatBody(ReportBody):
    """A heartbeat of a listener."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "sessionId": "0-1652313600000",
                    "ackedRevision": 7,
                    "history": "93a4a3ea",
                    "taskManagers": {"app-1:3": "worker-17"},
                    "runningTasks": {"app-1:3": 2},
                    "refused": {},
                    "nodes": [
                        "worker-17",
                        {
                            "id": "worker-18",
                            "names": ["worker-18.example.com"],
                            "addresses": ["10.0.0.18"],
                            "labels": {"rack": "r12"},
                        },
                    ],
                    "evidence": {"worker-17": {"kind": "excluded", "reason": "Spark excluded the host."}},
                }
            ]
        },
    )

    session_id: Id
    acked_revision: Annotated[
        int | None, Field(ge=0, le=2**53, description="The listener has applied the list up to this revision.")
    ] = None
    history: Annotated[
        str | None,
        Field(
            pattern="^[0-9a-f]{8}$",
            description="The history of ackedRevision: if another one has begun, nothing is acknowledged.",
        ),
    ] = None


class SessionBody(Body):
    """The current session of a listener."""

    model_config = ConfigDict(extra="forbid")

    session_id: Id


class SecretBody(Body):
    """The secret that signs pushes; shown only once."""

    secret: Annotated[str, Field(pattern="^whsec_")]


class LeaseBody(Body):
    """The response to a heartbeat."""

    revision: int
    lease_end: MillisOut
    reported: Annotated[
        list[str],
        Field(
            description="The fields of the listener's report that the service has, evidence excepted. Send a field"
            " that is missing here again: the service has restarted."
        ),
    ]


class ListenerBody(Body):
    """A listener, and how far it lags behind."""

    id: str
    role: ListenerRoleName
    session_id: str
    callback_url: str | None
    state: Literal["live", "lapsed"]
    acked_revision: Annotated[int, Field(description="0 until it has applied the first list.")]
    lag_revisions: int
    lag_ms: Annotated[int, Field(description="Age of the oldest change that it has not applied, in milliseconds.")]
    last_error: str | None
    min_nodes: int
    usable_nodes: Annotated[int | None, Field(description="Number of its usable nodes; null if it reports none.")]
    lease_end: MillisOut
    revision: Annotated[int, Field(description="The current revision.")]
    secret: Annotated[str | None, Field(description="Only in the response that creates the listener.")] = None


class ListenersBody(Body):
    """All listeners, by id."""

    listeners: list[ListenerBody]


def listener_body(
    listener: Listener, *, now: int, revision: int, lag: int, error: str | None, usable: int | None
) -> Json:
    """A listener in /listeners; `lag` is in milliseconds, `usable` is the number of its usable nodes."""
    acked = listener.acked or 0
    return {
        "id": listener.id,
        "role": listener.role.value,
        "sessionId": listener.session,
        "callbackUrl": listener.callback_url,
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
