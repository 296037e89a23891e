"""The bodies of errors: application/problem+json (RFC 9457)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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


LIMIT_PROBLEM: Final = "urn:blocklist:problem:limit"
"""The problem type of a 409 caused by a limit. Unlike a conflict, it has no existing block to merge with."""


AMBIGUOUS_PROBLEM: Final = "urn:blocklist:problem:ambiguous-node"
"""The problem type of a 409 for a name that means several blocked nodes."""


UNKNOWN_NODE_PROBLEM: Final = "urn:blocklist:problem:unknown-node"
"""The problem type of a 409 for a node that no listener knows, if `strict` was given."""


DISMISSED_PROBLEM: Final = "urn:blocklist:problem:dismissed"
"""The problem type of a 409 for a claim of an owner that was dismissed after what the claim rests on was observed."""


NO_PATH_PROBLEM: Final = "urn:blocklist:problem:no-such-path"
"""The problem type of a 404 for a path that the service does not have. Any other 404 is about a node, for example."""


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
