"""The block that `block` requests, and how it is ensured: nodes that already have it are left out of the request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

import typer

from blocklist.model.errors import ConflictError
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode, merge

R = TypeVar("R")
_END_TOLERANCE: Final = 60_000
"""Maximum of BlockSpec.tolerance, in milliseconds; for durations under ten minutes it is a tenth of the duration."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockSpec:
    """The requested block. An existing block satisfies it if it ends at most `tolerance` milliseconds earlier.

    The tolerance makes a repeated `-d 2h` a no-op.
    """

    action: BlockAction
    cause: str
    start: int
    end: int
    tolerance: int = 0

    def block_for(self, node_id: str) -> BlockedNode:
        return BlockedNode(id=node_id, action=self.action, start=self.start, end=self.end, cause=self.cause)

    def satisfied_by(self, current: BlockedNode) -> bool:
        """Whether merging would not change the current block."""
        end = current.end if current.end < self.end <= current.end + self.tolerance else self.end
        return merge(current, replace(self.block_for(current.id), start=current.start, end=end)) is current


@dataclass(frozen=True, kw_only=True, slots=True)
class EnsureResult(Generic[R]):
    """The response for the nodes that were requested, None if no request was needed, and the blocks of the others."""

    response: R | None
    already_blocked: Mapping[str, BlockedNode]


def end_and_tolerance(
    now: int, duration: int | None, until: int | None, forever: bool, default: Callable[[], int]
) -> tuple[int, int]:
    """The end and the tolerance for these options, in Unix milliseconds; `default` returns the duration without any.

    Raises a usage error for conflicting ones.
    """
    if (duration is not None) + (until is not None) + forever > 1:
        raise typer.BadParameter("give only one of --duration, --until and --forever.")
    if until is not None:
        if until <= now:
            raise typer.BadParameter("--until: that time is in the past.")
        return until, 0
    requested = PERMANENT if forever else default() if duration is None else duration
    return (PERMANENT, 0) if requested == PERMANENT else (now + requested, min(_END_TOLERANCE, requested // 10))


def ensure_blocked(
    spec: BlockSpec,
    node_ids: Sequence[str],
    send: Callable[[list[BlockedNode]], R],
    merge_blocks: Callable[[list[BlockedNode]], R] | None = None,
) -> EnsureResult[R]:
    """Block the nodes; repeat the request without those that already satisfy `spec`.

    If another node has a different block, the request is repeated with `merge_blocks`; without it, raises
    ConflictError, with nothing changed.
    Merging is not tried first: its response does not tell whether it had an effect.
    """
    remaining, already_blocked = list(node_ids), dict[str, BlockedNode]()
    while remaining:
        try:
            response = send([spec.block_for(node_id) for node_id in remaining])
            return EnsureResult(response=response, already_blocked=already_blocked)
        except ConflictError as error:
            satisfied = {node_id: node for node_id, node in error.blocked.items() if spec.satisfied_by(node)}
            if not error.blocked or len(satisfied) < len(error.blocked):
                if merge_blocks is None:
                    raise
                send, merge_blocks = merge_blocks, None
            already_blocked |= satisfied
            remaining = [node_id for node_id in remaining if node_id not in already_blocked]
    return EnsureResult(response=None, already_blocked=already_blocked)


def noop_block(spec: BlockSpec, current: BlockedNode) -> BlockedNode:
    """A block that does not change one that satisfies `spec`: a request with it can wait until that is applied.

    It is what the caller wants, and not more, as it becomes a claim of his if the current block is somebody else's.
    """
    return replace(spec.block_for(current.id), end=min(spec.end, current.end))
