"""BlocklistTracker: the list at a revision, fed by snapshots and by changes in order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from blocklist.model.changes import Change, ChangeType, Snapshot
from blocklist.model.draft import BlocklistTracker, OutOfOrderError
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode
from tests.length import longer


def node(node_id: str, end: int = PERMANENT, cause: str = "disk") -> BlockedNode:
    return BlockedNode(id=node_id, action=BlockAction.MARK_BLOCKED, start=0, end=end, cause=cause)


def empty(revision: int = 0) -> BlocklistTracker:
    return BlocklistTracker(Snapshot(revision=revision, history="00c0ffee"))


def change(revision: int, node: BlockedNode, kind: ChangeType = ChangeType.BLOCKED) -> Change:
    return Change(revision=revision, type=kind, at=0, node=node)


def test_the_next_revision_is_applied() -> None:
    tracker = empty(7)
    tracker.apply(change(8, node("a")))
    assert (tracker.revision, tracker.get("a"), len(tracker), list(tracker)) == (8, node("a"), 1, [node("a")])


@pytest.mark.parametrize("revision", [0, 6, 7, 9])
def test_any_other_revision_is_out_of_order_and_changes_nothing(revision: int) -> None:
    tracker = empty(7)
    with pytest.raises(OutOfOrderError, match=f"{revision} does not follow 7"):
        tracker.apply(change(revision, node("a")))
    assert (tracker.revision, tracker.get("a")) == (7, None)


@pytest.mark.parametrize("kind", [ChangeType.UNBLOCKED, ChangeType.EXPIRED])
def test_an_unblocked_or_expired_node_is_removed(kind: ChangeType) -> None:
    tracker = empty()
    tracker.apply(change(1, node("a", 10)))
    tracker.apply(change(2, node("a", 10), kind))
    assert (tracker.get("a"), len(tracker), tracker.next_expiry()) == (None, 0, PERMANENT)


def test_freeing_an_unknown_node_only_moves_the_revision() -> None:
    tracker = empty()
    tracker.apply(change(1, node("a"), ChangeType.UNBLOCKED))
    assert (tracker.revision, len(tracker)) == (1, 0)


def test_a_snapshot_replaces_everything() -> None:
    tracker = empty()
    tracker.apply(change(1, node("a", 10)))
    tracker.reset(Snapshot(revision=1, history="0ddba115", nodes={"b": node("b", 20)}))
    assert (tracker.revision, tracker.history) == (1, "0ddba115")
    assert (tracker.get("a"), tracker.get("b")) == (None, node("b", 20))
    assert tracker.next_expiry() == 20


def test_a_tracker_does_not_share_its_list_with_the_snapshot() -> None:
    nodes = {"a": node("a")}
    tracker = BlocklistTracker(Snapshot(revision=1, history="00c0ffee", nodes=nodes))
    tracker.apply(change(2, node("a"), ChangeType.UNBLOCKED))
    assert nodes == {"a": node("a")}


def test_ends_are_exact_and_the_earliest_comes_first() -> None:
    nodes = {name: node(name, end) for name, end in [("c", 30), ("b", 10), ("a", 10), ("z", PERMANENT)]}
    tracker = BlocklistTracker(Snapshot(revision=4, history="00c0ffee", nodes=nodes))
    assert (tracker.ended(9), set(tracker.blocked(9))) == ([], {"a", "b", "c", "z"})
    assert [n.id for n in tracker.ended(10)] == ["a", "b"]
    assert set(tracker.blocked(10)) == {"c", "z"}
    assert [n.id for n in tracker.ended(30)] == ["a", "b", "c"]
    assert set(tracker.blocked(30)) == {"z"}


def test_a_merge_moves_the_end() -> None:
    tracker = empty()
    tracker.apply(change(1, node("a", 10)))
    tracker.apply(change(2, node("a", 20), ChangeType.MERGED))
    assert (tracker.next_expiry(), tracker.ended(10)) == (20, [])
    tracker.apply(change(3, node("a", PERMANENT), ChangeType.MERGED))
    assert tracker.next_expiry() == PERMANENT


def test_repeated_merges_do_not_grow_the_end_heap() -> None:
    tracker = empty()
    tracker.apply(change(1, node("far", 10**9)))
    for revision in range(2, 5_000):
        tracker.apply(change(revision, node("a", revision), ChangeType.MERGED))
        assert len(tracker._ends._heap) <= 2 * len(tracker) + 64
    assert tracker.next_expiry() == 4_999


class TrackerAgainstDict(RuleBasedStateMachine):
    """The tracker compared with a dict."""

    names = st.sampled_from("abcdef")
    ends = st.integers(1, 12) | st.just(PERMANENT)

    def __init__(self) -> None:
        super().__init__()
        self.tracker = empty()
        self.model: dict[str, BlockedNode] = {}
        self.now = 0

    def _apply(self, kind: ChangeType, node: BlockedNode) -> None:
        self.tracker.apply(change(self.tracker.revision + 1, node, kind))

    @rule(name=names, end=ends, cause=st.sampled_from("xy"))
    def put(self, name: str, end: int, cause: str) -> None:
        kind = ChangeType.MERGED if name in self.model else ChangeType.BLOCKED
        self.model[name] = node(name, end, cause)
        self._apply(kind, self.model[name])

    @rule(name=names, kind=st.sampled_from([ChangeType.UNBLOCKED, ChangeType.EXPIRED]))
    def free(self, name: str, kind: ChangeType) -> None:
        self._apply(kind, self.model.pop(name, node(name)))

    @rule(times=st.integers(60, 120), name=names)
    def merge_again_and_again(self, times: int, name: str) -> None:
        for end in range(1, times):
            self.put(name, end, "x")

    @rule(step=st.integers(0, 5))
    def pass_time(self, step: int) -> None:
        self.now += step

    @rule()
    def start_from_a_snapshot(self) -> None:
        self.tracker.reset(Snapshot(revision=self.tracker.revision, history="00c0ffee", nodes=dict(self.model)))

    @invariant()
    def tracker_equals_model(self) -> None:
        assert {n.id: n for n in self.tracker} == self.model
        assert self.tracker.blocked(self.now) == {i: n for i, n in self.model.items() if self.now < n.end}
        ended = sorted((n.end, n.id) for n in self.model.values() if n.end <= self.now)
        assert [(n.end, n.id) for n in self.tracker.ended(self.now)] == ended
        assert self.tracker.next_expiry() == min((n.end for n in self.model.values()), default=PERMANENT)


TestTrackerAgainstDict = TrackerAgainstDict.TestCase
TestTrackerAgainstDict.settings = settings(max_examples=longer(60), stateful_step_count=40, deadline=None)


@given(st.lists(st.integers(1, 50)))
def test_the_earliest_end_is_the_minimum(ends: list[int]) -> None:
    nodes = {f"n{number}": node(f"n{number}", end) for number, end in enumerate(ends)}
    tracker = BlocklistTracker(Snapshot(revision=0, history="00c0ffee", nodes=nodes))
    assert tracker.next_expiry() == min(ends, default=PERMANENT)
