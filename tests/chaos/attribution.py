"""Attributes each change of the log to the operation that made it.

An acknowledged change has its revision in the response. The log shows whether a change without an answer was committed:
if so, before anyone saw its revision or a later one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from tests.chaos.change_log import Entry
from tests.chaos.operation import Kind, Operation, without_start
from tests.chaos.register import NANOS_PER_MS, NodeRequest, Put, Step

_STATUS_OF: Final = {"blocked": 201, "merged": 202, "unblocked": 200}
Key = tuple[str, str | None]
"""A node, and the cause in a PUT; None for a DELETE."""


@dataclass(frozen=True, slots=True)
class AttributedChange:
    """A change with its operation."""

    entry: Entry
    operation: Operation


@dataclass
class Attribution:
    """`by_revision` has all changes but expiries; `errors` are contradictions."""

    entries: Sequence[Entry]
    by_revision: dict[int, AttributedChange] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def add(self, revision: int, operation: Operation) -> None:
        if revision in self.by_revision:
            self.errors.append(f"revision {revision} was acknowledged twice: {operation}")
        made = self.by_revision[revision] = AttributedChange(self.entries[revision - 1], operation)
        self.errors += [f"revision {revision}: {fault}: {made}" for fault in _timing_errors(made)]

    def decided_at(self) -> dict[tuple[int, str], int]:
        """When each change was decided (Unix nanoseconds), by id() of its operation and node id."""
        made = self.by_revision.values()
        return {(id(change.operation), change.entry.node.id): change.entry.at * NANOS_PER_MS for change in made}


def attribute(operations: Sequence[Operation], entries: Sequence[Entry]) -> Attribution:
    """Attribute each change of the log to an operation."""
    attribution = Attribution(entries)
    for operation in operations:
        if operation.acknowledged:
            _attribute_acknowledged(attribution, operation)
    _attribute_unknown(attribution, [operation for operation in operations if operation.unknown])
    return attribution


def committed_steps(attribution: Attribution, operations: Sequence[Operation]) -> Iterator[tuple[str, Step]]:
    """The steps of committed changes without an answer, by node."""
    seen = sorted((op.revision, op.returned) for op in operations if op.revision is not None)
    revisions = [revision for revision, _ in seen]
    end = max(op.returned for op in operations)
    first = list(accumulate((returned for _, returned in reversed(seen)), min, initial=end))[::-1]
    for revision, made in attribution.by_revision.items():
        entry, operation = made.entry, made.operation
        if operation.unknown:
            yield (
                entry.node.id,
                Step(
                    invoked=max(operation.invoked, entry.at * NANOS_PER_MS),
                    returned=first[bisect_left(revisions, revision)],
                    requested=operation.requested[entry.node.id],
                    answer=(_STATUS_OF[entry.type], without_start(entry.after)),
                    decided_at=entry.at * NANOS_PER_MS,
                    origin=f"{operation.origin}, without an answer, revision {revision}",
                ),
            )


def _attribute_acknowledged(attribution: Attribution, operation: Operation) -> None:
    """From the last node of the request to the first: each has a revision, and so has an expiry before it."""
    revision, entries = operation.revision, attribution.entries
    if revision is None or not 0 < revision <= len(entries):
        attribution.errors.append(f"an acknowledged change is not in the log: {operation}")
        return
    for node_id in reversed(list(operation.requested)):
        if _is_repeated_put(operation, node_id, entries, revision):
            continue
        if not _matches(operation, node_id, entries[revision - 1]):
            attribution.errors.append(
                f"revision {revision} is {entries[revision - 1]}, but was acknowledged to {operation}"
            )
            return
        attribution.add(revision, operation)
        revision -= 1
        while (
            revision
            and entries[revision - 1].type == "expired"
            and entries[revision - 1].node.id in operation.requested
        ):
            revision -= 1


def _is_repeated_put(operation: Operation, node_id: str, entries: Sequence[Entry], revision: int) -> bool:
    """Whether it is a retried PUT that found its own cause: it makes no revision.

    Its response may have the revision of the first attempt: if that made a new block, or was earlier than this one.
    """
    requested, entry = operation.requested[node_id], entries[revision - 1]
    invoked = operation.invoked // NANOS_PER_MS
    own = entry.type == "merged" and entry.at >= invoked and _brought(requested, entry, invoked)
    if operation.status != 202 or own:
        return False
    last = next((entries[at] for at in range(revision - 1, -1, -1) if entries[at].node.id == node_id), None)
    return last is not None and last.after == operation.nodes[node_id]


def _brought(requested: NodeRequest, entry: Entry, invoked: int) -> bool:
    """Whether the merge brought the cause of this PUT; or its start, if the first attempt was read later."""
    if not isinstance(requested, Put):
        return False
    key = entry.node.id, requested.node.cause
    moved = entry.before is not None and invoked <= entry.node.start < entry.before.start
    return _key(entry) == key or (moved and key in _keys(entry))


def _matches(operation: Operation, node_id: str, entry: Entry) -> bool:
    """Whether the entry agrees with the response for this node."""
    status = operation.statuses.get(node_id, operation.status)
    fits = entry.node.id == node_id and _STATUS_OF.get(entry.type) == status
    return fits and entry.after == operation.nodes.get(node_id)


def _attribute_unknown(attribution: Attribution, unknown: Sequence[Operation]) -> None:
    """The remaining changes must belong to operations without an answer, the earliest first."""
    waiting = defaultdict[Key, deque[Operation]](deque)
    for operation in sorted(unknown, key=lambda operation: operation.invoked):
        for node_id, requested in operation.requested.items():
            waiting[node_id, requested.node.cause if isinstance(requested, Put) else None].append(operation)
    for entry in attribution.entries:
        if entry.type == "expired" or entry.revision in attribution.by_revision:
            continue
        if candidates := next(filter(None, map(waiting.__getitem__, _keys(entry))), None):
            attribution.add(entry.revision, candidates.popleft())
        else:
            attribution.errors.append(f"no operation for revision {entry.revision}: {entry}")
    attribution.errors += _partial_commits(attribution, unknown)


def _partial_commits(attribution: Attribution, unknown: Sequence[Operation]) -> Iterator[str]:
    """PUTs of several that were committed for some of their nodes only."""
    parts = Counter(id(made.operation) for made in attribution.by_revision.values())
    for operation in unknown:
        if operation.kind is Kind.PUT_MANY and parts[id(operation)] not in {0, len(operation.requested)}:
            yield f"only {parts[id(operation)]} of {len(operation.requested)} changes happened of {operation}"


def _key(entry: Entry) -> Key:
    return entry.node.id, entry.cause


def _keys(entry: Entry) -> list[Key]:
    """Possible requests for an entry: a retried PUT brings no new cause, but may change start or end."""
    if entry.type != "merged" or entry.cause is not None:
        return [_key(entry)]
    return [(entry.node.id, cause) for cause in entry.node.cause.split(",")]


def _timing_errors(made: AttributedChange) -> Iterator[str]:
    """A change must be made, and a block begin, between request and response; later if there was no response."""
    entry, operation = made.entry, made.operation
    latest = operation.returned // NANOS_PER_MS if operation.acknowledged else entry.at
    if not operation.invoked // NANOS_PER_MS <= entry.at <= latest:
        yield "was made at another time than its request"
    kept = entry.before is not None and entry.before.start == entry.node.start
    if not kept and not operation.invoked // NANOS_PER_MS <= entry.node.start <= entry.at:
        yield "begins at another time than its request"
