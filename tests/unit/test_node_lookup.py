"""Which names mean one machine, and which blocked node a name means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocklist.model.changes import Change, ChangeType, Snapshot
from blocklist.model.draft import MAX_MATCHES, BlocklistTracker, Draft, find_blocked
from blocklist.model.errors import AmbiguousNodeError, ConflictError, InvalidError, NotFoundError
from blocklist.model.names import (
    HostMatcher,
    NameSet,
    ambiguous_message,
    same_machine,
    several_message,
    usual_spellings,
)
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode

NOW = 100
ONE_MACHINE = [
    ("n1", "N1"),
    ("n1", "n1.example.com"),
    ("N1", "n1.Example.COM"),
    ("n1.example.com", "n1.example.com."),
    ("n1.", "N1"),
    ("fe80::1", "FE80:0:0::0001"),
    ("10.0.0.7", "::ffff:10.0.0.7"),
    ("[fe80::1]", "fe80::1"),
]
TWO_MACHINES = [
    ("n1", "n11"),
    ("n1.a", "n1.b"),
    ("n1", "n1x.a"),
    ("10", "10.0.0.7"),
    ("10.0.0", "10.0.0.7"),
    ("fe80", "fe80::1"),
    ("7", "7.example.com"),
    (".a", ".b"),
    ("...", "n1"),
]
names = st.sampled_from(["n1", "N1", "n1.a", "N1.A", "n1.b", "n2", "10.0.0.7", "::ffff:a00:7", "10", "n1."])


def node(node_id: str, *, end: int = PERMANENT, cause: str = "disk") -> BlockedNode:
    return BlockedNode(id=node_id, action=BlockAction.MARK_BLOCKED, start=50, end=end, cause=cause)


def drafted(*nodes: BlockedNode) -> Draft:
    snapshot = Snapshot(revision=7, history="00c0ffee", nodes={n.id: n for n in nodes})
    return Draft(BlocklistTracker(snapshot), NOW)


def ids(nodes: list[BlockedNode]) -> list[str]:
    return [found.id for found in nodes]


@pytest.mark.parametrize(("name", "other"), ONE_MACHINE)
def test_case_short_and_full_names_and_spellings_of_an_address_mean_one_machine(name: str, other: str) -> None:
    assert same_machine(name, other)
    assert same_machine(other, name)
    assert list(NameSet([name]).matching(other)) == [name]
    assert HostMatcher([other], {}).hosts_of(name) == {other}


@pytest.mark.parametrize(("name", "other"), TWO_MACHINES)
def test_other_labels_domains_and_numbers_mean_another_machine(name: str, other: str) -> None:
    assert not same_machine(name, other)
    assert not same_machine(other, name)
    assert list(NameSet([name]).matching(other)) == []


@given(st.lists(st.tuples(st.booleans(), names)), names)
def test_an_index_finds_each_added_name_of_the_machine_once(steps: list[tuple[bool, str]], name: str) -> None:
    index, expected = NameSet(), set[str]()
    for add, changed in steps:
        (index.add if add else index.discard)(changed)
        (expected.add if add else expected.discard)(changed)
    assert sorted(index.matching(name)) == sorted(other for other in expected if same_machine(name, other))


@given(names, names)
def test_usual_spellings_mean_the_same_machine(name: str, other: str) -> None:
    exact, prefixes = usual_spellings(name)
    assert name in exact
    if other in exact or other.startswith(tuple(prefixes)):
        assert same_machine(name, other)


class TestLookup:
    """find_blocked: which blocked nodes a name means."""

    def test_the_id_itself_comes_first(self) -> None:
        draft = drafted(node("n1"), node("N1"), node("n1.a"))
        assert [ids(find_blocked(draft, name, NOW)) for name in ("n1", "N1", "n1.a")] == [["n1"], ["N1"], ["n1.a"]]

    def test_an_equal_name_comes_before_a_short_or_full_one(self) -> None:
        draft = drafted(node("N1"), node("n1.a"), *(node(f"n1.x{i}") for i in range(2 * MAX_MATCHES)))
        assert ids(find_blocked(draft, "n1", NOW)) == ["N1"]
        assert ids(find_blocked(draft, "N1.A", NOW)) == ["n1.a"]

    def test_a_short_name_means_every_full_one_and_a_full_name_the_short_one(self) -> None:
        assert ids(find_blocked(drafted(node("n1.b"), node("n1.a"), node("n2.a")), "N1", NOW)) == ["n1.a", "n1.b"]
        assert ids(find_blocked(drafted(node("n1")), "n1.a", NOW)) == ["n1"]

    def test_a_node_whose_end_has_passed_is_not_found_and_hides_no_other(self) -> None:
        assert ids(find_blocked(drafted(node("n1", end=NOW), node("n1.a")), "n1", NOW)) == ["n1.a"]

    def test_a_name_that_means_thousands_does_not_look_at_all(self) -> None:
        draft = drafted(*(node(f"n1.{i}") for i in range(1000)))
        assert len(find_blocked(draft, "n1", NOW)) == MAX_MATCHES
        with pytest.raises(AmbiguousNodeError, match=f"^n1 means at least {MAX_MATCHES} blocked nodes: n1"):
            draft.unblock("n1")

    def test_a_draft_sees_its_own_changes_and_those_it_adopts(self) -> None:
        draft = drafted(node("n1.a"))
        fork = draft.fork()
        fork.unblock("n1")
        fork.block(node("N2.b"), allow_merge=False)
        assert (ids(find_blocked(fork, "n1", NOW)), ids(find_blocked(fork, "n2", NOW))) == ([], ["N2.b"])
        assert ids(find_blocked(draft, "n1", NOW)) == ["n1.a"]
        draft.adopt(fork)
        assert (ids(find_blocked(draft, "n1", NOW)), ids(find_blocked(draft, "n2", NOW))) == ([], ["N2.b"])

    def test_a_tracker_finds_names_after_changes_and_a_reset(self) -> None:
        draft = drafted(node("n1.a"))
        draft.unblock("n1.a")
        draft.block(node("N2"), allow_merge=False)
        tracker = BlocklistTracker(Snapshot(revision=7, history="00c0ffee", nodes={"n1.a": node("n1.a")}))
        for change in draft.changes:
            tracker.apply(change)
        assert (list(tracker.matching("n1")), list(tracker.matching("n2.b"))) == ([], ["N2"])
        tracker.reset(Snapshot(revision=1, history="00c0ffee", nodes={"n3": node("n3")}))
        assert (list(tracker.matching("n2")), list(tracker.matching("N3"))) == ([], ["n3"])


class TestChanges:
    """A change of a node under another name of its machine."""

    @pytest.mark.parametrize(("blocked", "name"), ONE_MACHINE[:-1])
    def test_a_block_conflicts_or_merges_with_the_existing_block_which_keeps_its_id(
        self, blocked: str, name: str
    ) -> None:
        draft = drafted(node(blocked, cause="x"))
        with pytest.raises(ConflictError) as refused:
            draft.block(node(name, cause="y"), allow_merge=False)
        assert refused.value.blocked == {name: node(blocked, cause="x")}
        merged = draft.block(node(name, cause="y"), allow_merge=True)
        assert merged == node(blocked, cause="x,y")
        assert [(change.type, change.node) for change in draft.changes] == [(ChangeType.MERGED, merged)]

    @pytest.mark.parametrize(("blocked", "name"), ONE_MACHINE[:-1])
    def test_unblocking_frees_the_machine(self, blocked: str, name: str) -> None:
        draft = drafted(node(blocked))
        assert draft.unblock(name) == node(blocked)
        with pytest.raises(NotFoundError):
            draft.unblock(blocked)

    def test_unblocking_a_short_name_of_several_is_refused_and_names_them(self) -> None:
        draft = drafted(node("n1.b"), node("n1.a"))
        with pytest.raises(AmbiguousNodeError, match=r"^n1 means 2 blocked nodes: n1\.a, n1\.b\. Give ") as refused:
            draft.unblock("n1")
        assert list(refused.value.blocked) == ["n1.a", "n1.b"]
        assert draft.changes == []
        assert draft.unblock("N1.A") == node("n1.a")
        assert draft.unblock("n1") == node("n1.b")

    def test_blocking_a_short_name_of_several_is_a_block_of_its_own(self) -> None:
        draft = drafted(node("n1.b"), node("n1.a"))
        assert draft.block(node("n1"), allow_merge=True) == node("n1")
        assert draft.unblock("n1") == node("n1")

    def test_one_request_may_not_give_one_machine_twice(self) -> None:
        draft = drafted()
        with pytest.raises(InvalidError, match="mean the same machine"):
            draft.block_many({"n2": (node("n2"), True), "n1": (node("n1"), True), "N1": (node("N1"), True)})
        assert draft.changes == []

    def test_conflicts_of_several_are_named_as_they_were_requested(self) -> None:
        draft = drafted(node("n1.example.com"))
        with pytest.raises(ConflictError) as refused:
            draft.block_many({"n2": (node("n2"), False), "N1": (node("N1"), False)})
        assert refused.value.blocked == {"N1": node("n1.example.com")}
        assert draft.changes == []


@given(st.lists(st.tuples(st.sampled_from(["block", "merge", "unblock", "expire"]), names, st.integers(1, 6))))
def test_replaying_the_changes_gives_the_drafted_list(steps: list[tuple[str, str, int]]) -> None:
    tracker = BlocklistTracker(Snapshot(revision=0, history="00c0ffee", nodes={}))
    for now, (step, name, length) in enumerate(steps):
        draft = Draft(tracker, now)
        new = BlockedNode(id=name, action=BlockAction.MARK_BLOCKED, start=now, end=now + length, cause=step)
        was_blocked = find_blocked(draft, name, now)
        try:
            if step == "unblock":
                draft.unblock(name)
                assert len(was_blocked) == 1
            elif step == "expire":
                draft.expire(name)
            else:
                draft.block(new, allow_merge=step == "merge")
                assert find_blocked(draft, name, now)
        except (ConflictError, NotFoundError, AmbiguousNodeError):
            assert draft.changes == []
        expected = [ids(find_blocked(draft, other, now)) for other in ("n1", "N1.a", "10.0.0.7")]
        _replay(tracker, draft.changes)
        assert [ids(find_blocked(tracker, other, now)) for other in ("n1", "N1.a", "10.0.0.7")] == expected
        assert sorted(tracker.matching("n1")) == sorted(other.id for other in tracker if same_machine("n1", other.id))


def _replay(tracker: BlocklistTracker, changes: list[Change]) -> None:
    for change in changes:
        assert (tracker.get(change.node.id) is None) == (change.type is ChangeType.BLOCKED)
        tracker.apply(change)


def test_a_message_names_twenty_of_many_nodes() -> None:
    names = [f"n1.{number:02}" for number in range(57)]
    assert several_message("n1", names).endswith("by it: " + ", ".join(names[:20]) + ", and 37 more.")
    assert ambiguous_message("n1", names[:20]).endswith(": " + ", ".join(names[:20]) + ". Give the id of one of them.")
