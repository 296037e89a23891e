"""BlockedNode: its validation, its half-open interval [start, end), and the merge of two blocks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import blocklist
from blocklist.model.errors import InvalidError
from blocklist.model.node import MAX_CAUSES, MIN_TIMESTAMP, PERMANENT, BlockAction, BlockedNode, merge, merge_causes

MARK = BlockAction.MARK_BLOCKED
EVACUATE = BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS

times = st.integers(MIN_TIMESTAMP, PERMANENT) | st.integers(0, 5)
parts = st.sampled_from("abcdef") | st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=3)


def causes(max_parts: int) -> st.SearchStrategy[str]:
    """Comma-separated causes with at most `max_parts` parts, including empty and repeated ones."""
    return st.lists(parts, min_size=1, max_size=max_parts).map(",".join).filter(bool)


def nodes(max_causes: int = 10) -> st.SearchStrategy[BlockedNode]:
    ordinary = st.builds(
        BlockedNode,
        id=st.just("n"),
        action=st.sampled_from(BlockAction),
        start=times,
        end=times,
        cause=causes(max_causes),
    )
    return ordinary | ordinary.map(lambda block: replace(block, action=MARK, canary=True))


def node(
    *,
    action: BlockAction = MARK,
    start: int = 10,
    end: int = 20,
    cause: str = "a",
    node_id: str = "n",
    canary: bool = False,
) -> BlockedNode:
    return BlockedNode(id=node_id, action=action, start=start, end=end, cause=cause, canary=canary)


@pytest.mark.parametrize(
    ("current", "new", "expected"),
    [
        pytest.param(node(), node(action=EVACUATE), node(action=EVACUATE), id="the stronger action wins"),
        pytest.param(node(action=EVACUATE), node(), node(action=EVACUATE), id="the weaker block cancels nothing"),
        pytest.param(node(end=20), node(end=30), node(end=30), id="the later end"),
        pytest.param(node(end=20), node(end=15), node(end=20), id="an earlier end changes nothing"),
        pytest.param(node(end=20), node(end=PERMANENT), node(end=PERMANENT), id="permanent is the latest end"),
        pytest.param(node(start=10), node(start=5), node(start=5), id="the earlier start"),
        pytest.param(node(start=10), node(start=12), node(start=10), id="a later start changes nothing"),
        pytest.param(node(cause="causeA"), node(cause="causeB"), node(cause="causeA,causeB"), id="causes are joined"),
        pytest.param(node(cause="a"), node(cause="a"), node(cause="a"), id="one kept if equal"),
        pytest.param(node(cause="a,b"), node(cause="b,c,c"), node(cause="a,b,c"), id="an ordered set"),
        pytest.param(node(cause="a,b"), node(cause="b"), node(cause="a,b"), id="split at every comma"),
        pytest.param(node(canary=True), node(canary=True), node(canary=True), id="two canaries are one"),
        pytest.param(node(canary=True), node(), node(), id="an ordinary block is stronger than a canary"),
        pytest.param(node(), node(canary=True), node(), id="a canary weakens no block"),
        pytest.param(node(canary=True), node(action=EVACUATE), node(action=EVACUATE), id="an evacuation has no canary"),
        pytest.param(
            node(action=EVACUATE, start=10, end=15, cause="a"),
            node(action=MARK, start=11, end=25, cause="b"),
            node(action=EVACUATE, start=10, end=25, cause="a,b"),
            id="each field for itself, not record by record",
        ),
    ],
)
def test_merge_joins_field_by_field(current: BlockedNode, new: BlockedNode, expected: BlockedNode) -> None:
    assert merge(current, new) == expected


@given(nodes(60), nodes(60))
def test_merge_is_idempotent_even_at_the_cap(current: BlockedNode, new: BlockedNode) -> None:
    once = merge(current, new)
    assert merge(once, new) is once


@given(nodes(), nodes(), nodes())
def test_merge_is_associative_away_from_the_cap(a: BlockedNode, b: BlockedNode, c: BlockedNode) -> None:
    assert merge(merge(a, b), c) == merge(a, merge(b, c))


@given(nodes(), nodes())
def test_merge_is_commutative_but_for_the_order_of_causes(a: BlockedNode, b: BlockedNode) -> None:
    one, other = merge(a, b), merge(b, a)
    assert set(one.cause.split(",")) == set(other.cause.split(","))
    assert replace(one, cause="x") == replace(other, cause="x")


@given(nodes(60), nodes(60))
def test_merge_returns_the_current_node_itself_exactly_when_nothing_changes(a: BlockedNode, b: BlockedNode) -> None:
    merged = merge(a, b)
    assert (merged == a) == (merged is a)


@given(causes(60), causes(60))
def test_merging_the_current_cause_again_changes_nothing(first: str, second: str) -> None:
    assert merge_causes(first, first) == first
    state = merge_causes(first, second)
    assert merge_causes(state, state) == state


@given(causes(60), causes(60))
def test_a_merge_that_adds_a_cause_keeps_at_most_32_and_every_new_one(first: str, second: str) -> None:
    new = second.split(",")[-MAX_CAUSES:]
    merged = merge_causes(first, second)
    assert set(new) <= set(merged.split(","))
    assert merged == first or merged.count(",") < MAX_CAUSES


def test_the_last_32_causes_are_kept() -> None:
    state = "c0"
    for number in range(1, 50):
        state = merge_causes(state, f"c{number}")
    assert state == ",".join(f"c{number}" for number in range(18, 50))


def test_a_new_cause_is_first_cut_to_its_last_32_parts() -> None:
    new = ",".join(f"c{number}" for number in range(100))
    assert merge_causes("old", new) == ",".join(f"c{number}" for number in range(68, 100))


def test_an_evacuation_leaves_no_executor() -> None:
    with pytest.raises(InvalidError, match="canary"):
        node(action=EVACUATE, canary=True)


def test_nodes_with_different_ids_do_not_merge() -> None:
    with pytest.raises(ValueError, match="cannot merge"):
        merge(node(), node(node_id="other"))


@given(times.filter(lambda end: end > MIN_TIMESTAMP))
def test_a_block_ends_at_its_end_and_not_a_millisecond_before(end: int) -> None:
    block = node(end=end)
    assert not block.ended(end - 1)
    assert block.ended(end)


@pytest.mark.parametrize(
    "bad", ["", ".", "..", "a/b", "a b", "é", "a" * 254, "a\n", "%41", "a\x00", "a,b", "a@b", "[::1]", "a+b", "\u0663"]
)
def test_a_node_with_an_invalid_id_is_rejected(bad: str) -> None:
    with pytest.raises(InvalidError, match="not a node id"):
        node(node_id=bad)


@pytest.mark.parametrize("good", ["a", "...", "-", "fe80::1", "10.0.0.1", "rack-1_A.example", "a" * 253])
def test_host_names_and_addresses_are_node_ids(good: str) -> None:
    assert node(node_id=good).id == good


@pytest.mark.parametrize("bad", ["", "a\nb", "\x00", "\x7f", "\x85", "\ud800"])
def test_a_node_with_an_empty_or_unprintable_cause_is_rejected(bad: str) -> None:
    with pytest.raises(InvalidError):
        node(cause=bad)


@pytest.mark.parametrize("bad", [PERMANENT + 1, MIN_TIMESTAMP - 1])
def test_a_node_with_a_time_beyond_64_bits_is_rejected(bad: int) -> None:
    with pytest.raises(InvalidError, match="64-bit"):
        node(end=bad)
    with pytest.raises(InvalidError, match="64-bit"):
        node(start=bad)


def test_every_public_name_is_there() -> None:
    assert all(getattr(blocklist, name) is not None for name in blocklist.__all__)
