"""Intervals of blocks from the change log, and their charts."""

from __future__ import annotations

from app.page.history import (
    HOUR,
    OTHERS,
    WIDTH,
    BlockInterval,
    axis_maximum,
    blocked_chart,
    buckets,
    by_cause,
    cause_group,
    intervals,
)
from blocklist.model.changes import Change, ChangeType
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode

MARK, EVACUATE = BlockAction.MARK_BLOCKED, BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS


def node(node_id: str, cause: str = "disk", action: BlockAction = MARK, start: int = 0) -> BlockedNode:
    return BlockedNode(id=node_id, action=action, start=start, end=PERMANENT, cause=cause)


def change(revision: int, type_: str, at: int, block: BlockedNode) -> Change:
    return Change(revision=revision, type=ChangeType(type_), at=at, node=block)


def times(found: list[BlockInterval]) -> list[tuple[str, int, int]]:
    return sorted((interval.node.id, interval.begin, interval.end) for interval in found)


def test_an_interval_lasts_from_the_block_to_its_end() -> None:
    changes = [
        change(1, "blocked", 110, node("a")),
        change(2, "blocked", 120, node("b")),
        change(3, "unblocked", 130, node("a")),
        change(4, "expired", 150, node("b")),
    ]
    assert times(intervals(changes, {}, 100, 200)) == [("a", 110, 130), ("b", 120, 150)]


def test_earlier_blocks_count_from_the_beginning_of_the_period() -> None:
    """With or without later changes; but not from before their own start."""
    changes = [change(9, "unblocked", 130, node("a")), change(10, "expired", 140, node("late", start=120))]
    still = {"b": node("b"), "new": node("new", start=150)}
    expected = [("a", 100, 130), ("b", 100, 200), ("late", 120, 140), ("new", 150, 200)]
    assert times(intervals(changes, still, 100, 200)) == expected


def test_a_merge_begins_a_new_interval() -> None:
    merged = node("a", "disk,hot", EVACUATE)
    changes = [change(1, "blocked", 110, node("a")), change(2, "merged", 150, merged)]
    found = intervals(changes, {"a": merged}, 100, 200)
    assert [(interval.begin, interval.end, interval.node.action) for interval in found] == [
        (110, 150, MARK),
        (150, 200, EVACUATE),
    ]


def test_a_node_that_was_unblocked_and_blocked_again_has_two() -> None:
    changes = [
        change(1, "blocked", 110, node("a")),
        change(2, "expired", 120, node("a")),
        change(3, "blocked", 120, node("a")),
    ]
    assert times(intervals(changes, {"a": node("a")}, 100, 200)) == [("a", 110, 120), ("a", 120, 200)]


def test_buckets_have_the_maximum_and_all_node_hours() -> None:
    found = [
        BlockInterval(0, HOUR, node("a")),
        BlockInterval(HOUR // 2, 2 * HOUR, node("b", action=EVACUATE)),
        BlockInterval(HOUR, 3 * HOUR, node("c")),
    ]
    pieces = buckets(found, 0, 4 * HOUR, 4)
    assert [(bucket.marked, bucket.evacuated) for bucket in pieces] == [(1, 1), (1, 1), (1, 1), (1, 0)]
    assert [bucket.hours for bucket in pieces] == [1.5, 2, 1, 0]
    assert sum(bucket.hours for bucket in pieces) == sum((bucket.end - bucket.begin) / HOUR for bucket in found)
    assert [(bucket.begin, bucket.end) for bucket in buckets([], 0, 10, 3)] == [(0, 4), (4, 8), (8, 12)]


def test_a_merge_is_not_a_second_node() -> None:
    found = [BlockInterval(0, HOUR, node("a")), BlockInterval(HOUR, 2 * HOUR, node("a", action=EVACUATE))]
    assert max(bucket.blocked for bucket in buckets(found, 0, 2 * HOUR, 1)) == 1


def test_causes_are_grouped() -> None:
    assert cause_group("DiskFull: /data is 98 % full,hot") == "DiskFull"
    assert {cause_group("2 applications say so: app-1 (slow)"), cause_group("1 application says so: x")} == {
        "Evidence of applications"
    }
    assert cause_group(", ,x") == "x"
    assert cause_group(",") == ","
    assert len(cause_group("y" * 1000)) == 60
    found = [
        BlockInterval(0, hours * HOUR, node(name, f"{name}: detail")) for name, hours in (("a", 1), ("b", 5), ("c", 2))
    ]
    found.append(BlockInterval(0, HOUR, node("other", "b: more")))
    assert by_cause(found, 1) == [("b", 6, 2), (OTHERS, 3, 2)]
    assert by_cause([], 3) == []


def test_a_chart_stays_within_its_frame() -> None:
    found = [BlockInterval(number * HOUR, (number + 30) * HOUR, node(f"n{number}")) for number in range(60)]
    chart = blocked_chart(buckets(found, 0, 90 * HOUR, 30))
    assert chart.maximum == 30
    assert all(box.y > 0 and box.x + box.width <= WIDTH + 1 for box in chart.boxes)
    assert [value for _, value in chart.gridlines] == [0, 25, 50]
    assert 2 <= len(chart.time_labels) <= 8
    assert blocked_chart(buckets([], 0, 1, 3)).boxes == []
    assert [axis_maximum(number) for number in (0, 1, 3, 7, 11, 50, 51)] == [1, 1, 5, 10, 20, 50, 100]
