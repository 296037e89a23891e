"""The list with what the service adds to each node: author, revision, TaskManagers and owners."""

from __future__ import annotations

from dataclasses import dataclass

from blocklist.model.node import BlockedNode


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeDetails:
    """A node of the list. `created_by` and `revision` are those of its last change, None if unknown.

    `owners` are those of its claims, none if unknown, as in the past.
    """

    node: BlockedNode
    created_by: str | None
    revision: int | None
    task_managers: tuple[str, ...]
    owners: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeListing:
    """The list with details, sorted by id. `revision` is the current one, even for a list of the past.

    `warnings` are sentences for people, such as that no node has a label of the selector.
    """

    revision: int
    nodes: tuple[NodeDetails, ...]
    warnings: tuple[str, ...] = ()
