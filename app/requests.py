"""The bodies of requests, and of what listeners answer to a push: validated strictly, by pydantic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    Tag,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from blocklist.model.claims import check_id_pattern, check_owner_pattern, check_token_name
from blocklist.model.errors import InvalidError
from blocklist.model.evidence import MAX_REASON_LENGTH, Finding, FindingKind
from blocklist.model.listener import (
    LEASE_SECONDS,
    MAX_APPLICATION_LENGTH,
    MAX_APPLICATIONS,
    MAX_ENTRIES,
    MAX_SOFTWARE_LENGTH,
    ListenerRole,
    Mode,
    Registration,
    Report,
    Software,
)
from blocklist.model.listener import MAX_REASON_LENGTH as MAX_REFUSAL_LENGTH
from blocklist.model.names import normalize_name
from blocklist.model.node import (
    MAX_CAUSE_LENGTH,
    PERMANENT,
    BlockAction,
    BlockedNode,
    check_id,
    check_node_id,
    check_text,
)
from blocklist.model.reported_node import MAX_LABELS, MAX_NAMES, ReportedNode, make_reported_node
from blocklist.model.selector import MAX_NAME_LENGTH, check_label_value
from blocklist.wire.body import ID_SCHEMA, MILLIS_STRING, TEXT_PATTERN, camel, parse_millis
from blocklist.wire.listeners import REPORT_FIELDS, KindName, ListenerRoleName, ModeName
from blocklist.wire.nodes import ActionName
from blocklist.wire.tokens import RoleName

MAX_NODE_BODY: Final = 64 * 1024
"""Maximum size of a request body for one node, in bytes; also of forms and other small bodies."""
MAX_NODES_BODY: Final = 1024 * 1024
"""Maximum size of a request body for several nodes, in bytes."""
MAX_REPORT_BODY: Final = 2 * 1024 * 1024
"""Maximum size of a heartbeat, in bytes."""


def _parse_flag(value: object) -> bool:
    if value is True or value == "true":
        return True
    if value is False or value == "false":
        return False
    raise ValueError('give true, false, "true" or "false"')


def _check_if_text(value: object) -> object:
    return check_text(value) if isinstance(value, str) else value


MillisIn = Annotated[
    int,
    BeforeValidator(parse_millis),
    # Integers are read too, but a choice of types makes a class of its own in generated clients.
    WithJsonSchema(dict(MILLIS_STRING), mode="validation"),
]
Flag = Annotated[
    bool,
    BeforeValidator(_parse_flag),
    # The texts `true` and `false` are read too; see MillisIn.
    WithJsonSchema({"type": "boolean"}),
]
Cause = Annotated[str, Field(min_length=1, max_length=MAX_CAUSE_LENGTH), BeforeValidator(_check_if_text)]


class RequestBody(BaseModel):
    """A strictly validated body with fields in camelCase."""

    model_config = ConfigDict(strict=True, alias_generator=camel, frozen=True)

    @classmethod
    def parse(cls, value: object) -> Self:
        """Validate a JSON value. Raises InvalidError with a line for each fault."""
        try:
            # Faster than model_validate, which spends a quarter of its time before it validates.
            body: Self = cls.__pydantic_validator__.validate_python(value)
        except ValidationError as error:
            lines = [_fault_line(fault) for fault in error.errors(include_url=False)]
            raise InvalidError(" ".join(lines), lines) from None
        return body


def _fault_line(fault: Any) -> str:
    where = ".".join(str(part) for part in fault["loc"]) or "the body"
    messages = {
        "missing": "this field is required",
        "extra_forbidden": "unknown field",
        "model_type": "give an object",
    }
    message = messages.get(fault["type"]) or str(fault["msg"]).removeprefix("Value error, ")
    return f"{ascii(where)[1:-1][:80]}: {message[0].lower()}{message[1:].removesuffix('.')}."


class BlockFields(RequestBody):
    """What a request says of a block: how, until when and why."""

    action: Annotated[ActionName, Field(description="The second also restarts running tasks on other nodes.")]
    cause: Annotated[Cause, Field(description="Why the node is blocked, for the next person on call.")]
    end_timestamp: Annotated[
        MillisIn,
        Field(description="When the block ends, in Unix milliseconds; without it, the block is permanent."),
    ] = PERMANENT

    def node(self, node_id: str, now: int) -> BlockedNode:
        """The node, blocked from `now` on. Raises InvalidError for an invalid id, or an end that is not after `now`."""
        if self.end_timestamp <= now:
            raise InvalidError(f"endTimestamp: {self.end_timestamp} is not in the future; the current time is {now}.")
        action = BlockAction[self.action]
        return BlockedNode(id=node_id, action=action, start=now, end=self.end_timestamp, cause=self.cause)


class BlockRequest(BlockFields):
    """How to block a node, until when and why (FLIP-224, Add)."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"action": "MARK_BLOCKED", "endTimestamp": "4102444800000", "cause": "Hot machine", "allowMerge": True}
            ]
        },
    )

    allow_merge: Annotated[Flag, Field(description="Merge with an existing block instead of 409.")] = False


