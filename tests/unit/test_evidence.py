"""The rules of evidence: how long it holds, who is believed, and when a node is blocked by it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocklist.model.changes import Snapshot
from blocklist.model.draft import Draft
from blocklist.model.errors import InvalidError
from blocklist.model.evidence import (
    HOLD,
    MAX_KEPT,
    MAX_REASON,
    Evidence,
    EvidenceBook,
    Finding,
    Kind,
    Rule,
    Verdict,
    blocks,
    cause_in,
    doubt,
)
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode, merge
from blocklist.model.tracker import BlocklistTracker

NOW = 1_000_000
EXCLUDED = Finding(kind=Kind.EXCLUDED, reason="Spark excluded the host.")
SLOW = Finding(kind=Kind.SLOW, reason="Slow, very slow.")
HOSTS = frozenset({"a", "b", "c", "d", "e"})


def book(
    applications: int = 2, window: int = HOLD, nodes_of: Callable[[str], Collection[str]] = lambda _: HOSTS
) -> EvidenceBook:
    return EvidenceBook(Rule(applications=applications, window=window), nodes_of)


def said(book: EvidenceBook, now: int) -> list[tuple[str, str]]:
    return [(own.evidence.node, own.evidence.application) for own in book.listed(now)]


def convicted(book: EvidenceBook, now: int) -> list[str]:
    return [verdict.node for verdict in book.verdicts(now)]


def believed(book: EvidenceBook, now: int) -> list[bool]:
    return [own.doubt is None for own in book.listed(now)]


class TestHolding:
    """A piece of evidence holds for a minute from when it was last said."""

    def test_it_ends_after_the_minute_exactly(self) -> None:
        it = book()
        it.say("app", {"a": EXCLUDED}, NOW)
        assert said(it, NOW + HOLD - 1) == [("a", "app")]
        assert said(it, NOW + HOLD) == []

    def test_saying_it_again_renews_it_and_leaving_it_out_does_not(self) -> None:
        it = book()
        it.say("app", {"a": EXCLUDED, "b": EXCLUDED}, NOW)
        it.say("app", {"a": EXCLUDED}, NOW + 10)
        (a, b) = (own.evidence for own in it.listed(NOW + 20))
        assert (a.node, a.first_seen, a.last_seen) == ("a", NOW, NOW + 10)
        assert (b.node, b.first_seen, b.last_seen) == ("b", NOW, NOW)

    def test_what_had_ended_is_new_when_it_is_said_again(self) -> None:
        it = book()
        it.say("app", {"a": EXCLUDED}, NOW)
        it.say("app", {"a": EXCLUDED}, NOW + HOLD)
        (a,) = it.listed(NOW + HOLD)
        assert a.evidence.first_seen == NOW + HOLD

    def test_another_kind_is_new_and_another_sentence_is_not(self) -> None:
        it = book()
        it.say("app", {"a": EXCLUDED}, NOW)
        it.say("app", {"a": Finding(kind=Kind.EXCLUDED, reason="Worse.")}, NOW + 1)
        assert it.listed(NOW + 1)[0].evidence.first_seen == NOW
        it.say("app", {"a": SLOW}, NOW + 2)
        assert it.listed(NOW + 2)[0].evidence.first_seen == NOW + 2

    def test_who_leaves_takes_it_along(self) -> None:
        it = book()
        it.say("app", {"a": EXCLUDED}, NOW)
        it.forget("app")
        it.forget("app")
        assert (said(it, NOW), len(it)) == ([], 0)

    def test_it_is_listed_by_node_and_application(self) -> None:
        it = book()
        it.say("z", {"b": EXCLUDED, "a": SLOW}, NOW)
        it.say("y", {"b": EXCLUDED}, NOW)
        assert said(it, NOW) == [("a", "z"), ("b", "y"), ("b", "z")]

    def test_a_longer_window_keeps_it_longer(self) -> None:
        it = book(window=3 * HOLD)
        it.say("app", {"a": EXCLUDED}, NOW)
        assert said(it, NOW + 3 * HOLD - 1) == [("a", "app")]
        assert said(it, NOW + 3 * HOLD) == []

    def test_of_one_application_so_much_is_kept(self) -> None:
        it = book()
        it.say("app", {"first": EXCLUDED}, NOW)
        it.say("app", {f"n{number}": EXCLUDED for number in range(MAX_KEPT)}, NOW + 1)
        assert len(it) == MAX_KEPT
        assert ("first", "app") not in said(it, NOW + 1)

    def test_nothing_stays_behind(self) -> None:
        it = book()
        it.say("app", {"a": EXCLUDED}, NOW)
        it.unblocked("a", NOW)
        it.turn(NOW + HOLD)
        assert (len(it), it._unblocked) == (0, {})

    @pytest.mark.parametrize("reason", ["", "x" * (MAX_REASON + 1), "two\nlines", "\ud800"])
    def test_a_reason_is_a_sentence(self, reason: str) -> None:
        with pytest.raises(InvalidError):
            Finding(kind=Kind.SLOW, reason=reason)


class TestTelling:
    """Of two books either may have heard what the other did not; by telling they come to say the same."""

    def told(self, one: EvidenceBook, other: EvidenceBook) -> list[tuple[str, str, int, int]]:
        other.know("app", one.of("app"))
        one.know("app", other.of("app"))
        assert one.listed(NOW) == other.listed(NOW)
        pieces = [own.evidence for own in one.listed(NOW)]
        return [(e.node, e.finding.reason, e.first_seen - NOW, e.last_seen - NOW) for e in pieces]

    def test_who_missed_what_was_said_first_knows_since_when_it_is_said(self) -> None:
        one, other = book(), book()
        one.say("app", {"a": EXCLUDED}, NOW)
        one.say("app", {"a": EXCLUDED}, NOW + 10)
        assert self.told(one, other) == [("a", EXCLUDED.reason, 0, 10)]

    def test_who_missed_what_is_said_no_more_knows_it_as_long_as_it_holds(self) -> None:
        one, other = book(), book()
        one.say("app", {"a": EXCLUDED}, NOW)
        one.say("app", {"b": SLOW}, NOW + 10)
        assert self.told(one, other) == [("a", EXCLUDED.reason, 0, 0), ("b", SLOW.reason, 10, 10)]

    @pytest.mark.parametrize("later", [10, HOLD - 1])
    def test_what_each_heard_a_part_of_is_joined(self, later: int) -> None:
        one, other = book(), book()
        one.say("app", {"a": EXCLUDED}, NOW)
        other.say("app", {"a": Finding(kind=Kind.EXCLUDED, reason="Worse.")}, NOW + later)
        assert self.told(one, other) == [("a", "Worse.", 0, later)]

    @pytest.mark.parametrize(("later", "finding"), [(HOLD, EXCLUDED), (10, SLOW)])
    def test_after_a_gap_and_of_another_kind_it_is_new(self, later: int, finding: Finding) -> None:
        one, other = book(), book()
        one.say("app", {"a": EXCLUDED}, NOW)
        other.say("app", {"a": finding}, NOW + later)
        assert self.told(one, other) == [("a", finding.reason, later, later)]

    def test_what_is_told_again_changes_nothing(self) -> None:
        one, other = book(), book()
        one.say("app", {"a": EXCLUDED, "b": SLOW}, NOW)
        assert self.told(one, other) == self.told(one, other)

    def test_so_much_is_kept(self) -> None:
        one, other = book(), book()
        one.say("app", {"first": EXCLUDED}, NOW)
        other.say("app", {f"n{number}": EXCLUDED for number in range(MAX_KEPT)}, NOW + 1)
        one.know("app", other.of("app"))
        assert one.of("app") == other.of("app")


class TestEnough:
    """So many distinct applications must say so within the window."""

    def test_one_application_is_not_enough_however_often_it_says_so(self) -> None:
        it = book()
        for moment in range(5):
            it.say("app", {"a": EXCLUDED}, NOW + moment)
        assert convicted(it, NOW + 5) == []

    def test_two_are_whatever_their_kinds(self) -> None:
        it = book()
        it.say("x", {"a": EXCLUDED, "b": EXCLUDED}, NOW)
        it.say("y", {"a": SLOW}, NOW + 5)
        assert [(own.node, own.end) for own in it.verdicts(NOW + 5)] == [("a", NOW + 5 + HOLD)]

    @pytest.mark.parametrize(("applications", "expected"), [(0, []), (1, ["a"]), (3, ["a"]), (4, [])])
    def test_how_many_is_a_setting_and_0_is_never(self, applications: int, expected: list[str]) -> None:
        it = book(applications)
        for own in "xyz":
            it.say(own, {"a": EXCLUDED}, NOW)
        assert convicted(it, NOW) == expected

    @pytest.mark.parametrize(("later", "expected"), [(9_999, ["a"]), (10_000, [])])
    def test_outside_the_window_it_does_not_count(self, later: int, expected: list[str]) -> None:
        it = book(window=10_000)
        it.say("x", {"a": EXCLUDED}, NOW)
        it.say("y", {"a": EXCLUDED}, NOW + later)
        assert convicted(it, NOW + later) == expected

    def test_who_has_left_does_not_count(self) -> None:
        it = book()
        for own in "xy":
            it.say(own, {"a": EXCLUDED}, NOW)
        it.forget("x")
        assert convicted(it, NOW) == []


class TestBelief:
    """Who finds fault with most hosts is himself at fault."""

    @pytest.mark.parametrize(
        ("named", "has", "trusted"),
        [
            ("", "", True),
            ("a", "", True),
            ("a", "a", True),
            ("ab", "", False),
            ("ab", "ab", False),
            ("ab", "abc", False),
            ("ab", "abcd", True),
            ("abc", "abcde", False),
            ("xy", "abc", True),
            ("xy", "a", False),
            ("xyz", "abc", True),
        ],
    )
    def test_more_than_half_and_two_is_too_many(self, named: str, has: str, trusted: bool) -> None:
        assert (doubt(named, has) is None) == trusted

    def test_its_other_evidence_counts_for_nothing_and_counts_again_when_it_has_calmed_down(self) -> None:
        it = book(nodes_of=lambda _: {"a", "b", "c"})
        it.say("x", {"a": EXCLUDED}, NOW)
        it.say("y", {"a": EXCLUDED, "b": EXCLUDED}, NOW)
        assert believed(it, NOW) == [True, False, False]
        assert it.listed(NOW)[1].doubt == "The application says so of 2 of its 3 nodes: it is believed of none."
        assert convicted(it, NOW) == []
        for own in "xy":
            it.say(own, {"a": EXCLUDED}, NOW + HOLD - 1)
        assert convicted(it, NOW + HOLD - 1) == []
        assert convicted(it, NOW + HOLD) == ["a"]

    def test_accusing_one_after_the_other_is_accusing_all(self) -> None:
        it = book(applications=1, nodes_of=lambda _: {"a", "b", "c"})
        it.say("x", {"a": EXCLUDED}, NOW)
        assert convicted(it, NOW) == ["a"]
        it.say("x", {"b": EXCLUDED}, NOW + 1)
        assert convicted(it, NOW + 1) == []

    @given(st.sets(st.sampled_from("abcdef")), st.sets(st.sampled_from("abcdef")))
    def test_who_says_so_of_half_or_less_of_what_it_has_is_believed(self, named: set[str], has: set[str]) -> None:
        if len(named) >= 2 and 2 * len(named & has) > len(has):
            assert doubt(named, has) is not None
        if 2 * len(named) <= len(has):
            assert doubt(named, has) is None


class TestUnblocking:
    """What somebody unblocked by hand is blocked again by what is new, and by nothing else."""

    def test_what_was_said_before_counts_no_more_as_long_as_it_lasts(self) -> None:
        it = book()
        for moment in (NOW, NOW + 30_000, NOW + 60_000, NOW + 90_000):
            for own in "xy":
                it.say(own, {"a": EXCLUDED}, moment)
            it.unblocked("a", NOW)
            it.turn(moment)
            assert convicted(it, moment) == []
        assert it.listed(NOW + 90_000)[0].doubt == "The node was unblocked by hand after this was first said."

    def test_new_evidence_counts(self) -> None:
        it = book()
        for own in "xy":
            it.say(own, {"a": EXCLUDED}, NOW)
        it.unblocked("a", NOW + 1)
        it.say("v", {"a": EXCLUDED}, NOW + 2)
        assert convicted(it, NOW + 2) == []
        it.say("w", {"a": EXCLUDED}, NOW + 2)
        assert [own.application for own in it.verdicts(NOW + 2)[0].evidence] == ["v", "w"]

    def test_other_nodes_are_not_concerned(self) -> None:
        it = book()
        for own in "xy":
            it.say(own, {"a": EXCLUDED, "b": EXCLUDED}, NOW)
        it.unblocked("a", NOW)
        assert convicted(it, NOW) == ["b"]

    def test_a_moment_to_come_covers_what_is_said_until_then(self) -> None:
        """After a restart nobody knows what is new."""
        it = book()
        it.unblocked("a", NOW + 1000)
        it.turn(NOW)
        for own in "xy":
            it.say(own, {"a": EXCLUDED}, NOW + 1000)
        it.turn(NOW + 1001)
        assert convicted(it, NOW + 1001) == []


def verdict(node: str = "a", at: int = NOW, applications: int = 2, finding: Finding = EXCLUDED) -> Verdict:
    evidence = tuple(
        Evidence(application=f"app-{number}", node=node, finding=finding, first_seen=at, last_seen=at)
        for number in range(1, applications + 1)
    )
    return Verdict(node=node, end=at + HOLD, evidence=evidence)


def tracker(*nodes: BlockedNode) -> BlocklistTracker:
    return BlocklistTracker(Snapshot(revision=7, history="00000000", nodes={node.id: node for node in nodes}))


def node(cause: str = "Hot", *, end: int = PERMANENT, action: BlockAction = BlockAction.MARK_BLOCKED) -> BlockedNode:
    return BlockedNode(id="a", action=action, start=NOW - 1, end=end, cause=cause)


SAID = "2 applications say so: app-1 (Spark excluded the host); app-2 (Spark excluded the host)"


class TestBlocks:
    """The block that a verdict makes."""

    def test_it_marks_for_a_minute_from_when_it_was_last_said(self) -> None:
        (made,) = blocks([verdict()], tracker(), NOW + 10)
        assert made == BlockedNode(id="a", action=BlockAction.MARK_BLOCKED, start=NOW + 10, end=NOW + HOLD, cause=SAID)

    def test_a_verdict_that_has_run_out_makes_none(self) -> None:
        assert blocks([verdict()], tracker(), NOW + HOLD) == []

    def test_a_renewal_comes_in_the_last_half_and_says_the_same_cause(self) -> None:
        present = node(f"Hot,{SAID}", end=NOW + HOLD)
        later = verdict(at=NOW + HOLD // 2, applications=5)
        assert blocks([later], tracker(present), NOW + HOLD // 2 - 1) == []
        (renewal,) = blocks([later], tracker(present), NOW + HOLD // 2)
        assert (renewal.cause, renewal.end) == (SAID, NOW + HOLD // 2 + HOLD)
        assert merge(present, renewal).cause == present.cause

    def test_somebody_else_s_block_learns_of_it_once(self) -> None:
        present = node(action=BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS)
        (made,) = blocks([verdict()], tracker(present), NOW)
        merged = merge(present, made)
        assert (merged.action, merged.end, merged.cause) == (present.action, PERMANENT, f"Hot,{SAID}")
        assert blocks([verdict()], tracker(merged), NOW) == []

    def test_a_block_that_has_ended_is_none(self) -> None:
        (made,) = blocks([verdict(finding=SLOW)], tracker(node(SAID, end=NOW)), NOW)
        assert made.cause == "2 applications say so: app-1 (Slow; very slow); app-2 (Slow; very slow)"

    @pytest.mark.parametrize(
        ("applications", "ends"),
        [
            (1, "1 application says so: app-1 (Spark excluded the host)"),
            (3, "; app-3 (Spark excluded the host)"),
            (5, "; app-3 (Spark excluded the host); and 2 more"),
        ],
    )
    def test_a_cause_names_three(self, applications: int, ends: str) -> None:
        (made,) = blocks([verdict(applications=applications)], tracker(), NOW)
        assert made.cause.endswith(ends)
        assert cause_in(made, NOW) == made.cause

    @given(st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1, max_size=MAX_REASON))
    def test_a_cause_is_one_part_of_bounded_length_whatever_was_said(self, reason: str) -> None:
        (made,) = blocks([verdict(applications=3, finding=Finding(kind=Kind.SLOW, reason=reason))], tracker(), NOW)
        assert len(made.cause) < 700
        assert "," not in made.cause


moments = st.lists(
    st.tuples(
        st.integers(0, 40_000),
        st.sampled_from(["x", "y", "z"]),
        st.one_of(st.just("unblock"), st.sets(st.sampled_from(["a", "b"]))),
    ),
    max_size=30,
)


@given(moments)
def test_however_it_goes_a_block_has_enough_new_evidence_of_trusted_applications(
    moments: list[tuple[int, str, str | set[str]]],
) -> None:
    """Against a plain reading of the rule: the moments at which each application named a node."""
    it, now = book(), NOW
    named: dict[tuple[str, str], int] = {}
    began: dict[tuple[str, str], int] = {}
    unblocked = 0
    draft = Draft(tracker(), now)
    for passed, application, what in moments:
        now += passed
        draft.now = now
        if what == "unblock":
            it.unblocked("a", now)
            unblocked = now
            if draft.blocked("a"):
                draft.unblock("a")
        else:
            for each in what:
                if now - named.get((application, each), -HOLD) >= HOLD:
                    began[application, each] = now
                named[application, each] = now
            it.say(application, dict.fromkeys(what, EXCLUDED), now)
        it.turn(now)
        for wanted in blocks(it.verdicts(now), draft, now):
            draft.block(wanted, allow_merge=True)
        _check(draft.blocked("a"), named, began, unblocked, now)


def _check(
    blocked: BlockedNode | None,
    named: Mapping[tuple[str, str], int],
    began: Mapping[tuple[str, str], int],
    unblocked: int,
    now: int,
) -> None:
    saying = [
        own for own in "xyz" if now - named.get((own, "a"), -HOLD) < HOLD and began.get((own, "a"), 0) > unblocked
    ]
    if len(saying) >= 2:
        assert blocked is not None
        assert blocked.cause.count("say so") == 1
        assert now < blocked.end <= max(named[own, "a"] for own in saying) + HOLD
