"""Checks a run against the contract."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from blocklist.model.node import BlockedNode
from tests.chaos import change_log
from tests.chaos.attribution import Attribution, attribute, committed_steps
from tests.chaos.change_log import Entry, NodeHistory
from tests.chaos.linearizability import find_violation
from tests.chaos.operation import Kind, Operation, register_steps, without_start
from tests.chaos.register import NANOS_PER_MS, Put, Step

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
    """All violations of the contract.

    `operations` are those of all clients, each client's in order; `log` is the whole change log as JSON, `watched` are
    the changes that each watcher received, from the first on.
    """
    found = [*_response_errors(operations), *_stale_reads(operations), *_etag_errors(operations)]
    found += _watch_errors(watched, log)
    entries = change_log.read_log(log)
    if broken := list(change_log.log_errors(entries)):
        # Nothing can be checked against a log that is wrong by itself.
        return [*broken, *found]
    attribution = attribute(operations, entries)
    found += [*attribution.errors, *_read_errors(operations, entries)]
    return [*found, *_linearizability_errors(operations, attribution, nodes)]


def _linearizability_errors(
    operations: Sequence[Operation], attribution: Attribution, nodes: Sequence[str]
) -> Iterator[str]:
    """Nodes whose operations have no order that explains all answers."""
    registers = defaultdict[str, list[Step]](list)
    decided, states = attribution.decided_at(), NodeHistory(attribution.entries)
    for operation in operations:
        for node_id, step in register_steps(operation, nodes):
            if operation.kind in _READS:
                registers[node_id].append(_log_read_step(operation, node_id, step, states))
            else:
                registers[node_id].append(replace(step, decided_at=decided.get((id(operation), node_id))))
    for node_id, step in committed_steps(attribution, operations):
        registers[node_id].append(step)
    for node_id in sorted(registers):
        if (stuck := find_violation(registers[node_id])) is not None:
            yield f"{node_id} is not linearizable: {stuck}"


def _log_read_step(operation: Operation, node_id: str, step: Step, states: NodeHistory) -> Step:
    """The step of a read, with the state in the log at its revision.

    A block ends for a reader by the clock, also at a replica that is behind a merge which extends it.
    """
    held = states.at(node_id, operation.revision or 0)
    if step.answer[1] is not None or held is None or held.end * NANOS_PER_MS > operation.returned:
        return replace(step, reads_log=True)
    return replace(step, reads_log=True, answer=(200, without_start(held)))


def _response_errors(operations: Sequence[Operation]) -> Iterator[str]:
    for operation in operations:
        if operation.status is None or operation.status in _ALLOWED[operation.kind] or _end_has_passed(operation):
            continue
        yield f"an answer that is not in the contract: {operation}"
    for operation in operations:
        if operation.status == 503 and not operation.retry_after:
            yield f"a 503 without Retry-After: {operation}"
    if len(histories := {operation.history for operation in operations if operation.status is not None}) > 1:
        yield f"there is more than one history: {histories}"


def _end_has_passed(operation: Operation) -> bool:
    """Whether it is a block refused because its end had passed when the service read it."""
    ends = [
        requested.node.end * NANOS_PER_MS for requested in operation.requested.values() if isinstance(requested, Put)
    ]
    return operation.status == 400 and any(end <= operation.returned for end in ends)


def _stale_reads(operations: Sequence[Operation]) -> Iterator[str]:
    """Answers of one replica to one client must not go back in revisions."""
    highest: dict[tuple[int, int], int] = defaultdict(int)
    for operation in operations:
        if operation.revision is not None:
            at = operation.client, operation.replica
            if operation.revision < max(highest[at], operation.min_revision or 0) and operation.status != 503:
                yield f"{operation} comes after revision {highest[at]}"
            highest[at] = max(highest[at], operation.revision)


def _read_errors(operations: Sequence[Operation], entries: Sequence[Entry]) -> Iterator[str]:
    """Each read must be the list in the log at its revision, without blocks that have ended."""
    held: dict[str, BlockedNode | None] = {}
    done = 0
    for operation in sorted(_successful_reads(operations), key=lambda reading: reading.revision or 0):
        revision = operation.revision or 0
        if revision > len(entries):
            yield f"a read of a revision that is not in the log: {operation}"
            return
        held |= {entry.node.id: entry.after for entry in entries[done:revision]}
        done = revision
        for node_id in operation.requested or held.keys() | operation.nodes.keys():
            if not _fits(operation, held.get(node_id), operation.nodes.get(node_id)):
                yield f"at revision {revision} {node_id} was {held.get(node_id)}, but this was read: {operation}"


def _successful_reads(operations: Sequence[Operation]) -> list[Operation]:
    return [operation for operation in operations if operation.kind in _READS and operation.status in {200, 404}]


def _fits(operation: Operation, held: BlockedNode | None, nodes: BlockedNode | None) -> bool:
    if nodes is None:
        return held is None or held.end * NANOS_PER_MS <= operation.returned
    return nodes == held and operation.invoked < nodes.end * NANOS_PER_MS


def _etag_errors(operations: Sequence[Operation]) -> Iterator[str]:
    """Equal lists must have equal ETags at every replica, and different lists different ones."""
    lists: dict[str | None, frozenset[BlockedNode]] = {}
    tags: dict[frozenset[BlockedNode], str | None] = {}
    for operation in operations:
        if operation.kind is Kind.LIST and operation.status == 200:
            nodes = frozenset(operation.nodes.values())
            if (
                lists.setdefault(operation.etag, nodes) != nodes
                or tags.setdefault(nodes, operation.etag) != operation.etag
            ):
                yield f"ETag and list do not belong together: {operation}"


def _watch_errors(watched: Iterable[Sequence[Mapping[str, Any]]], log: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Every watcher must receive every change, in order, once."""
    for number, received in enumerate(watched):
        for place, (change, logged) in enumerate(zip(received, log, strict=False), start=1):
            if change != logged:
                yield f"watcher {number} received {change} as change number {place}, which is {logged}"
                break
        if len(received) != len(log):
            yield f"watcher {number} received {len(received)} of {len(log)} changes"
