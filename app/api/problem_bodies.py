"""The bodies of errors in the API document: application/problem+json (RFC 9457)."""

from __future__ import annotations

from dataclasses import dataclass

from blocklist.wire.body import Body, with_example
from blocklist.wire.nodes import NodeBody


@dataclass(kw_only=True)
class Problem(Body):
    """An error (RFC 9457). `errors` is what Flink's REST clients read."""

    __pydantic_config__ = with_example(
        type="urn:blocklist:problem:bad-request",
        title="Bad Request",
        status=400,
        detail="cause: this field is required.",
        instance="/blocklist/nodes/worker-17",
        errors=["cause: this field is required."],
    )

    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: list[str]


@dataclass(kw_only=True)
class ConflictProblem(Problem):
    """The node is already blocked: `blockedNode` is its existing block."""

    blocked_node: NodeBody


@dataclass(kw_only=True)
class ConflictsProblem(Problem):
    """Some nodes are already blocked: `blockedNodes` are their existing blocks."""

    blocked_nodes: dict[str, NodeBody]


@dataclass(kw_only=True)
class CompactedProblem(Problem):
    """The changes are no longer in the log, which starts at revision `oldest`."""

    oldest: int
