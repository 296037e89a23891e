"""The bodies of /nodes: what is known about each node."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from blocklist.wire.body import Body, MillisOut
from blocklist.wire.nodes import NodeBody


class NodeReporterBody(Body):
    """Who reports a node."""

    id: Annotated[str, Field(description="The id of a listener; `file` for BLOCKLIST_NODES_FILE.")]
    kind: Literal["file", "RESOURCE_MANAGER", "JOB_MASTER"]
    last_seen: Annotated[MillisOut | None, Field(description="Its last heartbeat (Unix ms); null for the file.")]


class NodeTaskManagerBody(Body):
    """A TaskManager on a node."""

    id: str
    listener: str | None
    running_tasks: Annotated[int | None, Field(description="Null if its listener does not report it.")]


class NodeBlockBody(NodeBody):
    """A block of the node, under the id that it was given."""

    id: str
    created_by: Annotated[str | None, Field(description="The author of its last change; null if unknown.")]


class KnownNodeBody(Body):
    """A node that somebody reports."""

    id: str
    names: Annotated[list[str], Field(description="What else it is called, in lower case.")]
    addresses: list[str]
    labels: dict[str, str]
    conflicts: Annotated[
        dict[str, list[str]],
        Field(description="Names and addresses that other nodes claim as well: they are not used for this node."),
    ]
    reported_by: Annotated[list[NodeReporterBody], Field(description="The first is believed where two differ.")]
    task_managers: Annotated[list[NodeTaskManagerBody], Field(description="Executors that listeners report there.")]
    running_tasks: Annotated[
        int | None, Field(description="Their running tasks, as far as they are reported; null if none are.")
    ]
    unreported_tasks: Annotated[int, Field(description="Number of TaskManagers whose tasks are not reported.")]
    blocked: bool
    blocks: Annotated[list[NodeBlockBody], Field(description="One, unless it is blocked under several names.")]
    last_seen: Annotated[
        MillisOut | None,
        Field(description="Last heartbeat of any of those who report it (Unix ms)."),
    ]


class KnownNodesPage(Body):
    """A page of nodes in order of their ids."""

    nodes: list[KnownNodeBody]
    total: Annotated[int, Field(description="Number of all nodes, or of those that the selector selects.")]
    next: Annotated[str | None, Field(description="Pass this as `after` for the next page; null on the last page.")]
