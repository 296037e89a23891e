"""When a node was blocked in the last days, as a strip. Pure; times are Unix milliseconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from app.page.block_intervals import BlockInterval, intervals
from app.page.charts import WIDTH, Box, time_labels
from blocklist.model.changes import Change
from blocklist.model.node import BlockAction, BlockedNode

HEIGHT: Final = 22
"""Height of the strip, without its labels."""
_MIN_WIDTH: Final = 2.0
_KINDS: Final = {BlockAction.MARK_BLOCKED: "mark", BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS: "evacuate"}


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockStrip:
    """The blocks of a node in [begin, end): how many there were, and how long it was blocked in all.

    Nothing is known before `known_since`; merges and overlapping blocks are one.
    """

    begin: int
    end: int
    known_since: int
    boxes: Sequence[Box]
    time_labels: Sequence[tuple[float, str]]
    blocks: int
    blocked_ms: int

    @property
    def complete(self) -> bool:
        return self.known_since <= self.begin


def block_strip(
    changes: Iterable[Change], current: Mapping[str, BlockedNode], begin: int, known_since: int, now: int
) -> BlockStrip:
    """The strip of a node from its changes, in order, and its current block; the changes before `known_since` are not
    known.
    """
    known_since = min(max(begin, known_since), now)
    found = intervals((change for change in changes if change.at >= known_since), current, known_since, now)
    together = _together(found)
    boxes = [_box("unknown", begin, known_since, begin, now)] if known_since > begin else []
    boxes += [_box(_KINDS[each.node.action], each.begin, each.end, begin, now) for each in found]
    return BlockStrip(
        begin=begin,
        end=now,
        known_since=known_since,
        boxes=boxes,
        time_labels=time_labels(begin, now, left=0),
        blocks=len(together),
        blocked_ms=sum(end - start for start, end in together),
    )


def _together(found: Iterable[BlockInterval]) -> list[tuple[int, int]]:
    """The times in which any block was in force."""
    merged: list[tuple[int, int]] = []
    for each in sorted(found, key=lambda interval: interval.begin):
        if merged and each.begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], each.end)
        else:
            merged.append((each.begin, each.end))
    return merged


def _box(kind: str, start: int, end: int, begin: int, now: int) -> Box:
    scale = WIDTH / max(1, now - begin)
    width = max(_MIN_WIDTH, (end - start) * scale)
    return Box(kind, round(min((start - begin) * scale, WIDTH - width), 1), 0, round(width, 1), HEIGHT)
