"""An operation as its client saw it: the request, the replica, the times and the response."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from blocklist.model.node import BlockAction, BlockedNode
from tests.chaos.register import Get, NodeRequest, Put, Step

CONCLUSIVE_STATUSES: Final = frozenset({200, 201, 202, 404, 409})
"""Statuses that show the state of the list at some time between request and response."""


class Kind(StrEnum):
    """Kind of an operation."""

    PUT = "PUT of one node"
    PUT_MANY = "PUT of several"
    DELETE = "DELETE"
    GET = "GET of one node"
    LIST = "GET of the list"


CHANGES: Final = frozenset({Kind.PUT, Kind.PUT_MANY, Kind.DELETE})


class WallClock:
    """Unix nanoseconds by the monotonic clock; comparable with the clocks of the replicas on this machine."""

    def __init__(self) -> None:
        self._offset = time.time_ns() - time.monotonic_ns()

    def now(self) -> int:
        return time.monotonic_ns() + self._offset

    def error(self) -> int:
        """Nanoseconds by which the machine's clock was set since."""
        return abs(time.time_ns() - self.now())


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One request. `requested` is by node id, and empty for the list.

    `status` is None if there was no answer: the connection broke, or the request timed out. `nodes` are those of the
    response; `statuses` those of a PUT of several, by node id.
    """

    client: int
    replica: int
    kind: Kind
    requested: Mapping[str, NodeRequest]
    min_revision: int | None
    invoked: int
    returned: int
    status: int | None = None
    revision: int | None = None
    history: str | None = None
    etag: str | None = None
    nodes: Mapping[str, BlockedNode] = field(default_factory=dict)
    statuses: Mapping[str, int] = field(default_factory=dict)
    retry_after: bool = False

    @property
    def unknown(self) -> bool:
        """Whether it is a change that was committed, will be, or never will be."""
        return self.kind in CHANGES and self.status in {None, 503}

    @property
    def acknowledged(self) -> bool:
        """Whether it is a change that was acknowledged."""
        return self.kind in CHANGES and self.status in {200, 201, 202}

    @property
    def origin(self) -> str:
        """Client and replica, for messages."""
        return f"client {self.client} at replica {self.replica}"


def register_steps(operation: Operation, nodes: Iterable[str]) -> Iterator[tuple[str, Step]]:
    """One step for each node, if the contract orders the operation relative to those of other clients.

    Reads are ordered if they name a revision: the highest that any client had seen by then.
    """
    if operation.status not in CONCLUSIVE_STATUSES or (
        operation.kind not in CHANGES and operation.min_revision is None
    ):
        return
    for node_id, requested in (operation.requested or dict.fromkeys(nodes, Get())).items():
        node = without_start(operation.nodes.get(node_id))
        seen = _observation(operation, requested, node_id, node)
        if seen is not None:
            yield (
                node_id,
                Step(
                    invoked=operation.invoked,
                    returned=operation.returned,
                    requested=seen[0],
                    answer=(seen[1], node),
                    origin=operation.origin,
                ),
            )


def _observation(
    operation: Operation, requested: NodeRequest, node_id: str, node: BlockedNode | None
) -> tuple[NodeRequest, int] | None:
    """What the response shows about one node, as an equivalent request and status."""
    status = operation.status
    assert status is not None
    if operation.kind is Kind.LIST:
        return requested, 404 if node is None else 200
    if operation.kind is not Kind.PUT_MANY:
        return requested, status
    if status == 200:
        return requested, operation.statuses[node_id]
    # A refused PUT of several shows only for nodes without allowMerge whether they were blocked.
    assert isinstance(requested, Put)
    if node is not None:
        return requested, 409
    return None if requested.allow_merge else (Get(), 404)


def without_start(node: BlockedNode | None) -> BlockedNode | None:
    """The node without its start, which only the service knows."""
    return None if node is None else replace(node, start=0)


class NodeParser:
    """Parses nodes from JSON; equal nodes share one object."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], BlockedNode] = {}

    def read(self, node_id: str, fields: Mapping[str, Any]) -> BlockedNode:
        key = (node_id, fields["action"], fields["startTimestamp"], fields["endTimestamp"], fields["cause"])
        if key not in self._known:
            start, end = int(key[2]), int(key[3])
            self._known[key] = BlockedNode(id=node_id, action=BlockAction[key[1]], start=start, end=end, cause=key[4])
        return self._known[key]
