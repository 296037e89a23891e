"""Wish: what `block` is asked for, and how it comes true: by an order, or because it is so already."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

import typer

from blocklist.cli.options import default_length
from blocklist.model.errors import ConflictError
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode, merge

R = TypeVar("R")
_REPEAT: Final = 60_000
"""Milliseconds by which the end may fall short of a length that is asked for again; a tenth of a short one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """How nodes are to be blocked. With an end that is earlier by `slack` milliseconds they are so already."""

    action: BlockAction
    cause: str
    start: int
    end: int
    slack: int = 0

    def of(self, node_id: str) -> BlockedNode:
        return BlockedNode(id=node_id, action=self.action, start=self.start, end=self.end, cause=self.cause)

    def met_by(self, present: BlockedNode) -> bool:
        """Whether the node is blocked so, or more: merging the two would change nothing."""
        end = present.end if present.end < self.end <= present.end + self.slack else self.end
        return merge(present, replace(self.of(present.id), start=present.start, end=end)) is present


@dataclass(frozen=True, kw_only=True, slots=True)
class Come(Generic[R]):
    """What came of it: the answer for those that had to be blocked (None if all were), and those that were already."""

    answer: R | None
    already: Mapping[str, BlockedNode]


def span(at: int, length: int | None, until: int | None, forever: bool) -> tuple[int, int]:
    """The end and the slack that the options ask for. Raises a usage error for more than one of them."""
    if (length is not None) + (until is not None) + forever > 1:
        raise typer.BadParameter("give one of --duration, --until and --forever.")
    if until is not None:
        if until <= at:
            raise typer.BadParameter("--until: that time is past.")
        return until, 0
    asked = PERMANENT if forever else default_length() if length is None else length
    return (PERMANENT, 0) if asked == PERMANENT else (at + asked, min(_REPEAT, asked // 10))


def fulfil(wish: Wish, node_ids: Sequence[str], send: Callable[[list[BlockedNode]], R]) -> Come[R]:
    """Send what is not so already. Raises ConflictError, with nothing changed, where merging would be needed."""
    wanted, already = list(node_ids), dict[str, BlockedNode]()
    while wanted:
        try:
            return Come(answer=send([wish.of(node_id) for node_id in wanted]), already=already)
        except ConflictError as error:
            if not error.blocked or not all(map(wish.met_by, error.blocked.values())):
                raise
            already |= error.blocked
            wanted = [node_id for node_id in wanted if node_id not in already]
    return Come(answer=None, already=already)


def as_it_is(present: BlockedNode) -> BlockedNode:
    """A block that merges with the present one without a change: so one can wait until that is applied."""
    cause = next((part for part in present.cause.split(",") if part), present.cause)
    return replace(present, cause=cause)
