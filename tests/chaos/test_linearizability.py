"""The checker accepts linearizable histories, and rejects others."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blocklist.model.node import PERMANENT, BlockAction, BlockedNode, merge
from tests.chaos.linearizability import find_violation
from tests.chaos.register import (
    NANOS_PER_MS,
    Answer,
    Delete,
    Get,
    NodeRequest,
    Put,
    State,
    Step,
    apply_request,
    successors,
)
from tests.length import longer

A, B, C = "a", "b", "c"
FREE: Answer = (404, None)
FREED: Answer = (200, None)


def node(cause: str, end: int = PERMANENT) -> BlockedNode:
    return BlockedNode(id="n", action=BlockAction.MARK_BLOCKED, start=0, end=end, cause=cause)


def put(cause: str, end: int = PERMANENT, *, merging: bool = False) -> Put:
    return Put(node(cause, end), allow_merge=merging)


def step(
    invoked: float, returned: float, requested: NodeRequest, answer: Answer, decided_at: float | None = None
) -> Step:
    """A step between two times in milliseconds."""
    when = None if decided_at is None else int(decided_at * NANOS_PER_MS)
    return Step(
        invoked=int(invoked * NANOS_PER_MS),
        returned=int(returned * NANOS_PER_MS),
        requested=requested,
        answer=answer,
        decided_at=when,
    )


def both(first: str, second: str) -> BlockedNode:
    return merge(node(first), node(second))


GOOD = {
    "nothing": [],
    "one after the other": [
        step(1, 2, put(A), (201, node(A))),
        step(3, 4, put(B), (409, node(A))),
        step(5, 6, put(B, merging=True), (202, both(A, B))),
        step(7, 8, Get(), (200, both(A, B))),
        step(9, 10, Delete(), FREED),
        step(11, 12, Get(), FREE),
        step(13, 14, Delete(), FREE),
    ],
    "a read during a write sees it or not": [
        step(1, 9, put(A), (201, node(A))),
        step(2, 8, Get(), (200, node(A))),
        step(3, 7, Get(), FREE),
    ],
    "what was invoked first may come last": [
        step(1, 9, put(A), (409, node(B))),
        step(2, 8, put(B), (201, node(B))),
    ],
    "one of two merges comes first": [
        step(1, 2, put(A), (201, node(A))),
        step(3, 9, put(B, merging=True), (202, merge(both(A, C), node(B)))),
        step(4, 8, put(C, merging=True), (202, both(A, C))),
    ],
    "a merge that was there already changes nothing": [
        step(1, 2, put(A), (201, node(A))),
        step(3, 4, put(A, merging=True), (202, node(A))),
    ],
    "a change without an answer comes late": [
        step(1, 99, put(A), (201, node(A))),
        step(2, 3, Get(), FREE),
        step(50, 51, Get(), (200, node(A))),
    ],
    "a block is over at its end": [
        step(1, 2, put(A, end=10), (201, node(A, 10))),
        step(3, 4, Get(), (200, node(A, 10))),
        step(9, 11, Get(), (200, node(A, 10))),
        step(9, 11, Get(), FREE),
        step(10, 12, Delete(), FREE),
        step(13, 14, put(B), (201, node(B))),
    ],
    "a merge moves the end": [
        step(1, 2, put(A, end=10), (201, node(A, 10))),
        step(3, 4, put(B, end=20, merging=True), (202, merge(node(A, 10), node(B, 20)))),
        step(15, 16, put(C), (409, merge(node(A, 10), node(B, 20)))),
        step(20, 21, put(C), (201, node(C))),
    ],
    "a block whose end passed while it waited": [
        step(1, 30, put(A, end=10), (201, node(A, 10))),
        step(2, 20, put(B, end=15), (201, node(B, 15))),
        step(11, 12, Get(), (200, node(B, 15))),
    ],
    "a block that ends while a merge with it is made": [
        step(1, 2, put(A, end=10), (201, node(A, 10))),
        step(8, 14, put(B, end=20, merging=True), (202, merge(node(A, 10), node(B, 20))), decided_at=9),
        step(11, 12, Get(), FREE),
        step(13, 13.5, Get(), (200, merge(node(A, 10), node(B, 20)))),
    ],
}


BAD = {
    "a lost write": [
        step(1, 2, put(A), (201, node(A))),
        step(3, 4, Get(), FREE),
    ],
    "a stale read": [
        step(1, 2, put(A), (201, node(A))),
        step(3, 4, Delete(), FREED),
        step(5, 6, Get(), (200, node(A))),
    ],
    "new and then old": [
        step(1, 9, put(A), (201, node(A))),
        step(2, 3, Get(), (200, node(A))),
        step(4, 5, Get(), FREE),
    ],
    "a stale refusal": [
        step(1, 2, put(A), (201, node(A))),
        step(3, 4, Delete(), FREED),
        step(5, 6, put(B), (409, node(A))),
    ],
    "a double 201": [
        step(1, 9, put(A), (201, node(A))),
        step(2, 8, put(B), (201, node(B))),
    ],
    "freed twice": [
        step(1, 2, put(A), (201, node(A))),
        step(3, 9, Delete(), FREED),
        step(4, 8, Delete(), FREED),
    ],
    "resurrected": [
        step(1, 2, put(A), (201, node(A))),
        step(3, 4, Delete(), FREED),
        step(5, 6, Get(), FREE),
        step(7, 8, Get(), (200, node(A))),
    ],
    "a lost merge": [
        step(1, 2, put(A), (201, node(A))),
        step(3, 9, put(B, merging=True), (202, both(A, B))),
        step(4, 8, put(C, merging=True), (202, both(A, C))),
    ],
    "an overwritten block": [
        step(1, 2, put(A), (201, node(A))),
        step(3, 4, put(B, merging=True), (202, node(B))),
    ],
    "a block without a request": [step(1, 2, Get(), (200, node(A)))],
    "blocked beyond its end": [
        step(1, 2, put(A, end=10), (201, node(A, 10))),
        step(10, 11, Get(), (200, node(A, 10))),
    ],
    "free before its end": [
        step(1, 2, put(A, end=10), (201, node(A, 10))),
        step(3, 9.9, put(B), (201, node(B))),
    ],
    "ended for one, and later not for another": [
        step(1, 2, put(A, end=10), (201, node(A, 10))),
        step(3, 30, put(B), (201, node(B))),
        step(4, 5, Get(), (200, node(B))),
    ],
    "a merge that was decided when the block had ended": [
        step(1, 2, put(A, end=10), (201, node(A, 10))),
        step(8, 14, put(B, end=20, merging=True), (202, merge(node(A, 10), node(B, 20))), decided_at=10),
    ],
    "free after a merge was seen": [
        step(1, 2, put(A, end=10), (201, node(A, 10))),
        step(8, 14, put(B, end=20, merging=True), (202, merge(node(A, 10), node(B, 20))), decided_at=9),
        step(11, 12, Get(), (200, merge(node(A, 10), node(B, 20)))),
        step(13, 13.5, Get(), FREE),
    ],
}


@pytest.mark.parametrize("steps", GOOD.values(), ids=GOOD)
def test_a_linearizable_history_is_accepted(steps: list[Step]) -> None:
    assert find_violation(steps) is None


@pytest.mark.parametrize("steps", BAD.values(), ids=BAD)
def test_a_history_without_an_order_is_rejected(steps: list[Step]) -> None:
    assert find_violation(steps) is not None


def test_the_report_names_the_operations_that_do_not_fit() -> None:
    steps = [*GOOD["one after the other"], step(20, 21, Get(), (200, node(B))), step(22, 23, Get(), FREE)]
    stuck = find_violation(steps)
    assert stuck is not None
    assert (stuck.completed, stuck.state, stuck.next) == (7, None, (steps[7],))


@pytest.mark.parametrize("last", [FREE, (200, node(A))], ids=["possible", "not"])
def test_many_concurrent_reads_take_no_exponential_time(last: Answer) -> None:
    reads = [step(3 + n / 40, 5, Get(), (200, node(A)) if n % 2 else FREE) for n in range(40)]
    steps = [step(1, 2, put(A), (201, node(A))), step(3, 5, Delete(), FREED), *reads, step(6, 7, Get(), last)]
    assert (find_violation(steps) is None) == (last == FREE)


timestamps = st.integers(0, 12)
node_requests = st.one_of(
    st.builds(put, st.sampled_from("ab"), st.sampled_from([5, 9, PERMANENT]), merging=st.booleans()),
    st.just(Delete()),
    st.just(Get()),
)
answers = st.sampled_from(
    [FREE, FREED, *((status, node(A, end)) for status in (200, 201, 202, 409) for end in (5, 9, PERMANENT))]
)


@st.composite
def random_steps(draw: st.DrawFn) -> Step:
    invoked, returned = sorted((draw(timestamps), draw(timestamps)))
    return step(invoked, returned, draw(node_requests), draw(answers))


@st.composite
def possible_histories(draw: st.DrawFn) -> list[Step]:
    """Answers of a register, each step with an interval around its time."""
    found: list[Step] = []
    state: State = None
    for timestamp in sorted(draw(st.lists(timestamps, max_size=8))):
        requested = draw(node_requests)
        before, behind = draw(st.integers(0, 4)), draw(st.integers(0, 4))
        current = None if state is None or state.ended(timestamp) else state
        answer, state = apply_request(requested, current)
        found.append(step(timestamp - before, timestamp + behind, requested, answer))
    return found


def any_order(steps: list[Step]) -> bool:
    """The definition: an order, with times that do not go back, explains all answers."""
    return any(_fits(list(order), None, 0) for order in permutations(steps))


def _fits(order: list[Step], state: State, timestamp: int) -> bool:
    if not order:
        return True
    return any(_fits(order[1:], left, at) for left, at in successors(order[0], state, timestamp))


@settings(max_examples=longer(300), deadline=None)
@given(possible_histories())
def test_every_history_of_a_register_is_linearizable(steps: list[Step]) -> None:
    assert find_violation(steps) is None


@settings(max_examples=longer(300), deadline=None)
@given(st.lists(random_steps(), max_size=2), possible_histories())
def test_the_search_agrees_with_brute_force(random: list[Step], possible: list[Step]) -> None:
    steps = [*random, *possible[:4]]
    assert (find_violation(steps) is None) == any_order(steps)
