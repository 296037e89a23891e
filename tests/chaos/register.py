"""One node of the list as a register: what an operation on it answers, and what it leaves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from blocklist.model.node import BlockedNode, merge

NANOS: Final = 1_000_000
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


Asked = Put | Delete | Get
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
    asked: Asked
    answer: Answer
    decided: int | None = None
    raw: bool = False
    by: str = ""


def after(step: Step, state: State, moment: int) -> Iterator[tuple[State, int]]:
    """The states in which the step may leave the register, each with the earliest moment at which it did so.

    `moment` is the earliest at which the register can be in the state that it has. There are two ways where a block
    may have ended before the step or after it, and none if the answer is wrong whenever it happened. Who finds a block
    ended leaves it there: a merge may be under way that was decided before.
    """
    if step.raw:
        if (at := max(moment, step.invoked)) <= step.returned and _is_raw(step, state):
            yield state, at
        return
    for seen, at in _seen(step, state, max(moment, step.invoked)):
        answer, left = carry_out(step.asked, seen)
        if answer == step.answer and at <= step.returned:
            yield (state if left == seen else left), at


def _is_raw(step: Step, state: State) -> bool:
    """Whether the log may say of the node what the step has read; that a block has expired is in the log, too."""
    read = step.answer[1]
    return state == read or (read is None and state is not None and state.end * NANOS <= step.returned)


def carry_out(asked: Asked, present: State) -> tuple[Answer, State]:
    """The answer that the contract gives, and what is left; `present` has not ended."""
    match asked:
        case Put(node=node) if present is None:
            return (201, node), node
        case Put(allow_merge=False):
            return (409, present), present
        case Put(node=node) if present is not None:
            merged = merge(present, node)
            return (202, merged), merged
        case Delete():
            return (404 if present is None else 200, None), None
        case _:
            return (404 if present is None else 200, present), present


def _seen(step: Step, state: State, earliest: int) -> Iterator[tuple[State, int]]:
    end = None if state is None else state.end * NANOS
    if step.decided is not None:
        yield None if end is not None and end <= step.decided else state, max(earliest, step.decided)
        return
    if end is None or earliest < end:
        yield state, earliest
    if end is not None and end <= step.returned:
        yield None, max(earliest, end)
