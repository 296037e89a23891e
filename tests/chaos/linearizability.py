"""Whether concurrent operations on one register are linearizable.

The search of Wing and Gong, with Lowe's cache of visited states. A list of many nodes is checked node by
node: it is linearizable if each of them is (Herlihy and Wing; Horn and Kroening's P-compositionality).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.chaos.register import State, Step, successors


@dataclass(frozen=True, slots=True)
class NotLinearizable:
    """There is no order: after `completed` steps, with the register in this state, none of `next` fits."""

    completed: int
    state: State
    next: tuple[Step, ...]

    def __str__(self) -> str:
        lines = [f"after {self.completed} operations the node is {self.state}, and none of these fits:"]
        return "\n    ".join([*lines, *map(str, self.next)])


class _SearchState(NamedTuple):
    """Which steps are completed, in the order of their invocation.

    All before `first`, and later ones whose bit in `ahead` is set, counted from `first`.
    """

    first: int
    ahead: int
    state: State
    timestamp: int


def find_violation(steps: Iterable[Step]) -> NotLinearizable | None:
    """The furthest state of the search if there is no order of all steps; None if there is one.

    The register is free at first. Each step takes effect once, between its invocation and its return.
    """
    ordered = sorted(steps, key=lambda step: step.invoked)
    position = furthest = _SearchState(0, 0, None, 0)
    known, ways = {position}, [_next_states(ordered, position)]
    while ways and furthest.first < len(ordered):
        following = next(ways[-1], None)
        if following is None:
            ways.pop()
        elif following not in known:
            known.add(following)
            ways.append(_next_states(ordered, following))
            furthest = max(furthest, following, key=_completed)
    return None if furthest.first == len(ordered) else _violation(ordered, furthest)


def _next_states(ordered: Sequence[Step], position: _SearchState) -> Iterator[_SearchState]:
    """The states that are one step further.

    A step that changes nothing, usually a read, is taken at once: whatever can follow now can follow after it, so no
    other step needs to be tried first.
    """
    ways = []
    for place in _candidates(ordered, position):
        for state, timestamp in successors(ordered[place], position.state, position.timestamp):
            further = _advance(position, place, state, timestamp)
            if (state, timestamp) == (position.state, position.timestamp):
                yield further
                return
            ways.append(further)
    yield from ways


def _candidates(ordered: Sequence[Step], position: _SearchState) -> list[int]:
    """The steps that may be next: those invoked before any other remaining step had returned."""
    deadline, found = None, []
    for place in range(position.first, len(ordered)):
        step = ordered[place]
        if deadline is not None and step.invoked > deadline:
            break
        if not position.ahead >> (place - position.first) & 1:
            found.append(place)
            deadline = step.returned if deadline is None else min(deadline, step.returned)
    return found


def _advance(position: _SearchState, place: int, state: State, timestamp: int) -> _SearchState:
    first, ahead = position.first, position.ahead | 1 << (place - position.first)
    while ahead & 1:
        first, ahead = first + 1, ahead >> 1
    return _SearchState(first, ahead, state, timestamp)


def _completed(position: _SearchState) -> int:
    return position.first + position.ahead.bit_count()


def _violation(ordered: Sequence[Step], position: _SearchState) -> NotLinearizable:
    candidates = tuple(ordered[place] for place in _candidates(ordered, position))
    return NotLinearizable(completed=_completed(position), state=position.state, next=candidates)
