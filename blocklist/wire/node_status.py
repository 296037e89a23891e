"""The bodies of node status and of /taskmanagers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from blocklist.wire.body import Body, MillisOut
from blocklist.wire.claims import RepeatBody
from blocklist.wire.listeners import ListenerRoleName
from blocklist.wire.nodes import NodeBody


class TaskManagerBody(Body):
    """The node of a TaskManager."""

    node_id: str
    blocked: bool
    blocked_node: NodeBody | None = None


class TaskManagerOnNode(Body):
    """A TaskManager that is still on the node."""

    id: str
    running_tasks: Annotated[int | None, Field(description="Null if its listener does not report it.")]


class AppliedBody(Body):
    """Whether one listener has applied the node's last change."""

    id: str
    role: ListenerRoleName
    applied: bool
    applied_at: Annotated[MillisOut | None, Field(description="Null if it has not, or if the time is unknown.")]
    late_ms: Annotated[int | None, Field(description="Milliseconds from the change until it was applied.")]
    refused: Annotated[str | None, Field(description="Why it refuses to carry out the block.")]
    pending_reason: Annotated[
        str | None,
        Field(
            description="What it last reported of the blocked node while it has not acknowledged the change: why it"
            " cannot apply it yet, or why it refused an earlier block."
        ),
    ] = None
    task_managers: list[TaskManagerOnNode]
    reports_task_managers: Annotated[
        bool,
        Field(description="Whether it has reported where its TaskManagers run; if not, `taskManagers` is unknown."),
    ] = True


class NodeStatusBody(Body):
    """Which live listeners have applied the last change of a node."""

    id: str
    blocked: bool
    revision: int
    at: MillisOut
    applied: int
    of: int
    automatic_blocks: Annotated[
        int, Field(description="Number of automatic blocks that count for the duration of the next one.")
    ] = 0
    probation_end: Annotated[
        MillisOut | None, Field(description="Until then evidence of one application blocks the node; null if not.")
    ] = None
    repeat: Annotated[
        RepeatBody | None, Field(description="Why the present block lasts longer than usual; null if it does not.")
    ] = None
    listeners: list[AppliedBody]
