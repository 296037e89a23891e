"""One node of the list as a register: what an operation on it answers, and what it leaves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from blocklist.model.node import BlockedNode, merge

NANOS_PER_MS: Final = 1_000_000
"""Nanoseconds in the milliseconds in which ends are counted."""


@dataclass(frozen=True, slots=True)
class Put:
    """Block it; the node's start is 0, as only the service knows it."""

    node: BlockedNode
    allow_merge: bool


@dataclass(frozen=True, slots=True)
class Delete:
    """Free it."""


@dataclass(frozen=True, slots=True)
class Get:
    """Look whether it is blocked."""


NodeRequest = Put | Delete | Get
State = BlockedNode | None
"""None is free. A block that has ended is free, too, with no operation between."""
Answer = tuple[int, BlockedNode | None]
"""The status, and the node that the answer shows, its start 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An operation on one node: it happened at one moment from `invoked` to `returned` (Unix nanoseconds).

    `decided` is when a change was decided: it is made a little later, and which blocks had ended was settled by then.
    One that is `raw` has read what the log says of the node, whether that had ended or not. `by` says whose it was, for
    those who read a report.
    """

    invoked: int
    returned: int
    requested: NodeRequest
    answer: Answer
    decided_at: int | None = None
    reads_log: bool = False
    origin: str = ""


def successors(step: Step, state: State, timestamp: int) -> Iterator[tuple[State, int]]:
    """The states in which the step may leave the register, each with the earliest moment at which it did so.

    `moment` is the earliest at which the register can be in the state that it has. There are two ways where a block
    may have ended before the step or after it, and none if the answer is wrong whenever it happened. Who finds a block
    ended leaves it there: a merge may be under way that was decided before.
    """
    if step.reads_log:
        if (at := max(timestamp, step.invoked)) <= step.returned and _matches_log(step, state):
            yield state, at
        return
    for seen, at in _visible_states(step, state, max(timestamp, step.invoked)):
        answer, left = apply_request(step.requested, seen)
        if answer == step.answer and at <= step.returned:
            yield (state if left == seen else left), at


def _matches_log(step: Step, state: State) -> bool:
    """Whether the log may say of the node what the step has read; that a block has expired is in the log, too."""
    read = step.answer[1]
    return state == read or (read is None and state is not None and state.end * NANOS_PER_MS <= step.returned)


def apply_request(requested: NodeRequest, current: State) -> tuple[Answer, State]:
    """The answer that the contract gives, and what is left; `present` has not ended."""
    match requested:
        case Put(node=node) if current is None:
            return (201, node), node
        case Put(allow_merge=False):
            return (409, current), current
        case Put(node=node) if current is not None:
            merged = merge(current, node)
            return (202, merged), merged
        case Delete():
            return (404 if current is None else 200, None), None
        case _:
            return (404 if current is None else 200, current), current


def _visible_states(step: Step, state: State, earliest: int) -> Iterator[tuple[State, int]]:
    end = None if state is None else state.end * NANOS_PER_MS
    if step.decided_at is not None:
        yield None if end is not None and end <= step.decided_at else state, max(earliest, step.decided_at)
        return
    if end is None or earliest < end:
        yield state, earliest
    if end is not None and end <= step.returned:
        yield None, max(earliest, end)
