"""Repeated automatic blocks: what counts as an earlier one, and how long the next one lasts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from blocklist.model.changes import Author, Snapshot, Source
from blocklist.model.claims import MAX_COUNTED, Claim, Repeat, RepeatRule
from blocklist.model.draft import BlocklistTracker, Draft
from blocklist.model.evidence import MAX_NODES, AutomaticBlock, AutomaticBlocks
from blocklist.model.node import BlockAction, BlockedNode
from tests.unit.counting import count_calls

HOUR: Final = 3_600_000
DAY: Final = 24 * HOUR
RULE: Final = RepeatRule(window=30 * DAY, max_duration=7 * DAY)
ALERT: Final = Author("prometheus", Source.ALERTMANAGER)
EVIDENCE: Final = Author("evidence", Source.EVIDENCE)
ANNA: Final = Author("anna")


class Blocklist:
    """A list whose automatic blocks are followed."""

    def __init__(
        self,
        rule: RepeatRule = RULE,
        aliases: dict[str, Collection[str]] | None = None,
        stored: dict[int, tuple[str, AutomaticBlock]] | None = None,
    ) -> None:
        self.now = 1_000 * DAY
        self.stored = {} if stored is None else stored
        known = aliases or {}
        self.aliases = lambda name: known.get(name, ())
        self.tracker = BlocklistTracker(Snapshot(revision=0, history="00000000"), self.aliases)
        self.rule = rule
        self.blocks = AutomaticBlocks(rule, self.aliases)

    def draft(self, author: Author) -> Draft:
        draft = Draft(self.tracker, self.now)
        draft.author = author
        return draft

    def commit(self, draft: Draft) -> None:
        for change in draft.changes:
            self.tracker.apply(change)
        rows = self.blocks.rows(draft.changes)
        self.stored |= {block.revision: (node_id, block) for node_id, block in rows.put}
        for revision in rows.removed:
            del self.stored[revision]
        self.blocks.apply(draft.changes)

    def block(self, node_id: str = "n1", author: Author = EVIDENCE, *, owner: str | None = None) -> None:
        draft = self.draft(author)
        node = BlockedNode(id=node_id, action=BlockAction.MARK_BLOCKED, start=0, end=self.now + HOUR, cause="hot")
        if owner is None:
            draft.block(node, allow_merge=True)
        else:
            draft.change_claims(node_id, [Claim(owner=owner, author=author.name, block=node)], ())
        self.commit(draft)

    def unblock(self, node_id: str = "n1", author: Author = ALERT) -> None:
        draft = self.draft(author)
        draft.unblock(node_id)
        self.commit(draft)

    def expire(self, node_id: str = "n1") -> None:
        node = self.tracker.get(node_id)
        assert node is not None
        self.now = max(self.now, node.end) + 500
        draft = self.draft(ANNA)
        draft.expire(node_id)
        self.commit(draft)

    def block_and_expire(self, times: int = 1, node_id: str = "n1") -> None:
        for _ in range(times):
            self.block(node_id)
            self.expire(node_id)

    def number(self, node_id: str = "n1") -> int:
        """The number of the next automatic block."""
        repeat = self.blocks.repeat(self.tracker, node_id, HOUR, self.now)
        return 1 if repeat is None else repeat.number


@given(usual=st.integers(1, 10 * DAY), earlier=st.integers(0, 100), maximum=st.integers(1, 30 * DAY))
def test_each_earlier_block_doubles_the_duration_up_to_the_maximum(usual: int, earlier: int, maximum: int) -> None:
    duration = RepeatRule(window=DAY, max_duration=maximum).duration(usual, earlier)
    assert duration == max(usual, min(usual * 2**earlier, maximum))


# At the end the first block is as old as the window.
@example(gaps=[0, RULE.window - 2 * (HOUR + 500)])
@given(gaps=st.lists(st.integers(0, 20 * DAY), max_size=8))
def test_the_blocks_within_the_window_count_and_no_others(gaps: list[int]) -> None:
    blocklist, begins = Blocklist(), []
    for gap in gaps:
        blocklist.now += gap
        begins.append(blocklist.now)
        blocklist.block_and_expire()
    assert blocklist.number() == 1 + sum(begin > blocklist.now - RULE.window for begin in begins)


@given(names=st.lists(st.sampled_from(["n1", "N1", "n1.example.com", "10.0.0.1"]), max_size=6), data=st.data())
def test_the_names_of_the_machine_do_not_matter(names: list[str], data: st.DataObject) -> None:
    names_of_it = ["n1", "n1.example.com", "10.0.0.1"]
    known: dict[str, Collection[str]] = dict.fromkeys((*names_of_it, "N1"), names_of_it)
    numbers = []
    for order in (names, data.draw(st.permutations(names))):
        blocklist = Blocklist(aliases=known)
        for name in order:
            blocklist.block_and_expire(node_id=name)
        numbers += [blocklist.number(name) for name in ("n1", "N1", "n1.example.com", "10.0.0.1")]
    assert set(numbers) == {1 + len(names)}


def test_a_short_name_does_not_mean_one_of_several_machines() -> None:
    blocklist = Blocklist()
    blocklist.block_and_expire(node_id="n1.a")
    blocklist.block_and_expire(node_id="n1.b")
    assert [blocklist.number(name) for name in ("n1", "n1.a", "n1.b", "n2")] == [1, 2, 2, 1]


class TestWhatCounts:
    @pytest.mark.parametrize("owner", ["alertmanager/809c736d", "evidence", "detection"])
    def test_a_block_by_an_automatic_owner(self, owner: str) -> None:
        blocklist = Blocklist()
        blocklist.block(author=ANNA, owner=owner)
        blocklist.expire()
        assert blocklist.number() == 2

    @pytest.mark.parametrize("owner", [None, "anna", "kernel-upgrade", "detections", "listener/app-1"])
    def test_no_block_by_anybody_else(self, owner: str | None) -> None:
        blocklist = Blocklist()
        blocklist.block(author=ANNA, owner=owner)
        blocklist.expire()
        assert blocklist.number() == 1

    def test_no_renewal_and_no_further_reason_for_the_same_block(self) -> None:
        blocklist = Blocklist()
        blocklist.block(author=ALERT, owner="alertmanager/a")
        blocklist.now += HOUR // 2
        blocklist.block(author=ALERT, owner="alertmanager/a")
        blocklist.block()
        assert blocklist.number() == 1
        blocklist.expire()
        assert blocklist.number() == 2

    def test_an_alert_that_resolves_and_fires_again_is_a_further_block(self) -> None:
        blocklist = Blocklist()
        for _ in range(3):
            blocklist.block(author=ALERT, owner="alertmanager/a")
            blocklist.now += 60_000
            blocklist.unblock()
        assert blocklist.number() == 4

    def test_a_block_that_was_unblocked_by_hand_was_wrong(self) -> None:
        blocklist = Blocklist()
        blocklist.block_and_expire(2)
        blocklist.block()
        blocklist.unblock(author=ANNA)
        assert blocklist.number() == 3

    def test_a_block_whose_end_has_passed_before_that_is_recorded(self) -> None:
        blocklist = Blocklist()
        blocklist.block()
        blocklist.now += HOUR
        assert blocklist.number() == 2

    def test_what_the_draft_and_those_below_it_have_changed(self) -> None:
        blocklist = Blocklist()
        draft = blocklist.draft(EVIDENCE)
        node = BlockedNode(id="n1", action=BlockAction.MARK_BLOCKED, start=0, end=blocklist.now + 1, cause="hot")
        for _ in range(2):
            draft.block(node, allow_merge=False)
            draft.author = ALERT
            draft.unblock("N1")
            draft.author = EVIDENCE
        fork = draft.fork()
        fork.block(node, allow_merge=False)
        fork.author = ALERT
        fork.unblock("n1")
        counts = [blocklist.blocks.repeat(it, "n1", HOUR, blocklist.now) for it in (draft, fork, fork.fork())]
        assert [it and it.number for it in counts] == [3, 4, 4]


def test_it_is_the_same_after_a_start_from_the_stored_blocks() -> None:
    stored: dict[int, tuple[str, AutomaticBlock]] = {}
    blocklist = Blocklist(stored=stored)
    blocklist.block_and_expire(3)
    blocklist.block("n2")
    blocklist.unblock("n2", ANNA)
    blocklist.block()
    restarted = AutomaticBlocks(RULE)
    restarted.reset(found for _, found in sorted(stored.items()))
    assert restarted._by_node == blocklist.blocks._by_node
    restarted.reset(())
    assert restarted.repeat(blocklist.tracker, "n1", HOUR, blocklist.now) is None


class TestContinuing:
    """A block for an event that had one before is the same block."""

    def block_again(self, blocklist: Blocklist, owner: str = "alertmanager/a") -> None:
        draft = blocklist.draft(ALERT)
        end = blocklist.now + HOUR
        node = BlockedNode(id="n1", action=BlockAction.MARK_BLOCKED, start=0, end=end, cause="hot")
        draft.change_claims("n1", [Claim(owner=owner, author="am", block=node, continues=True)], ())
        blocklist.commit(draft)

    def test_it_counts_once_however_often_its_claim_expires(self) -> None:
        blocklist = Blocklist()
        blocklist.block(owner="alertmanager/a")
        for _ in range(5):
            blocklist.expire()
            again = blocklist.blocks.repeat(blocklist.tracker, "n1", HOUR, blocklist.now, continues=True)
            assert again is None, "as long as the first"
            self.block_again(blocklist)
        blocklist.expire()
        assert blocklist.number() == 2

    def test_it_was_wrong_if_somebody_unblocks_the_node(self) -> None:
        blocklist = Blocklist()
        blocklist.block(owner="alertmanager/a")
        blocklist.expire()
        self.block_again(blocklist)
        blocklist.unblock(author=ANNA)
        assert blocklist.number() == 1

    def test_without_a_block_before_it_is_the_first(self) -> None:
        blocklist = Blocklist()
        self.block_again(blocklist)
        blocklist.expire()
        assert blocklist.number() == 2


def test_a_window_of_0_disables_it() -> None:
    blocklist = Blocklist(replace(RULE, window=0))
    blocklist.block_and_expire(3)
    assert blocklist.number() == 1


class TestBounds:
    def test_of_a_node_the_last_blocks_are_kept(self) -> None:
        blocklist = Blocklist()
        blocklist.block_and_expire(MAX_COUNTED + 5)
        assert blocklist.number() == MAX_COUNTED + 1
        assert len(blocklist.blocks._by_node["n1"]) == MAX_COUNTED

    def test_the_nodes_blocked_longest_ago_are_forgotten(self) -> None:
        blocklist = Blocklist()
        for number in range(MAX_NODES + 1):
            blocklist.block(f"n{number}")
        assert len(blocklist.blocks._by_node) == MAX_NODES
        assert "n0" not in blocklist.blocks._by_node

    def test_a_node_is_found_without_reading_all_others(self) -> None:
        blocklist = Blocklist()
        blocklist.block_and_expire()
        for number in range(2, 1000):
            blocklist.block(f"n{number}")
        assert count_calls(blocklist.number) < 200


@pytest.mark.parametrize(
    ("number", "duration", "text"),
    [
        (3, 4 * HOUR, "third automatic block in 30 days: 4h instead of 1h"),
        (2, HOUR, "second automatic block in 30 days"),
        (9, 7 * DAY, "ninth automatic block in 30 days: 7 days instead of 1h"),
        (11, DAY, "11th automatic block in 30 days: 1 day instead of 1h"),
        (22, DAY, "22nd automatic block in 30 days: 1 day instead of 1h"),
    ],
)
def test_a_repeat_is_described_in_a_sentence(number: int, duration: int, text: str) -> None:
    assert str(Repeat(number=number, window=30 * DAY, usual=HOUR, duration=duration)) == text
