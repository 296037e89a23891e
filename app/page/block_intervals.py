"""How long nodes were blocked, calculated from the change log. Pure; times are Unix milliseconds.

An interval is a time in which a block did not change: a merge ends one interval and begins the next.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from blocklist.model.changes import Change, ChangeType
from blocklist.model.node import BlockAction, BlockedNode

HOUR: Final = 3_600_000
OTHERS: Final = "all others"
_EVIDENCE_CAUSE: Final = re.compile(r"^[0-9]+ applications? says? so$")
"""The beginning of causes of blocks by evidence."""
_MAX_NAME: Final = 60


@dataclass(frozen=True, slots=True)
class BlockInterval:
    """The block `node` was in force in [begin, end)."""

    begin: int
    end: int
    node: BlockedNode


@dataclass(frozen=True, slots=True)
class Bucket:
    """The maximum number of nodes blocked at once in [begin, end), by action, and the node-hours."""

    begin: int
    end: int
    marked: int
    evacuated: int
    hours: float

    @property
    def blocked(self) -> int:
        return self.marked + self.evacuated


def intervals(
    changes: Iterable[Change], current: Mapping[str, BlockedNode], begin: int, now: int
) -> list[BlockInterval]:
    """The intervals in [begin, now), from all changes since `begin` in order and the `current` list."""
    result: list[BlockInterval] = []
    open_since: dict[str, tuple[int, BlockedNode]] = {}
    seen = set()
    for change in changes:
        node_id = change.node.id
        before = open_since.pop(node_id, None)
        if before is None and node_id not in seen and change.type is not ChangeType.BLOCKED:
            # Already blocked at `begin`. Its block before this change is unknown; the one after it is close enough.
            before = max(begin, change.node.start), change.node
        if before is not None:
            result.append(BlockInterval(before[0], max(before[0], change.at), before[1]))
        seen.add(node_id)
        if not change.type.frees:
            open_since[node_id] = change.at, change.node
    for node_id, node in current.items():
        if node_id not in seen:
            open_since[node_id] = max(begin, node.start), node
    result += [BlockInterval(since, now, node) for node_id, (since, node) in open_since.items() if node_id in current]
    return [interval for interval in result if interval.end > interval.begin]


def buckets(intervals: Iterable[BlockInterval], begin: int, end: int, number: int) -> list[Bucket]:
    """[begin, end) divided into `number` buckets of equal width."""
    width = max(1, -(-(end - begin) // number))
    deltas: list[list[_Delta]] = [[] for _ in range(number + 1)]
    for interval in intervals:
        marked = int(interval.node.action is BlockAction.MARK_BLOCKED)
        for at, sign in ((interval.begin, 1), (interval.end, -1)):
            deltas[min((at - begin) // width, number)].append(_Delta(at, sign * marked, sign * (1 - marked)))
    result: list[Bucket] = []
    level = (0, 0)
    for place in range(number):
        bucket, level = _bucket(begin + place * width, width, deltas[place], level)
        result.append(bucket)
    return result


def by_cause(intervals: Iterable[BlockInterval], limit: int) -> list[tuple[str, float, int]]:
    """Causes with node-hours and number of nodes, most node-hours first; those beyond `limit` are summed as OTHERS.

    A block with several causes counts for the first one.
    """
    hours: defaultdict[str, float] = defaultdict(float)
    nodes: defaultdict[str, set[str]] = defaultdict(set)
    for interval in intervals:
        name = cause_group(interval.node.cause)
        hours[name] += (interval.end - interval.begin) / HOUR
        nodes[name].add(interval.node.id)
    ordered = sorted(hours, key=lambda name: (-hours[name], name))
    shown, rest = ordered[:limit], ordered[limit:]
    rows = [(name, hours[name], len(nodes[name])) for name in shown]
    if rest:
        together = set[str]().union(*(nodes[name] for name in rest))
        rows.append((OTHERS, sum(hours[name] for name in rest), len(together)))
    return rows


def cause_group(cause: str) -> str:
    """The group of a cause: its first part up to a colon, so that details do not make a group of their own."""
    first = next((part.strip() for part in cause.split(",") if part.strip()), cause)
    name = _EVIDENCE_CAUSE.sub("Evidence of applications", first.partition(": ")[0])
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}…"


class _Delta(NamedTuple):
    at: int
    marked: int
    evacuated: int


def _bucket(begin: int, width: int, deltas: Iterable[_Delta], level: tuple[int, int]) -> tuple[Bucket, tuple[int, int]]:
    """A bucket that begins with `level` (marked, evacuated) nodes, and the level at its end."""
    maximum, (marked, evacuated), clock, lost = level, level, begin, 0
    # At the same time, ends come first: a merge is not a second blocked node.
    for delta in sorted(deltas, key=lambda delta: (delta.at, delta.marked + delta.evacuated)):
        lost += (marked + evacuated) * (delta.at - clock)
        clock, marked, evacuated = delta.at, marked + delta.marked, evacuated + delta.evacuated
        maximum = max(maximum, (marked, evacuated), key=sum)
    lost += (marked + evacuated) * (begin + width - clock)
    return Bucket(begin, begin + width, *maximum, lost / HOUR), (marked, evacuated)
