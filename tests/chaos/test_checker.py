"""A valid run has no violations, and each planted error is found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import pytest

from tests.chaos import model
from tests.chaos.checker import Checker
from tests.chaos.evidence import EvidenceReports
from tests.chaos.faults import FaultLog
from tests.chaos.model import Block, BlockSpec
from tests.chaos.operation import Kind, Operation, Request, WallClock
from tests.integration.bodies import MARK, PERMANENT

Run = tuple[list[Operation], list[dict[str, Any]]]
Plant = Callable[[Run], None]


def block(cause: str, *, start: int, end: int = int(PERMANENT)) -> Block:
    return Block(MARK, start, end, cause)


def body(node: str, block: Block, **more: Any) -> dict[str, Any]:
    action, start, end, cause, _ = block
    return {"id": node, "action": action, "startTimestamp": start, "endTimestamp": end, "cause": cause, **more}


def put(node: str, block: Block, *, merge: bool = False) -> Request:
    return puts({node: block}, kind=Kind.PUT_MERGED if merge else Kind.PUT)


def puts(blocks: Mapping[str, Block], kind: Kind = Kind.PUT_MANY) -> Request:
    specs = {node: BlockSpec(action=it.action, end=it.end, cause=it.cause) for node, it in blocks.items()}
    return Request(
        kind=kind,
        method="PUT",
        path="/blocklist/nodes",
        effects={node: model.put(spec) for node, spec in specs.items()},
        must_be_free=frozenset() if kind is Kind.PUT_MERGED else frozenset(specs),
        earliest_end=min(spec.end for spec in specs.values()),
    )


def unblock(node: str) -> Request:
    return Request(kind=Kind.UNBLOCK, method="DELETE", path=node, effects={node: model.unblock})


def read(node: str | None = None) -> Request:
    return Request(
        kind=Kind.READ_LIST if node is None else Kind.READ_NODE, method="GET", path="/", node=node, ordered=True
    )


def operation(request: Request, invoked: int, returned: int, status: int | None = None, **seen: Any) -> Operation:
    """By default of client 0 at replica 0."""
    usual: dict[str, Any] = {"client": "0", "replica": 0, "history": None if status is None else "00c0ffee"}
    return Operation(**usual | seen, request=request, invoked=invoked, returned=returned, status=status)


def change(revision: int, kind: str, at: int, node: str, block: Block) -> dict[str, Any]:
    return {"revision": revision, "type": kind, "at": at, "createdBy": None, "node": body(node, block)}


A, A2 = block("0.1", start=11, end=60), block("1.1", start=71)
B, C = block("0.2", start=21), block("0.3", start=21)
MORE, BOTH = block("0.4", start=31), block("0.2,0.4", start=21)
D = block("0.5", start=74)

FIRST, SEVERAL, MERGE, REFUSED, FREEING, NEVER, LISTED, ONE, AFTER_END, FREE = range(10)
"""Indexes of the operations below."""


def valid_run() -> Run:
    """Operations and log of a run in which a client unblocks c without an answer, and fails to block d."""
    several = {"b": body("b", B, status=201), "c": body("c", C, status=201)}
    listed = {"a": body("a", A), "b": body("b", BOTH)}
    operations = [
        operation(put("a", A), 10, 12, 201, revision=1, body=body("a", A)),
        operation(puts({"b": B, "c": C}), 20, 23, 200, revision=3, body=several),
        operation(put("b", MORE, merge=True), 30, 33, 202, revision=4, body=body("b", BOTH)),
        operation(put("b", B), 34, 35, 409, revision=4, body={"blockedNode": body("b", BOTH)}),
        operation(unblock("c"), 40, 44, client="1"),
        operation(put("d", block("1.9", start=0)), 45, 46, 503, retry_after=True, client="1"),
        operation(read(), 50, 52, 200, revision=5, min_revision=4, etag="x", body=listed, client="2", replica=1),
        operation(read("a"), 50, 53, 200, revision=5, min_revision=4, body=body("a", A), client="3", replica=1),
        operation(put("a", A2), 70, 73, 201, revision=7, body=body("a", A2), client="4"),
        operation(read("c"), 80, 81, 404, revision=7, min_revision=7, client="5"),
    ]
    log = [
        change(1, "blocked", 11, "a", A),
        change(2, "blocked", 22, "b", B),
        change(3, "blocked", 22, "c", C),
        change(4, "merged", 32, "b", BOTH),
        change(5, "unblocked", 43, "c", C),
        change(6, "expired", 72, "a", A),
        change(7, "blocked", 72, "a", A2),
    ]
    return operations, log


def violations(run: Run) -> list[str]:
    checker = Checker(FaultLog(WallClock()), EvidenceReports())
    operations, log = run
    for entry in log:
        checker.apply(entry)
    checker.check(operations)
    checker.finish()
    return checker.violations


def changed(which: int, **fields: Any) -> Plant:
    def plant(run: Run) -> None:
        run[0][which] = replace(run[0][which], **fields)

    return plant


def asked(request: Request, invoked: int, returned: int, status: int | None = None, **seen: Any) -> Plant:
    return lambda run: run[0].append(operation(request, invoked, returned, status, client="9", **seen))


def logged(revision: int, **fields: Any) -> Plant:
    def plant(run: Run) -> None:
        run[1][revision - 1] |= fields

    return plant


def lost(revision: int) -> Plant:
    def plant(run: Run) -> None:
        del run[1][revision - 1]

    return plant


def half(run: Run) -> None:
    """A PUT of several had no answer, and only one of its nodes was blocked."""
    late = block("9.1", start=83)
    asked(puts({"c": late, "d": late}), 82, 84)(run)
    run[1].append(change(8, "blocked", 83, "d", late))


CLAIM: Final = {"owner": "x", **body("b", MORE)}
PLANTED_ERRORS: Final[dict[str, tuple[Plant, str]]] = {
    "a change that was acknowledged is not in the log": (lost(7), "that is not in the log"),
    "a revision is missing": (lost(3), "the log has revision 4 after 2"),
    "two changes have one revision": (changed(MERGE, revision=1), "not in the log: b"),
    "one change for two answers": (
        asked(put("a", A), 12, 14, 201, revision=1, body=body("a", A)),
        "a 201 for a block that it did not make",
    ),
    "a change without a request": (changed(FREEING, request=unblock("b")), "no request explains revision 5"),
    "a change that happened twice": (
        lambda run: run[1].append(change(8, "blocked", 75, "c", block("0.3", start=75))),
        "no request explains revision 8",
    ),
    "half of a PUT of several": (half, "only 1 of the nodes"),
    "a change before its request": (logged(1, at=9), "no request explains revision 1"),
    "a merge that forgets a cause": (logged(4, node=body("b", MORE)), "the type should be narrowed"),
    "a block that is not that of its claims": (logged(4, claims=[CLAIM]), "is not the merge of the claims"),
    "an expiry before the end": (logged(6, at=59), "ended before its last claim"),
    "an expiry long after the end": (logged(6, at=2_060), "ended 2000 ms late"),
    "freed when it is free": (logged(7, type="unblocked"), "the type should be"),
    "an answer of no contract": (changed(ONE, status=500), "not in the contract"),
    "a refusal for an end that has not passed": (changed(FIRST, status=400), "not in the contract"),
    "a 503 that does not say when to try again": (changed(NEVER, retry_after=False), "without Retry-After"),
    "another history": (changed(ONE, history="00000000"), "another history"),
    "a replica that goes back": (changed(REFUSED, revision=3), "comes after revision 4"),
    "a replica below minRevision": (changed(LISTED, min_revision=6), "comes after"),
    "a list that is not of its revision": (changed(LISTED, body={"b": body("b", BOTH)}), "a is missing"),
    "a node that is not of its revision": (changed(ONE, status=404, body={}), "a is missing"),
    "a node that is shown after its end": (changed(ONE, invoked=61, returned=62), "a is shown"),
    "a read of a revision to come": (changed(FREE, revision=8), "that is not in the log"),
    "a stale read": (changed(FREE, status=200, body=body("c", C), revision=3, min_revision=3), "c had been changed in"),
    "a stale refusal": (changed(REFUSED, body={"blockedNode": body("b", B)}), "the response has"),
    "a refusal from memory": (asked(unblock("b"), 36, 37, 404, revision=1), "b had been changed in revision 4"),
    "a refusal without a reason": (asked(put("d", D), 54, 55, 409, revision=5, body={"blockedNode": body("d", D)}),
                                   "the refusal was wrong"),
    "two ETags of one list": (
        asked(read(), 54, 55, 200, revision=5, etag="y", body={"a": body("a", A), "b": body("b", BOTH)}), "ETag"
    ),
    "one ETag of two lists": (asked(read(), 74, 75, 200, revision=7, etag="x", body={
        "a": body("a", A2), "b": body("b", BOTH)}), "ETag"),
}  # fmt: skip


def test_a_valid_run_has_no_violations() -> None:
    assert violations(valid_run()) == []


@pytest.mark.parametrize(("plant", "said"), PLANTED_ERRORS.values(), ids=PLANTED_ERRORS)
def test_every_planted_error_is_found(plant: Plant, said: str) -> None:
    run = valid_run()
    plant(run)
    found = violations(run)
    assert any(said in violation for violation in found), found


@pytest.mark.parametrize(
    ("changes", "again"),
    [
        # A paused replica reads the first request later than another one reads the second, but commits it earlier.
        ([("blocked", 79, D._replace(start=78)), ("merged", 80, D._replace(start=75))], (74, 82)),
        # The answer to the second has the revision of the first.
        ([("blocked", 76, D)], (79, 80)),
    ],
    ids=["begins before the first", "finds the block of the first"],
)
def test_a_put_that_is_sent_again_may_commit_twice_or_find_the_block_of_the_first(
    changes: list[tuple[str, int, Block]], again: tuple[int, int]
) -> None:
    operations, log = valid_run()
    first = operation(put("d", D, merge=True), 70, 72, client="6")
    log += [change(revision, kind, at, "d", it) for revision, (kind, at, it) in enumerate(changes, start=8)]
    seen: dict[str, Any] = {"revision": len(log), "body": body("d", changes[-1][2]), "client": "6", "replica": 1}
    second = operation(first.request, *again, 202, **seen)
    assert violations(([*operations, first, second], log)) == []
    assert any("no request explains revision 8" in it for it in violations(([*operations, second], log)))


def test_a_replica_behind_a_merge_may_still_see_the_old_end() -> None:
    """The merge is answered before the end; the read has an older minRevision, and is after the end."""
    operations, log = valid_run()
    ended, more = A2._replace(end=78), block("0.5", start=76)
    moved = ended._replace(end=more.end, cause="1.1,0.5")
    log[-1] = change(7, "blocked", 72, "a", ended)
    log.append(change(8, "merged", 76, "a", moved))
    operations[AFTER_END] = replace(operations[AFTER_END], request=put("a", ended), body=body("a", ended))
    asked(put("a", more, merge=True), 75, 77, 202, revision=8, body=body("a", moved))((operations, log))
    late = operation(read("a"), 76, 79, 404, revision=7, min_revision=7, client="7", replica=1)
    assert violations(([*operations, late], log)) == []
    assert any("a is missing" in it for it in violations(([*operations, replace(late, revision=8)], log)))
