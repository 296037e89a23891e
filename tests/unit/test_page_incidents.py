"""Incidents: which blocks belong together."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from app.page.incidents import MAX_GAP_MS, Incident, OwnedBlock, group_incidents
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode

NOW = 1_795_276_800_000


def owned(name: str, start: int = 0, cause: str = "disk", owner: str = "anna", end: int = PERMANENT) -> OwnedBlock:
    node = BlockedNode(id=name, action=BlockAction.MARK_BLOCKED, start=NOW + start, end=end, cause=cause)
    return OwnedBlock(node, owner)


def names(incidents: list[Incident]) -> list[list[str]]:
    return [[node.id for node in incident.nodes] for incident in incidents]


def test_a_gap_begins_another_incident() -> None:
    found = group_incidents(
        [
            owned("a"),
            owned("b", MAX_GAP_MS),
            owned("c", 2 * MAX_GAP_MS),
            owned("d", 3 * MAX_GAP_MS + 1),
        ]
    )
    assert names(found) == [["d"], ["a", "b", "c"]]
    assert (found[1].first, found[1].last) == (NOW, NOW + 2 * MAX_GAP_MS)


def test_another_owner_or_cause_is_another_incident() -> None:
    found = group_incidents([owned("a"), owned("b", owner="ben"), owned("c", cause="fan")])
    assert sorted(names(found)) == [["a"], ["b"], ["c"]]


def test_a_storm_of_alerts_is_one_incident_although_each_has_an_owner_of_its_own() -> None:
    storm = [owned(f"n{number}", number, "alert Disk: full", f"alertmanager/{number:08x}") for number in range(24)]
    found = group_incidents([*storm, owned("by-hand", cause="alert Disk: full", owner="alertmanager")])
    assert {incident.owner: len(incident.nodes) for incident in found} == {"alertmanager/*": 24, "alertmanager": 1}


def test_details_after_a_colon_and_further_causes_do_not_separate() -> None:
    found = group_incidents([owned("a", cause="DiskFull: /data is 98 % full"), owned("b", cause="DiskFull: sda,fan")])
    assert names(found) == [["a", "b"]]
    assert (found[0].cause, found[0].common_cause) == ("DiskFull", None)


def test_it_counts_evacuations_and_canaries() -> None:
    one, two, three = (owned(name) for name in "abc")
    evacuated = replace(two.node, action=BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS)
    found = group_incidents([one, replace(two, node=evacuated), replace(three, node=replace(three.node, canary=True))])
    assert [(incident.evacuated, incident.canaries) for incident in found] == [(1, 1)]


def test_a_cause_that_all_have_is_shown_as_it_is() -> None:
    (incident,) = group_incidents([owned("a", cause="OPS-1: fan"), owned("b", cause="OPS-1: fan")])
    assert incident.common_cause == "OPS-1: fan"


@given(
    st.lists(
        st.tuples(st.integers(0, 5 * MAX_GAP_MS), st.sampled_from(["disk", "fan"]), st.sampled_from(["anna", "ben"]))
    )
)
def test_each_block_is_in_one_incident_and_neighbours_are_close(blocks: list[tuple[int, str, str]]) -> None:
    made = [owned(f"n{place}", start, cause, owner) for place, (start, cause, owner) in enumerate(blocks)]
    found = group_incidents(made)
    assert sorted(name for each in names(found) for name in each) == sorted(block.node.id for block in made)
    for incident in found:
        starts = [node.start for node in incident.nodes]
        assert all(0 <= after - before <= MAX_GAP_MS for before, after in pairwise(starts))
    for one in found:
        for other in found:
            if one is not other and (one.cause, one.owner) == (other.cause, other.owner):
                assert one.first - other.last > MAX_GAP_MS or other.first - one.last > MAX_GAP_MS
