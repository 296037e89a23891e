"""The bodies of node status and of /taskmanagers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from blocklist.wire.body import Body, Doc, Millis
from blocklist.wire.listeners import ListenerRoleName
from blocklist.wire.nodes import NodeBody
from blocklist.wire.repeats import RepeatBody


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
    applied: bool
    applied_at: Annotated[Millis | None, Doc("Null if it has not, or if the time is unknown.")]
    late_ms: Annotated[int | None, Doc("Milliseconds from the change until it was applied.")]
    refused: Annotated[str | None, Doc("Why it refuses to carry out the block.")]
    pending_reason: Annotated[
        str | None,
        Doc(
            "What it last reported of the blocked node while it has not acknowledged the change: why it"
            " cannot apply it yet, or why it refused an earlier block."
        ),
    ] = None
    task_managers: list[TaskManagerOnNode]
    reports_task_managers: Annotated[
        bool,
        Doc("Whether it has reported where its TaskManagers run; if not, `taskManagers` is unknown."),
    ] = True


@dataclass(kw_only=True)
class NodeStatusBody(Body):
    """Which live listeners have applied the last change of a node."""

    id: str
    blocked: bool
    revision: int
    at: Millis
    applied: int
    of: int
    automatic_blocks: Annotated[int, Doc("Number of automatic blocks that count for the duration of the next one.")] = 0
    probation_end: Annotated[
        Millis | None, Doc("Until then evidence of one application blocks the node; null if not.")
    ] = None
    repeat: Annotated[RepeatBody | None, Doc("Why the present block lasts longer than usual; null if it does not.")] = (
        None
    )
    listeners: list[AppliedBody]
