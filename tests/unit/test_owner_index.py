"""The nodes that an owner claims are found without reading the list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from blocklist.model.changes import Change, ChangeType, Snapshot
from blocklist.model.claims import Claim, Claims, claim_of
from blocklist.model.draft import BlocklistTracker, BlocklistView, Draft, nodes_claimed_by
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode
from tests.unit.counting import count_calls

OWNERS = ("alertmanager/1", "alertmanager/2", "anna")
NODES = ("n1", "n2", "n3")


def node(node_id: str, end: int = PERMANENT) -> BlockedNode:
    return BlockedNode(id=node_id, action=BlockAction.MARK_BLOCKED, start=0, end=end, cause="disk")


def claims(node_id: str, owners: list[str]) -> Claims:
    return tuple(Claim(owner=owner, author="am", block=node(node_id)) for owner in owners)


def tracker_of(stored: dict[str, Claims]) -> BlocklistTracker:
    nodes = {node_id: node(node_id) for node_id in stored}
    return BlocklistTracker(Snapshot(revision=0, history="0000000a", nodes=nodes, claims=stored))


def expected(view: BlocklistView) -> dict[str, set[str]]:
    return {owner: {each.id for each in view if claim_of(view.claims(each.id), owner)} for owner in OWNERS}


def found_in(view: BlocklistView) -> dict[str, set[str]]:
    found = {owner: list(view.claimed_by(owner)) for owner in OWNERS}
    assert all(len(ids) == len(set(ids)) for ids in found.values())
    return {owner: set(ids) for owner, ids in found.items()}


owner_lists = st.lists(st.sampled_from(OWNERS), min_size=1, max_size=3, unique=True)
steps = st.tuples(st.sampled_from(NODES), st.none() | owner_lists)


@given(st.lists(steps, max_size=12))
def test_it_follows_all_changes(script: list[tuple[str, list[str] | None]]) -> None:
    tracker = tracker_of({"n1": claims("n1", ["anna", "alertmanager/1"])})
    for node_id, owners in script:
        kind = ChangeType.UNBLOCKED if owners is None else ChangeType.BLOCKED
        tracker.apply(
            Change(
                revision=tracker.revision + 1,
                type=kind,
                at=0,
                node=node(node_id),
                claims=claims(node_id, owners or []),
            )
        )
        assert found_in(tracker) == expected(tracker)


@given(st.lists(st.tuples(st.sampled_from(NODES), st.sampled_from(OWNERS), st.booleans()), max_size=12))
def test_a_draft_adds_its_own_changes(script: list[tuple[str, str, bool]]) -> None:
    draft = Draft(tracker_of({"n1": claims("n1", ["anna", "alertmanager/1"]), "n2": claims("n2", ["anna"])}), 0)
    for node_id, owner, put in script:
        current = draft.get(node_id)
        if put:
            draft.put_claim(owner, node(node_id))
        elif current is not None and claim_of(draft.claims(node_id), owner) is not None:
            draft.remove_claim(node_id, owner)
        assert found_in(draft) == expected(draft)
        assert found_in(draft.fork()) == expected(draft)


def test_a_claim_that_has_ended_is_not_one_of_the_owner() -> None:
    stored = (Claim(owner="a", author="am", block=node("n1", 10)), Claim(owner="b", author="am", block=node("n1")))
    tracker = tracker_of({"n1": stored})
    assert nodes_claimed_by(tracker, ["a", "b"], 9) == {"a": ["n1"], "b": ["n1"]}
    assert nodes_claimed_by(tracker, ["a", "b", "c"], 10) == {"a": [], "b": ["n1"], "c": []}


def test_the_work_does_not_depend_on_the_length_of_the_list() -> None:
    draft = Draft(tracker_of({f"n{number}": claims(f"n{number}", [f"o{number}", "all"]) for number in range(5000)}), 0)
    assert count_calls(lambda: nodes_claimed_by(draft, ["o7"], 0)) < 50