EXAMPLE_BODY: Final = (
    """'{"action": "MARK_BLOCKED", "cause": "Hot machine", "endTimestamp": '$(($(date +%s) + 7200))000'}'"""
)
"""The body of a PUT, as a shell reads it: a block for two hours. `date -d` would be that of GNU only."""


class ClaimRequest(BlockFields):
    """What an owner claims of a node. It replaces the claim that he has."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"action": "MARK_BLOCKED", "endTimestamp": "4102444800000", "cause": "Kernel upgrade"}]
        },
    )

    canary: Annotated[
        Flag,
        Field(
            description="Leave one executor of each Spark application on the node, to show whether it has recovered."
            " Only with `MARK_BLOCKED`, and only as long as all claims on the node say so."
        ),
    ] = False
    last_evidence_timestamp: Annotated[
        MillisIn,
        Field(
            description="When what the claim rests on was last observed, in Unix milliseconds. The claim is refused"
            " (409) if the owner was dismissed on the node since. Without it, no dismissal counts."
        ),
    ] = PERMANENT

    def node(self, node_id: str, now: int) -> BlockedNode:
        block = super().node(node_id, now)
        return replace(block, canary=True) if self.canary else block


def _check_callback_url(text: str) -> str:
    parts = urlsplit(text)
    port = parts.port  # raises ValueError if it is invalid
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or port == 0:
        raise ValueError("give an http or https URL with a host and without a password")
    if not text.isascii() or not text.isprintable() or " " in text or len(text) > 2000:
        raise ValueError("give a URL of at most 2,000 printable ASCII characters")
    return text


Id = Annotated[str, AfterValidator(check_id), Field(json_schema_extra=dict(ID_SCHEMA))]
NodeId = Annotated[str, AfterValidator(check_node_id), Field(json_schema_extra=dict(ID_SCHEMA))]
Cluster = Annotated[
    str,
    Field(
        min_length=1,
        json_schema_extra={"pattern": "^[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?$", "maxLength": MAX_NAME_LENGTH},
    ),
    AfterValidator(check_label_value),
]
_ENTRIES: Final = Field(max_length=MAX_ENTRIES, json_schema_extra={"additionalProperties": False})
Reason = Annotated[
    str, Field(max_length=MAX_REFUSAL_LENGTH, json_schema_extra={"pattern": TEXT_PATTERN}), AfterValidator(check_text)
]


SoftwareText = Annotated[str, Field(min_length=1, max_length=MAX_SOFTWARE_LENGTH), AfterValidator(check_text)]


class RegistrationBody(RequestBody):
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
    cluster: Annotated[
        Cluster | None,
        Field(
            description="The cluster whose nodes it manages or uses, with the syntax of a label's value. Nodes that a"
            " RESOURCE_MANAGER reports have it as their label `cluster`."
        ),
    ] = None
    product: Annotated[
        SoftwareText | None, Field(description="What registers, such as `blocklist-spark`; shown to operators.")
    ] = None
    version: Annotated[SoftwareText | None, Field(description="The version of the product.")] = None
    platform: Annotated[
        SoftwareText | None, Field(description="What it runs on, with versions, such as `Spark 4.3.0, Java 17.0.9`.")
    ] = None

    mode: Annotated[ModeName, Field(description="The mode that it begins with: see `PUT /listeners/modes`.")] = "apply"

    def value(self, listener_id: str) -> Registration:
        return Registration(
            id=listener_id,
            role=ListenerRole(self.role),
            session=self.session_id,
            callback_url=self.callback_url,
            lease=self.lease_seconds * 1000,
            min_nodes=self.min_nodes,
            cluster=self.cluster,
            software=Software(self.product, self.version, self.platform),
            mode=Mode(self.mode),
        )


_NONE: Final[list[str]] = []
_NO_LABELS: Final[dict[str, str]] = {}


class ReportedNodeBody(RequestBody):
    """A node with what the listener knows about it."""

    model_config = ConfigDict(extra="forbid")

    id: NodeId
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


NodeOrId = Annotated[
    Annotated[NodeId, Tag("id")] | Annotated[ReportedNodeBody, Tag("node")], Discriminator(_kind_of_node)
]


class FindingBody(RequestBody):
    """What an application reports about a node."""

    model_config = ConfigDict(extra="forbid")

    kind: Annotated[
        KindName,
        Field(description="Spark excluded the host, or its tasks were so slow that Spark started speculative copies."),
    ]
    reason: Annotated[
        str,
        Field(min_length=1, max_length=MAX_REASON_LENGTH, json_schema_extra={"pattern": TEXT_PATTERN}),
        AfterValidator(check_text),
    ]

    def value(self) -> Finding:
        return Finding(kind=FindingKind(self.kind), reason=self.reason)


ApplicationText = Annotated[
    str,
    Field(max_length=MAX_APPLICATION_LENGTH, json_schema_extra={"pattern": TEXT_PATTERN}),
    AfterValidator(check_text),
]


class ReportBody(RequestBody):
    """What a listener reports about itself. An absent field leaves the previous value."""

    model_config = ConfigDict(extra="ignore")

    task_managers: Annotated[
        Annotated[dict[Id, NodeId], _ENTRIES] | None, Field(description="All its TaskManagers: id to node id.")
    ] = None
    running_tasks: Annotated[
        Annotated[dict[Id, Annotated[int, Field(ge=0, le=2**53)]], _ENTRIES] | None,
        Field(description="Number of running tasks: TaskManager id to number."),
    ] = None
    refused: Annotated[
        Annotated[dict[NodeId, Reason], _ENTRIES] | None,
        Field(description="Blocks that it will not carry out unless somebody acts: node id to reason."),
    ] = None
    pending: Annotated[
        Annotated[dict[NodeId, Reason], _ENTRIES] | None,
        Field(
            description="Nodes whose last change is not in force yet, as it is being tried or tasks are ending, or is"
            " not known to be in force: node id to reason. It counts neither as applied nor as refused."
        ),
    ] = None
    not_here: Annotated[
        Annotated[list[NodeId], Field(max_length=MAX_ENTRIES)] | None,
        Field(
            description="Blocked nodes that are none of its own: its whole inventory has no node with such a name. Only"
            " from a RESOURCE_MANAGER. For these nodes it counts neither as applied nor as refused; an id that is also"
            " in `refused` or `pending` counts there."
        ),
    ] = None
    nodes: Annotated[
        Annotated[list[NodeOrId], Field(max_length=MAX_ENTRIES)] | None,
        Field(
            description="All nodes that it may use, as ids or with what it knows about them; without it, the nodes of"
            " its TaskManagers."
        ),
    ] = None
    evidence: Annotated[
        Annotated[dict[NodeId, FindingBody], _ENTRIES] | None,
        Field(description="What a JobMaster has found out about nodes: node id to finding."),
    ] = None
    schedulable: Annotated[
        Annotated[dict[NodeId, Reason], _ENTRIES] | None,
        Field(
            description="Blocked nodes that still get work there: node id to their state. See GET /drift. Only from a"
            " RESOURCE_MANAGER, as are `unschedulable` and `replaced`."
        ),
    ] = None
    unschedulable: Annotated[
        Annotated[dict[NodeId, Reason], _ENTRIES] | None,
        Field(description="Nodes that get no work there, though not because of a block: node id to their state."),
    ] = None

    replaced: Annotated[
        Annotated[dict[Id, Reason], _ENTRIES] | None,
        Field(description="Blocked nodes whose name another machine has since: node id to which and since when."),
    ] = None
    new_machines: Annotated[
        Annotated[dict[Id, MillisIn], _ENTRIES] | None,
        Field(
            description="Those of `replaced` that are certainly another machine: node id to the time since when, in"
            " Unix milliseconds. Automatic claims from before end. Only from a RESOURCE_MANAGER."
        ),
    ] = None

    mode: Annotated[
        ModeName | None,
        Field(
            description="The mode that it is in. Only in `apply`, which is the default, it counts: in `observe` it"
            " changes nothing and reports `would`; in `off` it has freed all nodes."
        ),
    ] = None
    would: Annotated[
        Annotated[dict[NodeId, Reason], _ENTRIES] | None,
        Field(description="In the mode `observe`: what it would do for blocks: node id to a sentence."),
    ] = None
    applications: Annotated[
        Annotated[
            dict[Id, ApplicationText],
            Field(max_length=MAX_APPLICATIONS, json_schema_extra={"additionalProperties": False}),
        ]
        | None,
        Field(
            description="All applications that run in its cluster: the id under which each registers as a listener, to"
            " its name and user. See GET /jobs. Only from a RESOURCE_MANAGER, as is `applicationsUnknown`."
        ),
    ] = None
    applications_unknown: Annotated[
        Reason | None,
        Field(description="Why `applications` may not be all that run; empty if they are."),
    ] = None

    def value(self) -> Report:
        given = {name: getattr(self, name) for name in REPORT_FIELDS}
        not_here = None if self.not_here is None else frozenset(self.not_here)
        found = {"evidence": _findings(self.evidence), "nodes": _reported_nodes(self.nodes), "not_here": not_here}
        found["mode"] = None if self.mode is None else Mode(self.mode)
        return Report(**given | found)


def _findings(bodies: Mapping[str, FindingBody] | None) -> dict[str, Finding] | None:
    """The findings of a heartbeat, by node id; None if it has none."""
    return None if bodies is None else {node: body.value() for node, body in bodies.items()}


def _reported_nodes(nodes: Sequence[str | ReportedNodeBody] | None) -> Sequence[str | ReportedNode] | None:
    """The nodes of a report. Raises InvalidError if one is described twice."""
    if nodes is None:
        return None
    described = [normalize_name(node.id) for node in nodes if not isinstance(node, str)]
    if len(set(described)) < len(described):
        twice = next(node_id for node_id, number in Counter(described).items() if number > 1)
        raise InvalidError(f"nodes: {twice} is described twice.")
    return [node if isinstance(node, str) else node.value() for node in nodes]


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
                    "pending": {},
                    "notHere": [],
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


IdPattern = Annotated[str, AfterValidator(check_id_pattern)]


class ModeBody(RequestBody):
    """The mode of all listeners whose ids match."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"pattern": "app-*", "mode": "observe"}]})

    pattern: Annotated[
        IdPattern, Field(description="An id, the beginning of ids and `*`, or `*`. The most exact pattern counts.")
    ]
    mode: ModeName


