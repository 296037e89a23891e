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
_APPLICATIONS: Final = re.compile(r"^[0-9]+ applications? says? so$")
"""How causes that come of evidence begin."""
_LONGEST: Final = 60


@dataclass(frozen=True, slots=True)
class Spell:
    """`node` was blocked like this in [begin, end)."""

    begin: int
    end: int
    node: BlockedNode


@dataclass(frozen=True, slots=True)
class Step:
    """A piece of the time with the most nodes that were blocked at once in it, and node-hours, by action."""

    begin: int
    end: int
    marked: int
    evacuated: int
    hours: float

    @property
    def blocked(self) -> int:
        return self.marked + self.evacuated


def spells(changes: Iterable[Change], present: Mapping[str, BlockedNode], begin: int, now: int) -> list[Spell]:
    """What was blocked in [begin, now), from all changes since `begin`, in order, and the list as it is now."""
    found: list[Spell] = []
    open_since: dict[str, tuple[int, BlockedNode]] = {}
    seen = set()
    for change in changes:
        node_id = change.node.id
        before = open_since.pop(node_id, None)
        if before is None and node_id not in seen and change.type is not ChangeType.BLOCKED:
            # It was blocked already at the begin, and nobody knows how: as it was after the change is near enough.
            before = max(begin, change.node.start), change.node
        if before is not None:
            found.append(Spell(before[0], max(before[0], change.at), before[1]))
        seen.add(node_id)
        if not change.type.frees:
            open_since[node_id] = change.at, change.node
    for node_id, node in present.items():
        if node_id not in seen:
            open_since[node_id] = max(begin, node.start), node
    found += [Spell(since, now, node) for node_id, (since, node) in open_since.items() if node_id in present]
    return [spell for spell in found if spell.end > spell.begin]


def steps(found: Iterable[Spell], begin: int, end: int, number: int) -> list[Step]:
    """[begin, end) in `number` pieces."""
    width = max(1, -(-(end - begin) // number))
    moves: list[list[_Move]] = [[] for _ in range(number + 1)]
    for spell in found:
        marked = int(spell.node.action is BlockAction.MARK_BLOCKED)
        for at, sign in ((spell.begin, 1), (spell.end, -1)):
            moves[min((at - begin) // width, number)].append(_Move(at, sign * marked, sign * (1 - marked)))
    result: list[Step] = []
    level = (0, 0)
    for place in range(number):
        step, level = _step(begin + place * width, width, moves[place], level)
        result.append(step)
    return result


def by_cause(found: Iterable[Spell], most: int) -> list[tuple[str, float, int]]:
    """Causes with their node-hours and how many nodes, the costliest first; those beyond `most` are one, OTHERS.

    Of several causes the first has it all.
    """
    hours: defaultdict[str, float] = defaultdict(float)
    nodes: defaultdict[str, set[str]] = defaultdict(set)
    for spell in found:
        name = kind(spell.node.cause)
        hours[name] += (spell.end - spell.begin) / HOUR
        nodes[name].add(spell.node.id)
    ordered = sorted(hours, key=lambda name: (-hours[name], name))
    shown, rest = ordered[:most], ordered[most:]
    rows = [(name, hours[name], len(nodes[name])) for name in shown]
    if rest:
        together = set[str]().union(*(nodes[name] for name in rest))
        rows.append((OTHERS, sum(hours[name] for name in rest), len(together)))
    return rows


def kind(cause: str) -> str:
    """What causes are counted by: the first of several, up to a colon, so that details do not make it another."""
    first = next((part.strip() for part in cause.split(",") if part.strip()), cause)
    name = _APPLICATIONS.sub("Applications say so", first.partition(": ")[0])
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


class _Move(NamedTuple):
    at: int
    marked: int
    evacuated: int


def _step(begin: int, width: int, moves: Iterable[_Move], level: tuple[int, int]) -> tuple[Step, tuple[int, int]]:
    """The piece that begins with so many nodes of each action, and how many there are at its end."""
    most, (marked, evacuated), clock, lost = level, level, begin, 0
    # At one moment what ends goes first: a merge is no second block.
    for move in sorted(moves, key=lambda move: (move.at, move.marked + move.evacuated)):
        lost += (marked + evacuated) * (move.at - clock)
        clock, marked, evacuated = move.at, marked + move.marked, evacuated + move.evacuated
        most = max(most, (marked, evacuated), key=sum)
    lost += (marked + evacuated) * (begin + width - clock)
    return Step(begin, begin + width, *most, lost / HOUR), (marked, evacuated)
