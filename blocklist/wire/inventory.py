"""The bodies of /nodes: what is known about each node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from blocklist.wire.body import Body, Doc, Millis
from blocklist.wire.nodes import NodeBody


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
class KnownNodesPage(Body):
    """A page of nodes in order of their ids."""

    nodes: list[KnownNodeBody]
    total: Annotated[int, Doc("Number of all nodes, or of those that the selector selects.")]
    next: Annotated[str | None, Doc("Pass this as `after` for the next page; null on the last page.")]
