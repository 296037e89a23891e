"""Spells: for how long nodes were blocked, worked out from the change log. Pure; Unix milliseconds.

A spell is a time during which a block stayed as it was: a merge ends one and begins the next.
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
"""How causes that come of evidence begin."""
_MAX_NAME: Final = 60


@dataclass(frozen=True, slots=True)
class BlockInterval:
    """`node` was blocked like this in [begin, end)."""

    begin: int
    end: int
    node: BlockedNode


@dataclass(frozen=True, slots=True)
class Bucket:
    """A piece of the time with the most nodes that were blocked at once in it, and node-hours, by action."""

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
    """What was blocked in [begin, now), from all changes since `begin`, in order, and the list as it is now."""
    result: list[BlockInterval] = []
    open_since: dict[str, tuple[int, BlockedNode]] = {}
    seen = set()
    for change in changes:
        node_id = change.node.id
        before = open_since.pop(node_id, None)
        if before is None and node_id not in seen and change.type is not ChangeType.BLOCKED:
            # It was blocked already at the begin, and nobody knows how: as it was after the change is near enough.
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
    """[begin, end) in `number` pieces."""
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
    """Causes with their node-hours and how many nodes, the costliest first; those beyond `most` are one, OTHERS.

    Of several causes the first has it all.
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
    """What causes are counted by: the first of several, up to a colon, so that details do not make it another."""
    first = next((part.strip() for part in cause.split(",") if part.strip()), cause)
    name = _EVIDENCE_CAUSE.sub("Applications say so", first.partition(": ")[0])
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}…"


class _Delta(NamedTuple):
    at: int
    marked: int
    evacuated: int


def _bucket(begin: int, width: int, deltas: Iterable[_Delta], level: tuple[int, int]) -> tuple[Bucket, tuple[int, int]]:
    """The piece that begins with so many nodes of each action, and how many there are at its end."""
    maximum, (marked, evacuated), clock, lost = level, level, begin, 0
    # At one moment what ends goes first: a merge is no second block.
    for delta in sorted(deltas, key=lambda delta: (delta.at, delta.marked + delta.evacuated)):
        lost += (marked + evacuated) * (delta.at - clock)
        clock, marked, evacuated = delta.at, marked + delta.marked, evacuated + delta.evacuated
        maximum = max(maximum, (marked, evacuated), key=sum)
    lost += (marked + evacuated) * (begin + width - clock)
    return Bucket(begin, begin + width, *maximum, lost / HOUR), (marked, evacuated)
