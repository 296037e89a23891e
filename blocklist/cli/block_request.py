"""BlockSpec: what `block` requests, and how it is ensured: by a request, unless the nodes are blocked so already."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

import typer

from blocklist.cli.options import default_duration
from blocklist.model.errors import ConflictError
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode, merge

R = TypeVar("R")
_END_TOLERANCE: Final = 60_000
"""Milliseconds by which the end may fall short of a length that is asked for again; a tenth of a short one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockSpec:
    """How nodes are to be blocked. With an end that is earlier by `slack` milliseconds they are so already."""

    action: BlockAction
    cause: str
    start: int
    end: int
    tolerance: int = 0

    def block_for(self, node_id: str) -> BlockedNode:
        return BlockedNode(id=node_id, action=self.action, start=self.start, end=self.end, cause=self.cause)

    def satisfied_by(self, current: BlockedNode) -> bool:
        """Whether the node is blocked so, or more: merging the two would change nothing."""
        end = current.end if current.end < self.end <= current.end + self.tolerance else self.end
        return merge(current, replace(self.block_for(current.id), start=current.start, end=end)) is current


@dataclass(frozen=True, kw_only=True, slots=True)
class EnsureResult(Generic[R]):
    """What came of it: the answer for those that had to be blocked (None if all were), and those that were already."""

    response: R | None
    already_blocked: Mapping[str, BlockedNode]


def end_and_tolerance(now: int, duration: int | None, until: int | None, forever: bool) -> tuple[int, int]:
    """The end and the slack that the options ask for. Raises a usage error for more than one of them."""
    if (duration is not None) + (until is not None) + forever > 1:
        raise typer.BadParameter("give one of --duration, --until and --forever.")
    if until is not None:
        if until <= now:
            raise typer.BadParameter("--until: that time is past.")
        return until, 0
    requested = PERMANENT if forever else default_duration() if duration is None else duration
    return (PERMANENT, 0) if requested == PERMANENT else (now + requested, min(_END_TOLERANCE, requested // 10))


def ensure_blocked(spec: BlockSpec, node_ids: Sequence[str], send: Callable[[list[BlockedNode]], R]) -> EnsureResult[R]:
    """Send what is not so already. Raises ConflictError, with nothing changed, where merging would be needed."""
    remaining, already_blocked = list(node_ids), dict[str, BlockedNode]()
    while remaining:
        try:
            return EnsureResult(
                response=send([spec.block_for(node_id) for node_id in remaining]), already_blocked=already_blocked
            )
        except ConflictError as error:
            if not error.blocked or not all(map(spec.satisfied_by, error.blocked.values())):
                raise
            already_blocked |= error.blocked
            remaining = [node_id for node_id in remaining if node_id not in already_blocked]
    return EnsureResult(response=None, already_blocked=already_blocked)


def noop_block(current: BlockedNode) -> BlockedNode:
    """A block that merges with the present one without a change: so one can wait until that is applied."""
    cause = next((part for part in current.cause.split(",") if part), current.cause)
    return replace(current, cause=cause)
