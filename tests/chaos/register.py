"""One node of the list as a register: the answers of operations on it, and its states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from blocklist.model.node import BlockedNode, merge

NANOS_PER_MS: Final = 1_000_000
"""Nanoseconds in a millisecond, the unit of ends."""


@dataclass(frozen=True, slots=True)
class Put:
    """Block the node. Its start is 0: only the service knows it."""

    node: BlockedNode
    allow_merge: bool


@dataclass(frozen=True, slots=True)
class Delete:
    """Unblock the node."""


@dataclass(frozen=True, slots=True)
class Get:
    """Read the node."""


NodeRequest = Put | Delete | Get
State = BlockedNode | None
"""None is free. A block that has ended is free, too, without an operation."""
Answer = tuple[int, BlockedNode | None]
"""Status and node of the response; the node's start is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An operation on one node. It took effect at one time from `invoked` to `returned` (Unix nanoseconds).

    `decided_at` is when a change was decided; it is committed a little later, but which blocks had ended depends on
    this time. `reads_log`: the answer is the node in the log, whether it had ended or not. `origin` is for messages.
    """

    invoked: int
    returned: int
    requested: NodeRequest
    answer: Answer
    decided_at: int | None = None
    reads_log: bool = False
    origin: str = ""


def successors(step: Step, state: State, timestamp: int) -> Iterator[tuple[State, int]]:
    """The states in which the step may leave the register, each with the earliest time at which it can.

    `timestamp` is the earliest time at which the register can have its current state. There are two results if a block
    may have ended before the step or after it, and none if the answer is wrong at any time. A step that finds a block
    ended leaves it in place: a merge with it may have been decided before.
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
    """Whether the step has read the node in the log; its block may have expired there, too."""
    read = step.answer[1]
    return state == read or (read is None and state is not None and state.end * NANOS_PER_MS <= step.returned)


def apply_request(requested: NodeRequest, current: State) -> tuple[Answer, State]:
    """The answer according to the contract, and the next state; `current` has not ended."""
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
