"""What the contract promises, held against everything that was seen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from blocklist.model.node import BlockedNode
from tests.chaos import change_log
from tests.chaos.change_log import Entry, States
from tests.chaos.claims import Claims, claim, happened
from tests.chaos.linearizability import find_stuck
from tests.chaos.operation import Kind, Operation, plain, steps
from tests.chaos.register import NANOS, Put, Step

_ALLOWED: Final = {
    Kind.PUT: {201, 202, 409, 503},
    Kind.PUT_MANY: {200, 409, 503},
    Kind.DELETE: {200, 404, 503},
    Kind.GET: {200, 404, 503},
    Kind.LIST: {200, 503},
}
_READS: Final = {Kind.GET, Kind.LIST}


def violations(
    operations: Sequence[Operation],
    log: Sequence[Mapping[str, Any]],
    watched: Iterable[Sequence[Mapping[str, Any]]],
    nodes: Sequence[str],
) -> list[str]:
    """Everything that is not as promised.

    `operations` are those of all clients, each client's in order; `log` is the whole change log as JSON, `watched` what
    each watcher was told from the first change on.
    """
    found = [*_wrong_answers(operations), *_going_back(operations), *_wrong_tags(operations)]
    found += _wrong_watches(watched, log)
    entries = change_log.read_log(log)
    if broken := list(change_log.faults(entries)):
        # Nothing can be held against a log that is wrong by itself.
        return [*broken, *found]
    claims = claim(operations, entries)
    found += [*claims.faults, *_wrong_readings(operations, entries)]
    return [*found, *_not_linearizable(operations, claims, nodes)]


def _not_linearizable(operations: Sequence[Operation], claims: Claims, nodes: Sequence[str]) -> Iterator[str]:
    """Nodes whose operations have no order that gives everybody the answer that he got."""
    registers = defaultdict[str, list[Step]](list)
    decided, states = claims.decided(), States(claims.entries)
    for operation in operations:
        for node_id, step in steps(operation, nodes):
            if operation.kind in _READS:
                registers[node_id].append(_raw(operation, node_id, step, states))
            else:
                registers[node_id].append(replace(step, decided=decided.get((id(operation), node_id))))
    for node_id, step in happened(claims, operations):
        registers[node_id].append(step)
    for node_id in sorted(registers):
        if (stuck := find_stuck(registers[node_id])) is not None:
            yield f"{node_id} is not linearizable: {stuck}"


def _raw(operation: Operation, node_id: str, step: Step, states: States) -> Step:
    """The step of a reading, with what the log says at its revision.

    A block ends for a reader by the clock, also at a replica that has not heard of a merge which just moves the end.
    """
    held = states.at(node_id, operation.revision or 0)
    if step.answer[1] is not None or held is None or held.end * NANOS > operation.returned:
        return replace(step, raw=True)
    return replace(step, raw=True, answer=(200, plain(held)))


def _wrong_answers(operations: Sequence[Operation]) -> Iterator[str]:
    for operation in operations:
        if operation.status is None or operation.status in _ALLOWED[operation.kind] or _too_late(operation):
            continue
        yield f"an answer that is not in the contract: {operation}"
    for operation in operations:
        if operation.status == 503 and not operation.retry_after:
            yield f"a 503 without Retry-After: {operation}"
    if len(histories := {operation.history for operation in operations if operation.status is not None}) > 1:
        yield f"there is more than one history: {histories}"


def _too_late(operation: Operation) -> bool:
    """Whether it is the refusal of a block that had ended when it was read."""
    ends = [asked.node.end * NANOS for asked in operation.asked.values() if isinstance(asked, Put)]
    return operation.status == 400 and any(end <= operation.returned for end in ends)


def _going_back(operations: Sequence[Operation]) -> Iterator[str]:
    """What one client sees at one replica is never older than what it saw there before."""
    highest: dict[tuple[int, int], int] = defaultdict(int)
    for operation in operations:
        if operation.revision is not None:
            at = operation.client, operation.replica
            if operation.revision < max(highest[at], operation.min_revision or 0) and operation.status != 503:
                yield f"{operation} comes after revision {highest[at]}"
            highest[at] = max(highest[at], operation.revision)


def _wrong_readings(operations: Sequence[Operation], entries: Sequence[Entry]) -> Iterator[str]:
    """Each reading is the list as the log has it at its revision, but for blocks that ended since."""
    held: dict[str, BlockedNode | None] = {}
    done = 0
    for operation in sorted(_readings(operations), key=lambda reading: reading.revision or 0):
        revision = operation.revision or 0
        if revision > len(entries):
            yield f"a reading of a revision that is not in the log: {operation}"
            return
        held |= {entry.node.id: entry.after for entry in entries[done:revision]}
        done = revision
        for node_id in operation.asked or held.keys() | operation.shown.keys():
            if not _fits(operation, held.get(node_id), operation.shown.get(node_id)):
                yield f"at revision {revision} {node_id} was {held.get(node_id)}, but this was read: {operation}"


def _readings(operations: Sequence[Operation]) -> list[Operation]:
    return [operation for operation in operations if operation.kind in _READS and operation.status in {200, 404}]


def _fits(operation: Operation, held: BlockedNode | None, shown: BlockedNode | None) -> bool:
    if shown is None:
        return held is None or held.end * NANOS <= operation.returned
    return shown == held and operation.invoked < shown.end * NANOS


def _wrong_tags(operations: Sequence[Operation]) -> Iterator[str]:
    """The same list has the same ETag at every replica, and another list another one."""
    lists: dict[str | None, frozenset[BlockedNode]] = {}
    tags: dict[frozenset[BlockedNode], str | None] = {}
    for operation in operations:
        if operation.kind is Kind.LIST and operation.status == 200:
            shown = frozenset(operation.shown.values())
            if (
                lists.setdefault(operation.etag, shown) != shown
                or tags.setdefault(shown, operation.etag) != operation.etag
            ):
                yield f"ETag and list do not belong together: {operation}"


def _wrong_watches(watched: Iterable[Sequence[Mapping[str, Any]]], log: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Every watcher was told every change, in order, none twice."""
    for number, told in enumerate(watched):
        for place, (heard, logged) in enumerate(zip(told, log, strict=False), start=1):
            if heard != logged:
                yield f"watcher {number} heard {heard} as its change number {place}, which is {logged}"
                break
        if len(told) != len(log):
            yield f"watcher {number} heard {len(told)} of {len(log)} changes"
