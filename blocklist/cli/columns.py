"""How each kind of thing is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from blocklist.cli.durations import written
from blocklist.cli.output import Json, Noun
from blocklist.cli.times import stamp

if TYPE_CHECKING:
    from blocklist.client.reads import Listed
    from blocklist.model.changes import Change
    from blocklist.model.roles import Token
    from blocklist.wire.evidence import EvidenceBody
    from blocklist.wire.listeners import AppliedBody, ListenerBody


def listed_json(listed: Listed) -> Json:
    """As GET /blocklist?details=true has it, with the id."""
    from blocklist.wire.nodes import node_body  # noqa: PLC0415 - not for --version and --help

    body = node_body(listed.node, list(listed.task_managers))
    return {**body, "createdBy": listed.created_by, "revision": listed.revision}


def _change_json(change: Change) -> Json:
    from blocklist.wire.nodes import change_body  # noqa: PLC0415

    return change_body(change)


def _token_json(token: Token) -> Json:
    from blocklist.wire.tokens import token_body  # noqa: PLC0415

    return token_body(token)


def _by_id(bodies: Sequence[Json]) -> Json:
    return {str(body["id"]): {name: value for name, value in body.items() if name != "id"} for body in bodies}


def _under(name: str) -> Callable[[Sequence[Json]], Json]:
    return lambda bodies: {name: list(bodies)}


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _when(value: int | None) -> str:
    return "" if value is None else stamp(value)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


NODES: Noun[Listed] = Noun(
    columns={
        "NODE": lambda it: it.node.id,
        "ACTION": lambda it: it.node.action.word,
        "EXPIRES": lambda it: stamp(it.node.end),
        "BY": lambda it: it.created_by or "",
        "SINCE": lambda it: stamp(it.node.start),
    },
    wide={
        "TASKMANAGERS": lambda it: str(len(it.task_managers)),
        "REVISION": lambda it: _number(it.revision),
    },
    last={"REASON": lambda it: it.node.cause},
    json=listed_json,
    name=lambda it: it.node.id,
    document=_by_id,
    none="No node is blocked.",
)
CHANGES: Noun[Change] = Noun(
    columns={
        "AT": lambda it: stamp(it.at),
        "CHANGE": lambda it: it.type.value,
        "NODE": lambda it: it.node.id,
        "ACTION": lambda it: it.node.action.word,
        "EXPIRES": lambda it: stamp(it.node.end),
        "BY": lambda it: it.created_by or "",
    },
    wide={"REVISION": lambda it: str(it.revision), "FORCED": lambda it: it.forced or ""},
    last={"REASON": lambda it: it.node.cause},
    json=_change_json,
    name=lambda it: it.node.id,
    document=_under("changes"),
    none="The log has no such change.",
)
LISTENERS: Noun[ListenerBody] = Noun(
    columns={
        "LISTENER": lambda it: it.id,
        "ROLE": lambda it: it.role,
        "STATE": lambda it: it.state,
        "APPLIED": lambda it: str(it.acked_revision),
        "BEHIND": lambda it: str(it.lag_revisions),
        "LAG": lambda it: written(it.lag_ms),
        "LEASE": lambda it: stamp(it.lease_end),
    },
    wide={"SESSION": lambda it: it.session_id, "CALLBACK": lambda it: it.callback_url or ""},
    last={"ERROR": lambda it: it.last_error or ""},
    json=lambda it: it.json_value(),
    name=lambda it: it.id,
    document=_under("listeners"),
    none="No listener is registered.",
)
APPLIED: Noun[AppliedBody] = Noun(
    columns={
        "LISTENER": lambda it: it.id,
        "ROLE": lambda it: it.role,
        "APPLIED": lambda it: _yes(it.applied),
        "AT": lambda it: _when(it.applied_at),
        "AFTER": lambda it: "" if it.late_ms is None else written(it.late_ms),
        "TASKMANAGERS": lambda it: str(len(it.task_managers)),
        "TASKS": lambda it: str(sum(own.running_tasks or 0 for own in it.task_managers)),
    },
    last={"REFUSED": lambda it: it.refused or ""},
    json=lambda it: it.json_value(),
    name=lambda it: it.id,
    document=_under("listeners"),
    none="No listener is registered.",
)
EVIDENCE: Noun[EvidenceBody] = Noun(
    columns={
        "NODE": lambda it: it.node,
        "APPLICATION": lambda it: it.application,
        "KIND": lambda it: it.kind,
        "COUNTS": lambda it: _yes(it.believed),
        "SINCE": lambda it: stamp(it.first_seen),
    },
    wide={"LAST": lambda it: stamp(it.last_seen)},
    last={"REASON": lambda it: it.reason if it.doubt is None else f"{it.reason} (doubted: {it.doubt})"},
    json=lambda it: it.json_value(),
    name=lambda it: it.node,
    document=_under("evidence"),
    none="No application says anything of a node.",
)
TOKENS: Noun[Token] = Noun(
    columns={
        "ID": lambda it: it.id,
        "NAME": lambda it: it.name,
        "ROLE": lambda it: it.access.value,
        "EXPIRES": lambda it: stamp(it.end),
        "REVOKED": lambda it: _when(it.revoked_at),
        "USED": lambda it: _when(it.last_used_at),
    },
    wide={"CREATED": lambda it: stamp(it.created_at)},
    last={"BY": lambda it: it.created_by or ""},
    json=_token_json,
    name=lambda it: it.id,
    document=_under("tokens"),
    none="There is no token.",
)
