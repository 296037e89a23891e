"""The views: how nodes, changes, listeners, evidence and tokens are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from blocklist.cli.list_filter import owners_of
from blocklist.cli.output import Json, ResourceView
from blocklist.model.node import PERMANENT, BlockAction, TaskCount, short_action
from blocklist.model.time import FOREVER, format_duration, to_utc

if TYPE_CHECKING:
    from blocklist.model.changes import Change
    from blocklist.model.listing import NodeDetails
    from blocklist.model.roles import Token
    from blocklist.wire.claims import OwnedClaim
    from blocklist.wire.drift import DriftBody
    from blocklist.wire.evidence import EvidenceBody
    from blocklist.wire.inventory import KnownNodeBody
    from blocklist.wire.listeners import ListenerBody
    from blocklist.wire.node_status import AppliedBody, NodeStatusBody


def listed_json(listed: NodeDetails) -> Json:
    """The node as in GET /blocklist?details=true, with its id."""
    from blocklist.wire.nodes import node_body  # noqa: PLC0415 - not for --version and --help

    body = node_body(listed.node, list(listed.task_managers))
    owners = {"owners": list(listed.owners)} if listed.owners else {}
    return {**body, "createdBy": listed.created_by, "revision": listed.revision, **owners}


def remaining(end: int, now: int) -> str:
    """`1h59m` until the end, in one word; `forever` for a permanent block."""
    return FOREVER if end == PERMANENT else format_duration(max(0, end - now)).replace(" ", "")


def _change_json(change: Change) -> Json:
    from blocklist.wire.changes import change_body  # noqa: PLC0415

    return change_body(change)


def _token_json(token: Token) -> Json:
    from blocklist.wire.tokens import token_body  # noqa: PLC0415

    return token_body(token)


def _by_id(bodies: Sequence[Json]) -> Json:
    return {str(body["id"]): {name: value for name, value in body.items() if name != "id"} for body in bodies}


def _document_under(name: str) -> Callable[[Sequence[Json]], Json]:
    return lambda bodies: {name: list(bodies)}


def format_timestamp(millis: int) -> str:
    """`2026-11-21T18:00:00Z`, a valid value of --at; `never` for PERMANENT."""
    if millis == PERMANENT:
        return "never"
    time = to_utc(millis)
    return str(millis) if time is None else f"{time:%Y-%m-%dT%H:%M:%SZ}"


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _optional_timestamp(value: int | None) -> str:
    return "" if value is None else format_timestamp(value)


def _yes_no(value: bool) -> str:
    return "yes" if value else "no"


def _some(names: Sequence[str]) -> str:
    """`yarn-prod,+4`: the first name, and how many more there are. On a node of fifty jobs all would be a long line."""
    return names[0] if len(names) == 1 else f"{names[0]},+{len(names) - 1}" if names else ""


def _tasks(count: TaskCount) -> str:
    """`3`; `3+?` if only some TaskManagers report their tasks; `unknown` if none does."""
    if not count.unreported:
        return str(count.known)
    return f"{count.known}+?" if count.reported else "unknown"


def nodes_view(now: int, *, past: bool = False) -> ResourceView[NodeDetails]:
    """The blocked nodes; what remains of each block is counted from `now` (Unix milliseconds)."""
    return ResourceView(
        columns={
            "NODE": lambda it: it.node.id,
            "ACTION": lambda it: it.node.short_action,
            "REMAINING": lambda it: remaining(it.node.end, now),
            "OWNER": lambda it: ",".join(owners_of(it)),
        },
        # Times are 20 characters wide: without them, a line fits into a terminal of 80 columns.
        wide_columns={
            "EXPIRES": lambda it: format_timestamp(it.node.end),
            "SINCE": lambda it: format_timestamp(it.node.start),
            "BY": lambda it: it.created_by or "",
            "TASKMANAGERS": lambda it: str(len(it.task_managers)),
            "REVISION": lambda it: _number(it.revision),
        },
        last_columns={"REASON": lambda it: it.node.cause},
        json=listed_json,
        name=lambda it: it.node.id,
        json_document=_by_id,
        empty_message=f"No node was blocked at {format_timestamp(now)}." if past else "No node is blocked.",
    )


def claims_view(now: int) -> ResourceView[OwnedClaim]:
    """Claims; what remains of each is counted from `now` (Unix milliseconds)."""
    return ResourceView(
        columns={
            "NODE": lambda it: it.node,
            "OWNER": lambda it: it.owner,
            "ACTION": lambda it: short_action(BlockAction[it.action], canary=it.canary),
            "REMAINING": lambda it: remaining(it.end_timestamp, now),
            "EXPIRES": lambda it: format_timestamp(it.end_timestamp),
            "BY": lambda it: it.created_by or "",
        },
        wide_columns={"SINCE": lambda it: format_timestamp(it.start_timestamp)},
        last_columns={"REASON": lambda it: it.cause},
        json=lambda it: it.json_value(),
        name=lambda it: it.node,
        json_document=_document_under("claims"),
        empty_message="There are no claims.",
    )


KNOWN_NODES: ResourceView[KnownNodeBody] = ResourceView(
    columns={
        "NODE": lambda it: it.id,
        "BLOCKED": lambda it: _yes_no(it.blocked),
        "TASKMANAGERS": lambda it: str(len(it.task_managers)),
        "TASKS": lambda it: _tasks(TaskCount.of(tm.running_tasks for tm in it.task_managers)),
        "REPORTED-BY": lambda it: _some([reporter.id for reporter in it.reported_by]),
    },
    wide_columns={
        "REPORTERS": lambda it: ",".join(reporter.id for reporter in it.reported_by),
        "NAMES": lambda it: ",".join(it.names),
        "ADDRESSES": lambda it: ",".join(it.addresses),
    },
    last_columns={"LABELS": lambda it: ",".join(f"{key}={value}" for key, value in it.labels.items())},
    json=lambda it: it.json_value(),
    name=lambda it: it.id,
    json_document=_document_under("nodes"),
    empty_message="Nobody reports a node that matches.",
)
DRIFT: ResourceView[DriftBody] = ResourceView(
    columns={
        "NODE": lambda it: it.node,
        "BLOCKED": lambda it: _yes_no(it.blocked),
        "KIND": lambda it: it.kind,
        "LISTENER": lambda it: it.listener,
        "SINCE": lambda it: format_timestamp(it.since),
    },
    last_columns={"REASON": lambda it: it.reason},
    json=lambda it: it.json_value(),
    name=lambda it: it.node,
    json_document=_document_under("drift"),
    empty_message="No drift is observed.",
)
STATUSES: ResourceView[NodeStatusBody] = ResourceView(
    columns={
        "NODE": lambda it: it.id,
        "BLOCKED": lambda it: _yes_no(it.blocked),
        "APPLIED": lambda it: f"{it.applied}/{it.of}",
        "TASKS": lambda it: _tasks(
            TaskCount.of(tm.running_tasks for listener in it.listeners for tm in listener.task_managers)
        ),
    },
    wide_columns={"REVISION": lambda it: str(it.revision), "AT": lambda it: format_timestamp(it.at)},
    last_columns={
        "REFUSED": lambda it: "; ".join(f"{each.id}: {each.refused}" for each in it.listeners if each.refused),
    },
    json=lambda it: it.json_value(),
    name=lambda it: it.id,
    json_document=_document_under("nodes"),
    empty_message="The change log has none of these nodes.",
)
CHANGES: ResourceView[Change] = ResourceView(
    columns={
        "AT": lambda it: format_timestamp(it.at),
        "CHANGE": lambda it: it.type.value,
        "NODE": lambda it: it.node.id,
        "ACTION": lambda it: it.node.short_action,
        "EXPIRES": lambda it: format_timestamp(it.node.end),
        "BY": lambda it: it.created_by or "",
    },
    wide_columns={"REVISION": lambda it: str(it.revision), "FORCED": lambda it: it.forced or ""},
    last_columns={"REASON": lambda it: it.node.cause if it.repeat is None else f"{it.node.cause} ({it.repeat})"},
    json=_change_json,
    name=lambda it: it.node.id,
    json_document=_document_under("changes"),
    empty_message="No change matches.",
)
LISTENERS: ResourceView[ListenerBody] = ResourceView(
    columns={
        "LISTENER": lambda it: it.id,
        "ROLE": lambda it: it.role,
        "STATE": lambda it: it.state,
        "APPLIED": lambda it: str(it.acked_revision),
        "BEHIND": lambda it: str(it.lag_revisions),
        "LAG": lambda it: format_duration(it.lag_ms),
        "LEASE": lambda it: format_timestamp(it.lease_end),
    },
    wide_columns={"SESSION": lambda it: it.session_id, "CALLBACK": lambda it: it.callback_url or ""},
    last_columns={"ERROR": lambda it: it.last_error or ""},
    json=lambda it: it.json_value(),
    name=lambda it: it.id,
    json_document=_document_under("listeners"),
    empty_message="No listener is registered.",
)
APPLIED: ResourceView[AppliedBody] = ResourceView(
    columns={
        "LISTENER": lambda it: it.id,
        "ROLE": lambda it: it.role,
        "APPLIED": lambda it: _yes_no(it.applied),
        "AT": lambda it: _optional_timestamp(it.applied_at),
        "AFTER": lambda it: "" if it.late_ms is None else format_duration(it.late_ms),
        "TASKMANAGERS": lambda it: str(len(it.task_managers)),
        "TASKS": lambda it: _tasks(TaskCount.of(tm.running_tasks for tm in it.task_managers)),
    },
    last_columns={"REFUSED": lambda it: it.refused or ""},
    json=lambda it: it.json_value(),
    name=lambda it: it.id,
    json_document=_document_under("listeners"),
    empty_message="No listener is registered.",
)
EVIDENCE: ResourceView[EvidenceBody] = ResourceView(
    columns={
        "NODE": lambda it: it.node,
        "APPLICATION": lambda it: it.application,
        "KIND": lambda it: it.kind,
        "COUNTS": lambda it: _yes_no(it.believed),
        "SINCE": lambda it: format_timestamp(it.first_seen),
    },
    wide_columns={"LAST": lambda it: format_timestamp(it.last_seen)},
    last_columns={"REASON": lambda it: it.reason if it.doubt is None else f"{it.reason} (ignored: {it.doubt})"},
    json=lambda it: it.json_value(),
    name=lambda it: it.node,
    json_document=_document_under("evidence"),
    empty_message="There is no evidence.",
)
TOKENS: ResourceView[Token] = ResourceView(
    columns={
        "ID": lambda it: it.id,
        "NAME": lambda it: it.name,
        "ROLE": lambda it: it.role.value,
        "EXPIRES": lambda it: format_timestamp(it.end),
        "REVOKED": lambda it: _optional_timestamp(it.revoked_at),
        "USED": lambda it: _optional_timestamp(it.last_used_at),
    },
    wide_columns={"CREATED": lambda it: format_timestamp(it.created_at)},
    last_columns={"BY": lambda it: it.created_by or ""},
    json=_token_json,
    name=lambda it: it.id,
    json_document=_document_under("tokens"),
    empty_message="There are no tokens.",
)