class SessionBody(RequestBody):
    """The current session of a listener."""

    model_config = ConfigDict(extra="forbid")

    session_id: Id


Name = Annotated[str, AfterValidator(check_token_name), Field(json_schema_extra=dict(ID_SCHEMA))]


MAX_PATTERNS: Final = 32
OwnerPattern = Annotated[str, AfterValidator(check_owner_pattern)]


class TokenRequest(RequestBody):
    """The token to create."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"name": "on-call", "role": "operator", "endTimestamp": "4102444800000"}]},
    )

    name: Annotated[Name, Field(description="Author of the changes made with the token.")]
    role: Annotated[RoleName, Field(description="Each role includes the ones before it.")]
    end_timestamp: Annotated[
        MillisIn, Field(description="When the token expires, in Unix milliseconds; without it, never.")
    ] = PERMANENT
    owners: Annotated[
        list[OwnerPattern] | None,
        Field(
            min_length=1,
            max_length=MAX_PATTERNS,
            description="Only for an operator: the owners whose claims it may change; with a final `*`, those that"
            " begin so. Without it, all.",
        ),
    ] = None
    listeners: Annotated[
        list[IdPattern] | None,
        Field(
            min_length=1,
            max_length=MAX_PATTERNS,
            description="Only for a listener or a manager: the ids under which it may register; with a final `*`, those"
            " that begin so. Without it, all that nobody else has registered.",
        ),
    ] = None

    @model_validator(mode="after")
    def _restricts_its_role(self) -> Self:
        if self.owners is not None and self.role != "operator":
            raise ValueError("owners restrict a token with the role operator only")
        if self.listeners is not None and self.role not in {"listener", "manager"}:
            raise ValueError("listeners restrict a token with the role listener or manager only")
        return self
