"""Claims: their order never matters, removing one is as if it had never existed, and any subset may expire."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocklist.model.changes import Author, Change, Snapshot, Source
from blocklist.model.claims import (
    MAX_CLAIMS,
    Claim,
    Claims,
    check_owner,
    live_claims,
    merge_claims,
    owner_matches,
    with_claim,
    without_owner,
)
from blocklist.model.draft import BlocklistTracker, Draft, claims_on
from blocklist.model.errors import BlocklistError, ConflictError, InvalidError, LimitError, NotFoundError
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode, merge

MARK, EVACUATE = BlockAction
NOW = 100
OWNERS = ("anna", "bob", "alertmanager/1", "anonymous")


def node(
    cause: str = "disk",
    *,
    action: BlockAction = MARK,
    end: int = PERMANENT,
    start: int = NOW,
    node_id: str = "n",
    canary: bool = False,
) -> BlockedNode:
    return BlockedNode(id=node_id, action=action, start=start, end=end, cause=cause, canary=canary)


def claim(owner: str, block: BlockedNode, author: str | None = None) -> Claim:
    return Claim(owner=owner, author=author, block=block)


def unordered(block: BlockedNode) -> tuple[object, ...]:
    return block.short_action, block.start, block.end, set(block.cause.split(","))


ordinary_blocks = st.builds(
    node,
    cause=st.lists(st.sampled_from("abcd"), min_size=1, max_size=3).map(",".join),
    action=st.sampled_from(BlockAction),
    start=st.integers(0, 5),
    end=st.integers(6, 12) | st.just(PERMANENT),
)
blocks = ordinary_blocks | ordinary_blocks.map(lambda block: replace(block, action=MARK, canary=True))
claim_sets = st.dictionaries(st.sampled_from(OWNERS), blocks, min_size=1).map(
    lambda found: [claim(owner, block) for owner, block in found.items()]
)


class TestMerge:
    @given(claim_sets, st.randoms())
    def test_the_order_of_claims_matters_only_for_that_of_causes(self, claims: list[Claim], random: Random) -> None:
        shuffled = claims.copy()
        random.shuffle(shuffled)
        assert unordered(merge_claims(shuffled)) == unordered(merge_claims(claims))

    @given(claim_sets)
    def test_it_is_the_strongest_action_the_latest_end_the_earliest_start_and_all_causes(
        self, claims: list[Claim]
    ) -> None:
        merged = merge_claims(claims)
        assert merged.action == max(it.block.action for it in claims)
        assert merged.canary == all(it.block.canary for it in claims)
        assert merged.end == max(it.block.end for it in claims)
        assert merged.start == min(it.block.start for it in claims)
        assert set(merged.cause.split(",")) == {part for it in claims for part in it.block.cause.split(",")}

    @given(claim_sets, blocks)
    def test_removing_a_claim_is_as_if_it_had_never_existed(self, claims: list[Claim], block: BlockedNode) -> None:
        assert without_owner(with_claim(claims, claim("carol", block)), "carol") == tuple(claims)

    @given(claim_sets, ordinary_blocks, st.sampled_from(OWNERS))
    def test_replacing_ones_own_claim_leaves_those_of_others(
        self, claims: list[Claim], block: BlockedNode, owner: str
    ) -> None:
        block = replace(block, end=PERMANENT)
        draft = drafted(*claims)
        draft.author = Author(owner, Source.REQUEST)
        before = draft.live_claims(node())
        after = draft.block(block, allow_merge=False, replace_own=True)
        others = without_owner(draft.live_claims(after), owner)
        assert others == without_owner(before, owner)
        (own,) = [it for it in draft.live_claims(after) if it.owner == owner]
        assert (own.block.action, own.block.end, own.block.cause) == (block.action, block.end, block.cause)

    @given(claim_sets)
    def test_one_claim_is_the_block(self, claims: list[Claim]) -> None:
        assert merge_claims(claims[:1]) is claims[0].block

    def test_causes_are_in_the_order_in_which_claims_were_made(self) -> None:
        assert merge_claims([claim("zoe", node("x")), claim("anna", node("y,x"))]).cause == "x,y"

    def test_a_claim_that_is_replaced_keeps_its_place(self) -> None:
        claims = (claim("zoe", node("x")), claim("anna", node("y")))
        assert merge_claims(with_claim(claims, claim("zoe", node("z")))).cause == "z,y"


class TestOwner:
    @pytest.mark.parametrize("owner", ["anna", "alertmanager/809c736d", "Zoë O'Neil", "x" * 128])
    def test_names(self, owner: str) -> None:
        assert check_owner(owner) == owner

    @pytest.mark.parametrize(
        "owner",
        [
            "",
            "x" * 129,
            "a*",
            "a//b",
            "/a",
            "a/",
            "a/../b",
            ".",
            "a\n",
            "\ud800",
            "caf\ufffd",
            " ",
            "a ",
            " a/b",
            "a/ /b",
        ],
    )
    def test_what_is_not_an_owner(self, owner: str) -> None:
        with pytest.raises(InvalidError):
            check_owner(owner)

    @pytest.mark.parametrize(
        ("pattern", "matches"),
        [("a/b", True), ("a/*", True), ("*", True), ("a", False), ("a/b/*", False), ("b*", False)],
    )
    def test_patterns(self, pattern: str, *, matches: bool) -> None:
        assert owner_matches("a/b", pattern) is matches


def drafted(*claims: Claim, now: int = NOW, author: str | None = "anna") -> Draft:
    """A draft on a list with one node, which has these claims."""
    nodes = {"n": merge_claims(claims)} if claims else {}
    snapshot = Snapshot(revision=7, history="00c0ffee", nodes=nodes, claims={"n": tuple(claims)} if claims else {})
    draft = Draft(BlocklistTracker(snapshot), now)
    draft.author = Author(author, Source.REQUEST)
    return draft


def claims_in(draft: Draft) -> dict[str, BlockedNode]:
    return {it.owner: it.block for it in draft.claims("n")}


def log_of(draft: Draft) -> list[tuple[str, BlockedNode]]:
    return [(change.type.value, change.node) for change in draft.changes]


class TestBlock:
    def test_the_first_block_is_a_claim_of_its_author(self) -> None:
        draft = drafted()
        draft.block(node(), allow_merge=False)
        assert claims_in(draft) == {"anna": node()}
        assert draft.changes[0].claims == (claim("anna", node(), "anna"),)

    def test_without_a_name_it_is_a_claim_of_anonymous(self) -> None:
        draft = drafted(author=None)
        draft.block(node(), allow_merge=False)
        assert claims_in(draft) == {"anonymous": node()}

    def test_a_merge_by_another_is_a_claim_of_its_own(self) -> None:
        draft = drafted(claim("anna", node("x")), author="bob")
        merged = draft.block(node("y", end=200), allow_merge=True)
        assert (merged, log_of(draft)) == (node("x,y"), [("merged", node("x,y"))])
        assert claims_in(draft) == {"anna": node("x"), "bob": node("y", end=200)}

    def test_a_claim_that_changes_nothing_of_the_block_is_recorded_all_the_same(self) -> None:
        draft = drafted(claim("anna", node("x")), author="bob")
        draft.block(node("x"), allow_merge=True)
        assert log_of(draft) == [("merged", node("x"))]
        draft.block(node("x"), allow_merge=True)
        assert len(draft.changes) == 1

    def test_without_merging_a_node_that_anybody_blocks_is_a_conflict(self) -> None:
        draft = drafted(claim("anna", node("x", end=90)), claim("bob", node("y")), author="carol")
        with pytest.raises(ConflictError):
            draft.block(node("z"), allow_merge=False)
        assert draft.changes == [], "not even the expiry of a claim"

    def test_too_many_claims_are_refused_but_not_more_of_one_owner(self) -> None:
        draft = drafted(*(claim(f"o{number}", node()) for number in range(MAX_CLAIMS)), author="anna")
        with pytest.raises(LimitError, match="has 32 claims"):
            draft.put_claim("new", node())
        assert draft.changes == []
        assert not draft.put_claim("o1", node("x")).created

    def test_what_an_author_claims_for_himself_always_fits(self) -> None:
        """And the cause names it, though it has no room for the reasons of all."""
        alerts = [claim(f"alertmanager/{number}", node(f"alert {number}")) for number in range(MAX_CLAIMS)]
        draft = drafted(*alerts, author="anna")
        assert draft.block(node("x", action=EVACUATE), allow_merge=True).cause.endswith("alert 31,x")
        assert draft.put_claim("anna", node("y", action=EVACUATE)).node.action is EVACUATE
        assert len(claims_in(draft)) == MAX_CLAIMS + 1
        bob = drafted(*alerts, author="bob")
        assert set(bob.block_many({"m": (node(node_id="m"), True), "n": (node("x"), True)})) == {"m", "n"}
        assert drafted(*alerts, author="carol").put_claims("carol", {"n": node("x")})["n"].created

    def test_several_nodes_are_all_or_none_if_one_has_too_many(self) -> None:
        draft = drafted(*(claim(f"o{number}", node()) for number in range(MAX_CLAIMS)), author="anna")
        with pytest.raises(LimitError):
            draft.put_claims("new", {"m": node(node_id="m"), "n": node("x")})
        assert draft.changes == []


class TestUnblock:
    def test_it_removes_all_claims(self) -> None:
        draft = drafted(claim("anna", node("x")), claim("bob", node("y")))
        assert draft.unblock("n") == node("x,y")
        assert (log_of(draft), claims_in(draft)) == ([("unblocked", node("x,y"))], {})


class TestPutClaim:
    def test_a_claim_on_a_free_node_blocks_it(self) -> None:
        draft = drafted()
        assert draft.put_claim("alertmanager/1", node()) == (claim("alertmanager/1", node(), "anna"), node(), True)
        assert log_of(draft) == [("blocked", node())]
        assert claims_in(draft) == {"alertmanager/1": node()}

    def test_it_may_become_weaker_and_shorter_which_narrows_the_block(self) -> None:
        draft = drafted(claim("bob", node("x", action=EVACUATE)), claim("anna", node("y", end=150)))
        result = draft.put_claim("bob", node("z", end=120))
        assert (result.created, result.node) == (False, node("z,y", end=150))
        assert log_of(draft) == [("narrowed", node("z,y", end=150))]

    def test_it_keeps_its_start_and_repeating_it_changes_nothing(self) -> None:
        draft = drafted(claim("bob", node("x", start=5)))
        assert draft.put_claim("bob", node("x")).node == node("x", start=5)
        assert draft.changes == []
        assert draft.put_claim("bob", node("x", action=EVACUATE)).node == node("x", start=5, action=EVACUATE)
        assert log_of(draft)[0][0] == "merged"

    def test_an_ended_claim_is_created_anew(self) -> None:
        draft = drafted(claim("bob", node("x", start=5, end=NOW)), claim("anna", node("y", start=6)))
        assert draft.put_claim("bob", node("z")).created
        assert log_of(draft) == [("narrowed", node("y", start=6)), ("merged", node("y,z", start=6))]
        assert draft.changes[0].source is Source.TIME


class TestRemoveClaim:
    def test_others_keep_the_node_blocked(self) -> None:
        draft = drafted(claim("bob", node("x", action=EVACUATE)), claim("anna", node("y", end=150)))
        assert draft.remove_claim("n", "bob") == node("y", end=150)
        assert log_of(draft) == [("narrowed", node("y", end=150))]

    def test_the_last_one_frees_the_node(self) -> None:
        draft = drafted(claim("bob", node("x")), claim("anna", node("y", end=NOW)))
        draft.remove_claim("n", "bob")
        assert [kind for kind, _ in log_of(draft)] == ["narrowed", "unblocked"]
        assert draft.get("n") is None

    @pytest.mark.parametrize("owner", ["carol", "anna"])
    def test_an_owner_without_a_claim_is_not_found(self, owner: str) -> None:
        draft = drafted(claim("bob", node("x")), claim("anna", node("y", end=NOW)))
        with pytest.raises(NotFoundError, match=f"{owner} has no claim on node n"):
            draft.remove_claim("n", owner)
        assert draft.changes == []


class TestExpiry:
    @given(claim_sets, st.integers(5, 13))
    def test_the_claims_that_remain_are_as_if_the_others_had_never_existed(self, claims: list[Claim], now: int) -> None:
        draft = drafted(*claims, now=now)
        draft.expire("n")
        remaining = live_claims(tuple(claims), now)
        if not remaining:
            assert log_of(draft) == [("expired", replace(merge_claims(claims), canary=False))]
        elif len(remaining) == len(claims):
            assert draft.changes == []
        else:
            assert log_of(draft) == [("narrowed", merge_claims(remaining))]
            assert draft.changes[0].claims == remaining
            assert draft.changes[0].source is Source.TIME

    @given(claim_sets)
    def test_the_tracker_knows_when_the_next_claim_expires(self, claims: list[Claim]) -> None:
        nodes = {"n": merge_claims(claims)}
        tracker = BlocklistTracker(Snapshot(revision=7, history="00c0ffee", nodes=nodes, claims={"n": tuple(claims)}))
        first = min(it.block.end for it in claims)
        assert tracker.next_expiry() == first
        assert tracker.ended(first - 1) == []
        assert tracker.ended(first) == ([nodes["n"]] if first < PERMANENT else tracker.ended(first))


Step = tuple[str, str, str, int, str, BlockAction, bool]
steps = st.lists(
    st.tuples(
        st.sampled_from(["block", "merge", "unblock", "put", "remove", "expire"]),
        st.sampled_from(["n", "m"]),
        st.sampled_from(["anna", "bob", "carol"]),
        st.integers(1, 6),
        st.sampled_from("xyz"),
        st.sampled_from(BlockAction),
        st.booleans(),
    ),
    max_size=30,
)


def block_of(step: Step, now: int) -> BlockedNode:
    kind, node_id, _, length, cause, action, canary = step
    block = BlockedNode(id=node_id, action=action, start=now, end=now + length, cause=cause)
    return replace(block, canary=canary and kind == "put" and action is MARK)


def run(draft: Draft, step: Step) -> None:
    kind, node_id, owner, *_ = step
    draft.author = Author(owner)
    new = block_of(step, draft.now)
    if kind == "unblock":
        draft.unblock(node_id)
    elif kind == "remove":
        draft.remove_claim(node_id, owner)
    elif kind == "put":
        draft.author = Author("an operator")
        draft.put_claim(owner, new)
    elif kind == "expire":
        draft.expire(node_id)
    else:
        draft.block(new, allow_merge=kind == "merge")


@given(steps)
def test_any_changes_leave_a_tracker_with_the_merge_of_the_claims_of_a_plain_dict(steps: list[Step]) -> None:
    tracker = BlocklistTracker(Snapshot(revision=0, history="00c0ffee"))
    model: dict[str, dict[str, BlockedNode]] = {"n": {}, "m": {}}
    for now, step in enumerate(steps):
        for claims in model.values():
            for owner in [owner for owner, block in claims.items() if block.ended(now)]:
                del claims[owner]
        draft = Draft(tracker, now)
        try:
            run(draft, step)
        except BlocklistError:
            assert draft.changes == []
        else:
            apply_to(model[step[1]], step, now)
        for change in draft.changes:
            tracker.apply(change)
        for node_id, claims in model.items():
            assert live(tracker, node_id, now) == claims
            current = tracker.get(node_id)
            assert claims or current is None or current.ended(now)
            assert not claims or (current is not None and current.end == max(it.end for it in claims.values()))
            # When a claim has ended, its change may be yet to come: until then the block is as before.
            assert not current or not current.canary or all(it.canary for it in claims.values())


def apply_to(claims: dict[str, BlockedNode], step: Step, now: int) -> None:
    kind, _, owner, *_ = step
    new = block_of(step, now)
    if kind == "unblock":
        claims.clear()
    elif kind == "remove":
        del claims[owner]
    elif kind == "put":
        claims[owner] = replace(new, start=claims[owner].start if owner in claims else now)
    elif kind != "expire":
        claims[owner] = merge(claims[owner], new) if owner in claims else new


def live(tracker: BlocklistTracker, node_id: str, now: int) -> dict[str, BlockedNode]:
    current = tracker.get(node_id)
    found: Claims = () if current is None else claims_on(tracker, current, now)
    return {it.owner: it.block for it in found}


Puts = list[tuple[str, BlockedNode]]
puts = st.lists(st.tuples(st.sampled_from(OWNERS), blocks), max_size=6)


class Playground:
    """A list with the node "n", changed by drafts of one change each, as the service does it."""

    def __init__(self, now: int = 5) -> None:
        self.tracker = BlocklistTracker(Snapshot(revision=0, history="00c0ffee"))
        self.now = now

    def put(self, owner: str, block: BlockedNode) -> list[Change]:
        return self.change(lambda draft: draft.put_claim(owner, block))

    def remove(self, owner: str) -> list[Change]:
        return self.change(lambda draft: draft.remove_claim("n", owner))

    def sweep(self) -> list[Change]:
        return self.change(lambda draft: draft.expire("n"))

    def claims(self) -> dict[str, BlockedNode]:
        return live(self.tracker, "n", self.now)

    def node(self) -> BlockedNode | None:
        current = self.tracker.get("n")
        return None if current is None or current.ended(self.now) else current

    def change(self, command: Callable[[Draft], object]) -> list[Change]:
        draft = Draft(self.tracker, self.now)
        draft.author = Author("an operator")
        command(draft)
        for change in draft.changes:
            self.tracker.apply(change)
        return draft.changes


class TestAsIfNever:
    @given(puts, st.lists(blocks, min_size=1, max_size=3), st.data())
    def test_a_claim_that_was_put_and_removed_at_any_time_leaves_no_trace(
        self, others: Puts, own: list[BlockedNode], data: st.DataObject
    ) -> None:
        first = data.draw(st.integers(0, len(others)))
        removed = data.draw(st.integers(first, len(others)))
        with_own, without = Playground(), Playground()
        for at, (owner, block) in enumerate([*others, ("", node())]):
            if at == first:
                for claimed in own:
                    with_own.put("carol", claimed)
            if at == removed:
                with_own.remove("carol")
            if owner:
                with_own.put(owner, block)
                without.put(owner, block)
        assert (with_own.node(), with_own.claims()) == (without.node(), without.claims())


class TestCanary:
    """A canary is the weakest claim."""

    def types(self, *puts: tuple[str, BlockedNode]) -> list[str]:
        place = Playground()
        return [place.put(owner, block)[-1].type.value for owner, block in puts]

    def test_an_ordinary_claim_makes_it_an_ordinary_block_and_its_end_a_canary_again(self) -> None:
        place = Playground()
        place.put("detection", node(canary=True))
        place.put("anna", node("upgrade"))
        assert place.node() == node("disk,upgrade")
        (change,) = place.remove("anna")
        assert (change.type.value, change.node) == ("narrowed", node(canary=True))

    def test_becoming_ordinary_is_merged_and_the_reverse_narrowed(self) -> None:
        canary, ordinary = node(canary=True), node()
        assert self.types(("a", canary), ("a", ordinary), ("a", canary)) == ["blocked", "merged", "narrowed"]

    def test_a_merge_of_its_owner_without_a_canary_ends_it(self) -> None:
        place = Playground()
        place.put("an operator", node(canary=True, start=5))
        (change,) = place.change(lambda draft: draft.block(node(start=5), allow_merge=True))
        assert (change.type.value, change.node.canary, change.claims[0].block.canary) == ("merged", False, False)

    def test_a_change_that_frees_the_node_has_it_without_canary(self) -> None:
        place = Playground()
        place.put("detection", node(canary=True))
        (change,) = place.change(lambda draft: draft.unblock("n"))
        assert (change.node.canary, change.dismissed) == (
            False,
            (claim("detection", node(canary=True), "an operator"),),
        )
