"""The strip of a node's blocks: what is shown, how long it was blocked, and from when that is known."""

from __future__ import annotations

from collections.abc import Sequence

from app.page.history import WIDTH
from app.page.node import BlockStrip, block_strip
from blocklist.model.changes import Change, ChangeType
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode

MARK, EVACUATE = BlockAction.MARK_BLOCKED, BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS
DAY = 86_400_000
NOW = 20_000 * DAY
BEGIN = NOW - 32 * DAY


def node(start: int, action: BlockAction = MARK, name: str = "n1") -> BlockedNode:
    return BlockedNode(id=name, action=action, start=start, end=PERMANENT, cause="x")


def log(*events: tuple[ChangeType, int, BlockAction]) -> list[Change]:
    """Changes at a number of days after BEGIN."""
    return [
        Change(revision=number, type=kind, at=BEGIN + days * DAY, node=node(BEGIN + days * DAY, action))
        for number, (kind, days, action) in enumerate(events, 1)
    ]


def strip(
    changes: Sequence[Change], current: BlockedNode | None = None, known_since: int = 0
) -> tuple[BlockStrip, list[tuple[str, float, float]]]:
    made = block_strip(changes, {} if current is None else {current.id: current}, BEGIN, known_since, NOW)
    return made, [(box.kind, box.x, box.width) for box in made.boxes]


def test_each_block_is_a_box_and_a_merge_is_no_further_block() -> None:
    changes = log(
        (ChangeType.BLOCKED, 8, MARK),
        (ChangeType.MERGED, 16, EVACUATE),
        (ChangeType.UNBLOCKED, 24, EVACUATE),
    )
    made, boxes = strip(changes)
    quarter = WIDTH / 4
    assert boxes == [("mark", quarter, quarter), ("evacuate", 2 * quarter, quarter)]
    assert (made.blocks, made.blocked_ms, made.complete) == (1, 16 * DAY, True)


def test_a_block_that_began_before_and_lasts_fills_it() -> None:
    made, boxes = strip([], node(BEGIN - DAY, EVACUATE))
    assert boxes == [("evacuate", 0, WIDTH)]
    assert (made.blocks, made.blocked_ms) == (1, 32 * DAY)


def test_a_short_block_is_visible() -> None:
    changes = [
        Change(revision=1, type=ChangeType.BLOCKED, at=NOW - 1000, node=node(NOW - 1000)),
        Change(revision=2, type=ChangeType.EXPIRED, at=NOW - 1, node=node(NOW - 1000)),
    ]
    made, boxes = strip(changes)
    assert boxes == [("mark", WIDTH - 2, 2)]
    assert made.blocked_ms == 999


def test_what_is_before_the_known_changes_is_unknown_and_not_free() -> None:
    changes = log((ChangeType.UNBLOCKED, 4, MARK), (ChangeType.BLOCKED, 20, MARK), (ChangeType.UNBLOCKED, 24, MARK))
    made, boxes = strip(changes, known_since=BEGIN + 16 * DAY)
    assert boxes == [("unknown", 0, WIDTH / 2), ("mark", WIDTH * 20 / 32, WIDTH / 8)]
    assert (made.complete, made.known_since, made.blocked_ms) == (False, BEGIN + 16 * DAY, 4 * DAY)


def test_a_node_that_was_never_blocked_has_an_empty_strip() -> None:
    made, boxes = strip([])
    assert (boxes, made.blocks, made.blocked_ms) == ([], 0, 0)
    assert len(made.time_labels) >= 2
