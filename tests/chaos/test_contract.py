"""A valid run has no violations, and each planted error is found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import pytest

from blocklist.model.changes import Change, ChangeType
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode, merge
from blocklist.wire.changes import change_body
from tests.chaos.contract import violations
from tests.chaos.operation import Kind, Operation
from tests.chaos.register import NANOS_PER_MS, Delete, Get, NodeRequest, Put

NODES: Final = ("a", "b", "c", "d")


def node(node_id: str, cause: str, *, start: int = 0, end: int = PERMANENT) -> BlockedNode:
    return BlockedNode(id=node_id, action=BlockAction.MARK_BLOCKED, start=start, end=end, cause=cause)


def put(node: BlockedNode, *, merging: bool = False) -> Put:
    return Put(replace(node, start=0), allow_merge=merging)


def operation(kind: Kind, begin: int, end: int, *, requested: Mapping[str, NodeRequest], **seen: Any) -> Operation:
    """An operation between two times (Unix ms), by default of client 0 at replica 0."""
    usual: dict[str, Any] = {"client": 0, "replica": 0, "min_revision": None, "history": "00c0ffee"}
    if seen.get("status") is None:
        usual["history"] = None
    return Operation(
        **usual | seen, kind=kind, requested=requested, invoked=begin * NANOS_PER_MS, returned=end * NANOS_PER_MS
    )


def change(revision: int, kind: ChangeType, at: int, changed: BlockedNode) -> dict[str, Any]:
    return change_body(Change(revision=revision, type=kind, at=at, node=changed))


A = node("a", "0.1", start=11, end=60)
A2 = node("a", "1.1", start=71)
B, C = node("b", "0.2", start=21), node("c", "0.3", start=21)
MORE = node("b", "0.4", start=31)
BOTH = merge(B, MORE)

FIRST, SEVERAL, MERGE, REFUSED, FREEING, NEVER, LISTED, ONE, AFTER_END, FREE = range(10)
"""Indexes of the operations below."""


def valid_run() -> tuple[list[Operation], list[dict[str, Any]]]:
    """Operations and log of a run in which a client unblocks c without an answer, and fails to block d."""
    operations = [
        operation(Kind.PUT, 10, 12, requested={"a": put(A)}, status=201, revision=1, nodes={"a": A}),
        operation(
            Kind.PUT_MANY, 20, 23, requested={"b": put(B), "c": put(C)}, status=200, revision=3,
            nodes={"b": B, "c": C}, statuses={"b": 201, "c": 201},
        ),
        operation(
            Kind.PUT, 30, 33, requested={"b": put(MORE, merging=True)},
            status=202, revision=4, nodes={"b": BOTH},
        ),
        operation(Kind.PUT, 34, 35, requested={"b": put(B)}, status=409, revision=4, nodes={"b": BOTH}),
        operation(Kind.DELETE, 40, 44, requested={"c": Delete()}, client=1),
        operation(Kind.PUT, 45, 46, requested={"d": put(node("d", "1.9"))}, status=503, retry_after=True, client=1),
        operation(
            Kind.LIST, 50, 52, requested={}, status=200, revision=5, min_revision=4, etag="x",
            nodes={"a": A, "b": BOTH}, client=2, replica=1,
        ),
        operation(
            Kind.GET, 50, 53, requested={"a": Get()},
            status=200, revision=5, nodes={"a": A}, client=3, replica=1,
        ),
        operation(Kind.PUT, 70, 73, requested={"a": put(A2)}, status=201, revision=7, nodes={"a": A2}, client=4),
        operation(
            Kind.GET, 80, 81, requested={"c": Get()}, status=404, revision=7, min_revision=7, client=5
        ),
    ]  # fmt: skip
    log = [
        change(1, ChangeType.BLOCKED, 11, A),
        change(2, ChangeType.BLOCKED, 22, B),
        change(3, ChangeType.BLOCKED, 22, C),
        change(4, ChangeType.MERGED, 32, BOTH),
        change(5, ChangeType.UNBLOCKED, 43, C),
        change(6, ChangeType.EXPIRED, 72, A),
        change(7, ChangeType.BLOCKED, 72, A2),
    ]
    return operations, log


Run = tuple[list[Operation], list[dict[str, Any]]]


def changed(which: int, **fields: Any) -> Callable[[Run], None]:
    def plant(run: Run) -> None:
        run[0][which] = replace(run[0][which], **fields)

    return plant


def logged(revision: int, **fields: Any) -> Callable[[Run], None]:
    def plant(run: Run) -> None:
        run[1][revision - 1] = run[1][revision - 1] | fields

    return plant


def unlogged(run: Run) -> None:
    """The last change is lost."""
    del run[1][-1]


def gap(run: Run) -> None:
    del run[1][2]


def twice(run: Run) -> None:
    """The change without an answer was committed twice."""
    again = node("c", "0.3", start=21)
    run[1].append(change(8, ChangeType.BLOCKED, 75, again))


def half(run: Run) -> None:
    """A PUT of several had no answer, and only one of its nodes was blocked."""
    requested: dict[str, NodeRequest] = {"c": put(node("c", "9.1")), "d": put(node("d", "9.1"))}
    run[0].append(operation(Kind.PUT_MANY, 82, 84, requested=requested, client=9))
    run[1].append(change(8, ChangeType.BLOCKED, 83, node("d", "9.1", start=83)))


PLANTED_ERRORS: Final[dict[str, tuple[Callable[[Run], None], str]]] = {
    "a change that was acknowledged is not in the log": (unlogged, "is not in the log"),
    "a revision is missing": (gap, "has revision 4 where 3 belongs"),
    "two changes have one revision": (changed(MERGE, revision=1), "but was acknowledged to"),
    "one answer for two": (
        changed(AFTER_END, revision=1, nodes={"a": A}, requested={"a": put(A)}),
        "acknowledged twice",
    ),
    "a change without a request": (changed(FREEING, requested={"b": Delete()}), "no operation for revision 5"),
    "a change that happened twice": (twice, "no operation for revision 8"),
    "half of a PUT of several": (half, "only 1 of 2"),
    "a change from another time": (logged(1, at="9"), "another time"),
    "a merge that is none": (logged(4, node=change(4, ChangeType.MERGED, 32, MORE)["node"]), "is no merge"),
    "an expiry before the end": (logged(6, at="59"), "wrong side of the end"),
    "freed when it is free": (logged(7, type="unblocked"), "cannot follow"),
    "an answer of no contract": (changed(ONE, status=500), "not in the contract"),
    "a refusal for an end that has not passed": (changed(FIRST, status=400), "not in the contract"),
    "a 503 that does not say when to try again": (changed(NEVER, retry_after=False), "without Retry-After"),
    "another history": (changed(ONE, history="00000000"), "more than one history"),
    "a replica that goes back": (changed(REFUSED, revision=3), "comes after revision 4"),
    "a replica below minRevision": (changed(LISTED, min_revision=6), "comes after"),
    "a list that is not of its revision": (changed(LISTED, nodes={"b": BOTH}), "this was read"),
    "a node that is not of its revision": (changed(ONE, status=404, nodes={}), "this was read"),
    "a read of a revision to come": (changed(FREE, revision=8), "not in the log"),
    "a stale read": (changed(FREE, status=200, nodes={"c": C}, revision=3, min_revision=3), "c is not linearizable"),
    "a stale refusal": (changed(REFUSED, nodes={"b": B}), "b is not linearizable"),
}  # fmt: skip


def test_a_valid_run_has_no_violations() -> None:
    operations, log = valid_run()
    assert violations(operations, log, [log, log], NODES) == []


@pytest.mark.parametrize(("plant", "said"), PLANTED_ERRORS.values(), ids=PLANTED_ERRORS)
def test_every_planted_error_is_found(plant: Callable[[Run], None], said: str) -> None:
    run = valid_run()
    plant(run)
    operations, log = run
    found = violations(operations, log, [log], NODES)
    assert any(said in violation for violation in found), found


def test_a_retried_put_may_commit_twice() -> None:
    """The second time it adds no cause, but its block begins when the first one was read."""
    operations, log = valid_run()
    merged = replace(B, cause="0.2,0.5", start=16)
    operations[MERGE : MERGE + 2] = [
        operation(Kind.PUT, 15, 19, requested={"b": put(node("b", "0.5"), merging=True)}),
        operation(
            Kind.PUT, 30, 33, requested={"b": put(node("b", "0.5"), merging=True)}, status=202, revision=4,
            nodes={"b": replace(merged, start=21)}, replica=1,
        ),
        operation(
            Kind.GET, 75, 76, requested={"b": Get()},
            status=200, revision=8, min_revision=8, nodes={"b": merged},
        ),
    ]  # fmt: skip
    del operations[LISTED + 1]
    log[3] = change(4, ChangeType.MERGED, 32, replace(merged, start=21))
    log.append(change(8, ChangeType.MERGED, 74, merged))
    assert violations(operations, log, [log, log], NODES) == []


def test_a_retried_put_may_begin_before_the_first() -> None:
    """A paused replica reads the first request later than another one reads the second, but commits it earlier."""
    operations, log = valid_run()
    requested = {"d": put(node("d", "0.5"), merging=True)}
    log.append(change(8, ChangeType.BLOCKED, 79, node("d", "0.5", start=78)))
    log.append(change(9, ChangeType.MERGED, 80, node("d", "0.5", start=75)))
    first = operation(Kind.PUT, 70, 72, requested=requested, client=6)
    seen = {"d": node("d", "0.5", start=75)}
    again = operation(Kind.PUT, 74, 82, requested=requested, client=6, replica=1, status=202, revision=9, nodes=seen)
    assert violations([*operations, first, again], log, [log, log], NODES) == []
    lonely = violations([*operations, again], log, [log, log], NODES)
    assert any("no operation for revision 8" in violation for violation in lonely), lonely


@pytest.mark.parametrize("merges", [False, True], ids=["of a free node", "of a blocked one"])
def test_a_retried_put_may_find_the_block_of_the_first(*, merges: bool) -> None:
    """Its answer is a 202 with the revision of the first one, which has no answer."""
    operations, log = valid_run()
    made = node("d", "0.5", start=74)
    if merges:
        existing = node("d", "0.4", start=74)
        made = merge(existing, node("d", "0.5", start=75))
        log.append(change(8, ChangeType.BLOCKED, 74, existing))
        operations.append(
            operation(Kind.PUT, 74, 75, requested={"d": put(existing)}, status=201, revision=8, nodes={"d": existing})
        )
    revision = len(log) + 1
    log.append(change(revision, ChangeType.MERGED if merges else ChangeType.BLOCKED, 76, made))
    first = operation(Kind.PUT, 74, 78, requested={"d": put(node("d", "0.5"), merging=True)}, client=6)
    again = replace(
        first, invoked=79 * NANOS_PER_MS, returned=80 * NANOS_PER_MS, status=202, revision=revision, nodes={"d": made}
    )
    again = replace(again, history="00c0ffee")
    assert violations([*operations, first, again], log, [log, log], NODES) == []
    lonely = violations([*operations, again], log, [log, log], NODES)
    assert any(f"no operation for revision {revision}" in violation for violation in lonely), lonely


def test_a_replica_behind_a_merge_may_still_see_the_old_end() -> None:
    """The merge is answered before the end; the read has an older minRevision, and is after the end."""
    moved = merge(replace(A2, end=78), node("a", "0.5", start=76))
    ended = replace(A2, end=78)
    operations, log = valid_run()
    operations[AFTER_END] = replace(operations[AFTER_END], nodes={"a": ended}, requested={"a": put(ended)})
    operations += [
        operation(
            Kind.PUT, 75, 77, requested={"a": put(node("a", "0.5"), merging=True)}, status=202, revision=8,
            nodes={"a": moved}, client=6,
        ),
        operation(
            Kind.GET, 76, 79, requested={"a": Get()},
            status=404, revision=7, min_revision=7, client=7, replica=1,
        ),
    ]  # fmt: skip
    log[6] = change(7, ChangeType.BLOCKED, 72, ended)
    log.append(change(8, ChangeType.MERGED, 76, moved))
    assert violations(operations, log, [log, log], NODES) == []
    operations[-1] = replace(operations[-1], revision=8, min_revision=8)
    assert any("this was read" in violation for violation in violations(operations, log, [log, log], NODES))


@pytest.mark.parametrize(
    ("received", "said"),
    [
        (lambda log: log[:-1], "received 6 of 7"),
        (lambda log: [*log[:2], *log[3:]], "change number 3"),
        (lambda log: [*log[:2], *log[1:]], "change number 3"),
        (lambda log: [log[1], log[0], *log[2:]], "change number 1"),
    ],
    ids=["missing at the end", "missing", "twice", "out of order"],
)
def test_a_wrong_watch_is_found(received: Callable[[list[dict[str, Any]]], list[dict[str, Any]]], said: str) -> None:
    operations, log = valid_run()
    found = violations(operations, log, [log, received(log)], NODES)
    assert any(said in violation for violation in found), found


def test_lists_and_etags_correspond() -> None:
    operations, log = valid_run()
    again = replace(operations[LISTED], client=6)
    assert violations([*operations, again], log, [], NODES) == []
    other = violations([*operations, replace(again, etag="y")], log, [], NODES)
    assert any("ETag" in violation for violation in other)
