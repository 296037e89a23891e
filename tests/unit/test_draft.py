"""The rules for changes of the list: what is recorded, in which order, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocklist.model.changes import Author, Change, ChangeType, Snapshot, Source
from blocklist.model.claims import author_claim
from blocklist.model.draft import BlocklistTracker, Draft
from blocklist.model.errors import ConflictError, NotFoundError
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode

EVACUATE = BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS
NOW = 100


def node(node_id: str, *, end: int = PERMANENT, cause: str = "disk", start: int = 50) -> BlockedNode:
    return BlockedNode(id=node_id, action=BlockAction.MARK_BLOCKED, start=start, end=end, cause=cause)


def tracker_of(*nodes: BlockedNode, revision: int = 7) -> BlocklistTracker:
    return BlocklistTracker(Snapshot(revision=revision, history="00c0ffee", nodes={n.id: n for n in nodes}))


def drafted(*nodes: BlockedNode) -> Draft:
    draft = Draft(tracker_of(*nodes), NOW)
    draft.author = Author("ops", Source.REQUEST, "a fire")
    return draft


def log_of(draft: Draft) -> list[tuple[int, str, str]]:
    return [(change.revision, change.type.value, change.node.id) for change in draft.changes]


def test_blocking_a_free_node_is_one_change_with_the_next_revision() -> None:
    draft = drafted()
    new = node("a")
    assert draft.block(new, allow_merge=False) is new
    claims = author_claim("ops", new)
    blocked = Change(
        revision=8, type=ChangeType.BLOCKED, at=NOW, node=new, created_by="ops", forced="a fire", claims=claims
    )
    assert draft.changes == [blocked]
    assert draft.changes[0].source is Source.REQUEST
    assert (draft.revision, draft.get("a")) == (8, new)


def test_blocking_a_blocked_node_is_refused_with_the_existing_node() -> None:
    existing = node("a", end=200)
    draft = Draft(tracker_of(existing), NOW)
    with pytest.raises(ConflictError, match=r"^Node a is already blocked until 1970-01-01T00:00:00Z ") as refused:
        draft.block(node("a"), allow_merge=False)
    assert refused.value.blocked == {"a": existing}
    assert draft.changes == []


def test_a_refusal_names_the_owners_unless_the_author_is_the_only_one() -> None:
    draft = drafted()
    draft.block(node("a"), allow_merge=False)
    draft.block(node("b"), allow_merge=False)
    with pytest.raises(ConflictError, match=r"^Node a is already blocked without end \(disk\); "):
        draft.block(node("a"), allow_merge=False)
    for owner in [f"disk-{number}" for number in range(5)]:
        draft.put_claim(owner, node("a"))
    draft.author = Author("bob")
    with pytest.raises(ConflictError) as refused:
        draft.block_many({name: (node(name), False) for name in ("a", "b")})
    a, b = refused.value.lines
    assert a.startswith("Node a is already blocked without end by ops, disk-0, disk-1, disk-2, disk-3 and 1 more (")
    assert b.startswith("Node b is already blocked without end by ops (")


def test_a_merge_is_one_change_with_the_node_after_it() -> None:
    draft = Draft(tracker_of(node("a", cause="x")), NOW)
    merged = draft.block(node("a", cause="y"), allow_merge=True)
    assert merged.cause == "x,y"
    assert [(change.type, change.node) for change in draft.changes] == [(ChangeType.MERGED, merged)]


def test_a_merge_that_changes_nothing_makes_no_change() -> None:
    existing = node("a")
    draft = Draft(tracker_of(existing), NOW)
    assert draft.block(node("a", start=60), allow_merge=True) is existing
    assert (draft.changes, draft.revision) == ([], 7)


@pytest.mark.parametrize("allow_merge", [False, True])
@pytest.mark.parametrize("end", [NOW, NOW - 1])
def test_blocking_an_ended_node_expires_it_first(end: int, *, allow_merge: bool) -> None:
    old, new = node("a", end=end, cause="old"), node("a", cause="new")
    draft = drafted(old)
    assert draft.block(new, allow_merge=allow_merge) is new
    assert log_of(draft) == [(8, "expired", "a"), (9, "blocked", "a")]
    assert draft.changes[0].node is old
    assert [(change.created_by, change.source) for change in draft.changes] == [
        (None, Source.TIME),
        ("ops", Source.REQUEST),
    ]


def test_a_node_is_blocked_until_the_millisecond_before_its_end() -> None:
    draft = Draft(tracker_of(node("a", end=NOW + 1), node("b", end=NOW)), NOW)
    assert draft.get_blocked("a") is not None
    assert draft.get_blocked("b") is None
    assert draft.get("b") is not None


def test_unblocking_returns_the_node_as_it_last_was() -> None:
    existing = node("a")
    draft = drafted(existing)
    assert draft.unblock("a") is existing
    unblocked = Change(revision=8, type=ChangeType.UNBLOCKED, at=NOW, node=existing, created_by="ops", forced="a fire")
    assert draft.changes == [unblocked]
    assert draft.get("a") is None


def test_unblocking_a_free_or_ended_node_is_not_found_and_changes_nothing() -> None:
    draft = Draft(tracker_of(node("ended", end=NOW)), NOW)
    for node_id in ("free", "ended"):
        with pytest.raises(NotFoundError, match=f"Node {node_id} is not blocked"):
            draft.unblock(node_id)
    assert draft.changes == []


def test_expire_records_only_a_record_whose_end_has_passed() -> None:
    draft = Draft(tracker_of(node("ended", end=NOW), node("later", end=NOW + 1)), NOW)
    for node_id in ("ended", "ended", "later", "free"):
        draft.expire(node_id)
    assert log_of(draft) == [(8, "expired", "ended")]


def test_several_nodes_change_in_order_with_one_revision_each() -> None:
    draft = Draft(tracker_of(node("m", cause="x"), node("same"), node("old", end=NOW)), NOW)
    after = draft.block_many(
        {
            "z": (node("z"), False),
            "m": (node("m", cause="y"), True),
            "same": (node("same"), True),
            "old": (node("old"), False),
            "a": (node("a"), True),
        }
    )
    assert log_of(draft) == [
        (8, "blocked", "z"),
        (9, "merged", "m"),
        (10, "expired", "old"),
        (11, "blocked", "old"),
        (12, "blocked", "a"),
    ]
    assert list(after) == ["z", "m", "same", "old", "a"]
    assert after["m"].cause == "x,y"


def test_several_nodes_are_all_or_none_and_every_conflict_is_named() -> None:
    first, second = node("a"), node("b", end=200)
    draft = Draft(tracker_of(first, second, node("m")), NOW)
    with pytest.raises(ConflictError, match="2 of 4 nodes") as refused:
        draft.block_many(
            {
                "new": (node("new"), False),
                "a": (node("a"), False),
                "b": (node("b"), False),
                "m": (node("m", cause="y"), True),
            }
        )
    assert refused.value.blocked == {"a": first, "b": second}
    assert len(refused.value.lines) == 2
    assert draft.changes == []


def test_a_draft_on_a_draft_does_not_modify_it() -> None:
    first = Draft(tracker_of(), NOW)
    first.block(node("a"), allow_merge=False)
    second = Draft(first, NOW + 1)
    second.unblock("a")
    assert log_of(second) == [(9, "unblocked", "a")]
    assert second.get("a") is None
    assert (first.get("a"), first.revision) == (node("a"), 8)


def test_the_base_is_never_modified() -> None:
    base = tracker_of(node("a"))
    draft = Draft(base, NOW)
    draft.unblock("a")
    draft.block(node("b"), allow_merge=False)
    assert (base.revision, base.get("a"), base.get("b")) == (7, node("a"), None)


operations = st.lists(
    st.tuples(
        st.sampled_from(["block", "merge", "unblock", "expire"]),
        st.sampled_from("abc"),
        st.integers(1, 6),
        st.sampled_from("xyz"),
        st.sampled_from(BlockAction),
    )
)


@given(operations)
def test_replaying_the_changes_gives_the_drafted_list(steps: list[tuple[str, str, int, str, BlockAction]]) -> None:
    tracker = tracker_of()
    for now, (step, node_id, length, cause, action) in enumerate(steps):
        draft = Draft(tracker, now)
        new = BlockedNode(id=node_id, action=action, start=now, end=now + length, cause=cause)
        try:
            if step == "unblock":
                draft.unblock(node_id)
            elif step == "expire":
                draft.expire(node_id)
            else:
                draft.block(new, allow_merge=step == "merge")
        except (ConflictError, NotFoundError):
            assert draft.changes == []
        drafted = (draft.revision, [draft.get(name) for name in "abc"])
        for change in draft.changes:
            tracker.apply(change)
        assert (tracker.revision, [tracker.get(name) for name in "abc"]) == drafted
