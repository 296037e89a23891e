"""The list by cause and owner: which blocks belong together."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from app.page.list import BlockGroup, group_blocks
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode

NOW = 1_795_276_800_000


def owned(
    name: str, start: int = 0, cause: str = "disk", owner: str = "anna", end: int = PERMANENT
) -> tuple[BlockedNode, str]:
    node = BlockedNode(id=name, action=BlockAction.MARK_BLOCKED, start=NOW + start, end=PERMANENT, cause=cause)
    return node, owner


def names(groups: list[BlockGroup]) -> list[list[str]]:
    return [[node.id for node in group.nodes] for group in groups]


def test_another_owner_or_cause_is_another_group() -> None:
    found = group_blocks([owned("a"), owned("b", owner="ben"), owned("c", cause="fan")])
    assert sorted(names(found)) == [["a"], ["b"], ["c"]]


def test_a_storm_of_alerts_is_one_group_although_each_has_an_owner_of_its_own() -> None:
    storm = [owned(f"n{number}", number, "alert Disk: full", f"alertmanager/{number:08x}") for number in range(24)]
    found = group_blocks([*storm, owned("by-hand", cause="alert Disk: full", owner="alertmanager")])
    assert {group.owner: len(group.nodes) for group in found} == {"alertmanager/*": 24, "alertmanager": 1}


def test_details_after_a_colon_and_further_causes_do_not_separate() -> None:
    found = group_blocks([owned("a", cause="DiskFull: /data is 98 % full"), owned("b", cause="DiskFull: sda,fan")])
    assert names(found) == [["a", "b"]]
    assert (found[0].cause, found[0].common_cause) == ("DiskFull", None)


def test_it_counts_evacuations_and_canaries() -> None:
    (one, owner), (two, _), (three, _) = (owned(name) for name in "abc")
    two, three = replace(two, action=BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS), replace(three, canary=True)
    found = group_blocks([(node, owner) for node in (one, two, three)])
    assert [(group.evacuated, group.canaries) for group in found] == [(1, 1)]


def test_a_cause_that_all_have_is_shown_as_it_is() -> None:
    (group,) = group_blocks([owned("a", cause="OPS-1: fan"), owned("b", cause="OPS-1: fan")])
    assert group.common_cause == "OPS-1: fan"


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["disk", "fan"]), st.sampled_from(["anna", "ben"]))))
def test_each_block_is_in_one_group_by_start_and_the_latest_group_is_first(blocks: list[tuple[int, str, str]]) -> None:
    made = [owned(f"n{place}", start, cause, owner) for place, (start, cause, owner) in enumerate(blocks)]
    found = group_blocks(made)
    assert sorted(name for each in names(found) for name in each) == sorted(node.id for node, _ in made)
    assert len({(group.cause, group.owner) for group in found}) == len(found)
    for group in found:
        starts = [node.start for node in group.nodes]
        assert (starts, group.first, group.last) == (sorted(starts), min(starts), max(starts))
    assert [group.last for group in found] == sorted((group.last for group in found), reverse=True)
