"""Whether concurrent operations on one register could have happened one after the other.

The search of Wing and Gong, with Lowe's memory of positions that led nowhere. A list of many nodes is checked node by
node: it is linearizable if each of them is (Herlihy and Wing; Horn and Kroening's P-compositionality).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.chaos.register import State, Step, after


@dataclass(frozen=True, slots=True)
class Stuck:
    """There is no order: after `done` steps, with the register in this state, none of the next can come first."""

    done: int
    state: State
    next: tuple[Step, ...]

    def __str__(self) -> str:
        lines = [f"after {self.done} operations the node is {self.state}, and none of these fits:"]
        return "\n    ".join([*lines, *map(str, self.next)])


class _Position(NamedTuple):
    """Which steps have happened, in the order of their invocation.

    All before `first`, and of the rest those whose bit of `ahead` is set, counted from `first`.
    """

    first: int
    ahead: int
    state: State
    moment: int


def find_stuck(steps: Iterable[Step]) -> Stuck | None:
    """Where the search for an order ends that never goes further; None if there is an order of all steps.

    The register is free at first. Each step is taken once, between its invocation and its return.
    """
    ordered = sorted(steps, key=lambda step: step.invoked)
    position = furthest = _Position(0, 0, None, 0)
    known, ways = {position}, [_ways(ordered, position)]
    while ways and furthest.first < len(ordered):
        following = next(ways[-1], None)
        if following is None:
            ways.pop()
        elif following not in known:
            known.add(following)
            ways.append(_ways(ordered, following))
            furthest = max(furthest, following, key=_done)
    return None if furthest.first == len(ordered) else _stuck(ordered, furthest)


def _ways(ordered: Sequence[Step], position: _Position) -> Iterator[_Position]:
    """The positions that are one step further.

    A step that leaves everything as it is, a read most often, is taken at once: whatever may follow now may follow
    then, so the others need not be tried before it.
    """
    ways = []
    for place in _candidates(ordered, position):
        for state, moment in after(ordered[place], position.state, position.moment):
            further = _advanced(position, place, state, moment)
            if (state, moment) == (position.state, position.moment):
                yield further
                return
            ways.append(further)
    yield from ways


def _candidates(ordered: Sequence[Step], position: _Position) -> list[int]:
    """The steps that may come next: those that were invoked before any that is left had returned."""
    deadline, found = None, []
    for place in range(position.first, len(ordered)):
        step = ordered[place]
        if deadline is not None and step.invoked > deadline:
            break
        if not position.ahead >> (place - position.first) & 1:
            found.append(place)
            deadline = step.returned if deadline is None else min(deadline, step.returned)
    return found


def _advanced(position: _Position, place: int, state: State, moment: int) -> _Position:
    first, ahead = position.first, position.ahead | 1 << (place - position.first)
    while ahead & 1:
        first, ahead = first + 1, ahead >> 1
    return _Position(first, ahead, state, moment)


def _done(position: _Position) -> int:
    return position.first + position.ahead.bit_count()


def _stuck(ordered: Sequence[Step], position: _Position) -> Stuck:
    candidates = tuple(ordered[place] for place in _candidates(ordered, position))
    return Stuck(done=_done(position), state=position.state, next=candidates)
