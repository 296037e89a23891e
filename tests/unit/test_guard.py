"""Guard rails: what is refused with which sentence, and that nothing gets past them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.limits import Guard
from app.settings import Settings
from blocklist.model.changes import Author, ChangeType, Snapshot, Source
from blocklist.model.draft import Draft
from blocklist.model.errors import ConflictError, LimitError
from blocklist.model.limits import LEEWAY, Limits, Present, check, duration
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode
from blocklist.model.roles import Access
from blocklist.model.tracker import BlocklistTracker
from blocklist.model.usable_nodes import NodeSet, Using, below, node_set

NOW: Final = 1000
DAY: Final = 86_400_000
MARK, EVACUATE = BlockAction.MARK_BLOCKED, BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS


def node(node_id: str, *, end: int = PERMANENT, action: BlockAction = MARK, cause: str = "disk") -> BlockedNode:
    return BlockedNode(id=node_id, action=action, start=500, end=end, cause=cause)


def listed(*nodes: BlockedNode) -> BlocklistTracker:
    return BlocklistTracker(Snapshot(revision=7, history="00c0ffee", nodes={n.id: n for n in nodes}))


def using(minimum: int, *nodes: str, own: str = "jm") -> Using:
    return Using(id=own, nodes=NodeSet(nodes), minimum=minimum)


class Case:
    """What is there (node -> who blocked it), and what happens when more is asked for."""

    def __init__(
        self,
        limits: Limits,
        there: Mapping[str, str | None] | None = None,
        *listeners: Using,
        known: NodeSet | None = None,
        nodes: tuple[BlockedNode, ...] = (),
    ) -> None:
        self.limits = limits
        self.authors = dict(there or {})
        tracker = listed(*nodes, *(node(own) for own in self.authors if own not in {n.id for n in nodes}))
        draft = Draft(tracker, NOW)
        self.present = Present(draft=draft, author_of=self.authors.get, listeners=listeners, known=known)

    def block(self, *nodes: BlockedNode, access: Access = Access.OPERATOR, by: str | None = "ops") -> list[str]:
        """The sentences of the refusal; none where it passes."""
        trial = self.present.draft.trial()
        trial.author = Author(by)
        for own in nodes:
            trial.block(own, allow_merge=True)
        try:
            check(self.limits, self.present, trial, access)
        except LimitError as error:
            return list(error.lines)
        return []


class TestMostNodes:
    """BLOCKLIST_MAX_BLOCKED."""

    @pytest.mark.parametrize(
        ("there", "new", "room"),
        [
            (0, 2, None),
            (1, 1, None),
            (0, 3, "2 more are possible"),
            (1, 2, "1 more is possible"),
            (2, 1, "no more is possible"),
            (4, 1, "no more is possible"),
        ],
    )
    def test_the_sentence_says_what_is_there_and_what_is_possible(self, there: int, new: int, room: str | None) -> None:
        sentence = (
            f"This would block {there + new} nodes; at most 2 may be blocked at once (BLOCKLIST_MAX_BLOCKED): {room}."
        )
        case = Case(Limits(blocked=2), {f"old-{n}": "x" for n in range(there)})
        assert case.block(*(node(f"new-{n}") for n in range(new))) == ([] if room is None else [sentence])

    def test_what_is_blocked_already_may_be_blocked_for_longer_and_stronger(self) -> None:
        case = Case(Limits(blocked=1), nodes=(node("a", end=2000), node("b", end=2000)))
        assert case.block(node("a", end=3000, action=EVACUATE, cause="hot"), node("b")) == []

    def test_a_node_whose_end_has_passed_is_a_new_one_and_does_not_count(self) -> None:
        case = Case(Limits(blocked=1), nodes=(node("a", end=NOW), node("b", end=NOW)))
        assert case.block(node("a")) == []
        assert case.block(node("a"), node("b")) != []

    def test_without_limits_everything_passes(self) -> None:
        assert not Limits()
        assert Case(Limits()).block(*(node(f"n{n}") for n in range(1000)), access=Access.OPERATOR, by=None) == []


class TestShare:
    """BLOCKLIST_MAX_BLOCKED_SHARE."""

    KNOWN: Final = NodeSet(f"n{number}.example.com" for number in range(10))

    def test_only_known_nodes_count(self) -> None:
        case = Case(Limits(share=0.2), {"n0": "x", "elsewhere": "x"}, known=self.KNOWN)
        assert case.block(node("N1")) == []
        assert case.block(node("n1"), node("gone"), node("other")) == []
        assert case.block(node("n1"), node("n2.example.com")) == [
            (
                "This would block 3 of the 10 known nodes; at most 2 may be blocked at once"
                " (BLOCKLIST_MAX_BLOCKED_SHARE is 0.2): 1 more is possible."
            )
        ]

    def test_a_node_by_another_of_its_names_is_no_other_node(self) -> None:
        case = Case(Limits(share=0.1), {"n0": "x"}, known=self.KNOWN)
        assert case.block(node("n0.example.com"), node("N0")) == []

    def test_more_than_the_share_may_stay_but_not_grow(self) -> None:
        case = Case(Limits(share=0.1), {"n0": "x", "n1": "x"}, known=self.KNOWN)
        assert case.block(node("n0", action=EVACUATE)) == []
        assert case.block(node("n2")) != []

    @pytest.mark.parametrize(("share", "known", "most"), [(0.29, 100, 29), (0.999, 10, 9), (0.1, 9, 0), (1 / 3, 3, 0)])
    def test_it_is_rounded_down(self, share: float, known: int, most: int) -> None:
        case = Case(Limits(share=share), known=NodeSet(f"n{number}" for number in range(known)))
        nodes = [node(f"n{number}") for number in range(known)]
        assert case.block(*nodes[:most]) == []
        assert case.block(*nodes[: most + 1]) != []

    def test_where_nobody_names_his_nodes_there_is_no_share(self) -> None:
        assert Case(Limits(share=0.01)).block(node("a"), node("b")) == []


class TestAuthor:
    """BLOCKLIST_MAX_BLOCKED_BY_AUTHOR."""

    def test_each_author_has_his_own(self) -> None:
        case = Case(Limits(by_author=2), {"a": "ops", "b": "night", "c": None})
        assert case.block(node("d")) == []
        assert case.block(node("d"), node("e")) == [
            (
                "This would be 3 nodes blocked by ops; one author may block at most 2"
                " (BLOCKLIST_MAX_BLOCKED_BY_AUTHOR): 1 more is possible."
            )
        ]

    def test_those_without_a_name_are_one(self) -> None:
        case = Case(Limits(by_author=2), {"a": "ops", "b": None, "c": None})
        assert case.block(node("d"), by=None) == [
            (
                "This would be 3 nodes blocked by authors without a name; one author may block at most 2"
                " (BLOCKLIST_MAX_BLOCKED_BY_AUTHOR): no more is possible."
            )
        ]

    def test_somebody_else_s_block_is_one_s_own_when_one_lengthens_it(self) -> None:
        nodes = (node("a", end=2000), node("b", end=2000), node("c", end=2000))
        case = Case(Limits(by_author=1), {"a": "ops", "b": "night", "c": "night"}, nodes=nodes)
        assert case.block(node("a")) == []
        assert case.block(node("b")) != []
        assert case.block(node("b", end=1500, cause="more")) == []

    def test_what_the_same_transaction_blocked_before_counts(self) -> None:
        case = Case(Limits(by_author=1))
        case.present.draft.author = Author("ops")
        case.present.draft.block(node("a"), allow_merge=False)
        assert case.block(node("b")) != []
        assert case.block(node("b"), by="night") == []


class TestLongest:
    """BLOCKLIST_LONGEST_BLOCK_OPERATOR and _ADMIN."""

    LIMITS: Final = Limits(longest_operator=7 * DAY, longest_admin=30 * DAY)

    def test_the_sentence_says_until_when(self) -> None:
        assert Case(self.LIMITS).block(node("a")) == [
            "An operator may block for at most 7d: end it by 1970-01-08T00:00:01Z at the latest, or ask an admin."
        ]
        assert Case(self.LIMITS).block(node("a"), access=Access.ADMIN) == [
            "An admin may block for at most 30d: end it by 1970-01-31T00:00:01Z at the latest, or force it."
        ]

    @pytest.mark.parametrize(
        ("end", "access", "passes"),
        [
            (NOW + 7 * DAY, Access.OPERATOR, True),
            (NOW + 7 * DAY + LEEWAY, Access.OPERATOR, True),
            (NOW + 7 * DAY + LEEWAY + 1, Access.OPERATOR, False),
            (NOW + 8 * DAY, Access.ADMIN, True),
            (NOW + 30 * DAY + LEEWAY + 1, Access.ADMIN, False),
            (PERMANENT, Access.ADMIN, False),
        ],
    )
    def test_from_now_on_with_a_minute_for_clocks_that_differ(self, end: int, access: Access, passes: bool) -> None:
        assert (Case(self.LIMITS).block(node("a", end=end), access=access) == []) == passes

    def test_a_merge_counts_only_if_it_moves_the_end(self) -> None:
        case = Case(self.LIMITS, nodes=(node("a"), node("b", end=NOW + 8 * DAY)))
        assert case.block(node("a", action=EVACUATE), node("b", end=NOW + 8 * DAY, action=EVACUATE)) == []
        assert case.block(node("b", end=NOW + 7 * DAY, cause="more")) == []
        assert case.block(node("b", end=NOW + 9 * DAY)) != []

    def test_a_role_without_a_limit_has_none(self) -> None:
        case = Case(Limits(longest_operator=DAY))
        assert case.block(node("a"), access=Access.ADMIN) == []
        assert case.block(node("a")) != []

    def test_an_end_that_no_calendar_has_is_said_in_milliseconds(self) -> None:
        (sentence,) = Case(Limits(longest_operator=2**62)).block(node("a"))
        assert f"end it by {NOW + 2**62} (Unix milliseconds) at the latest" in sentence

    @pytest.mark.parametrize(
        ("millis", "text"),
        [(7 * DAY, "7d"), (DAY * 3 // 2, "36h"), (90_000, "90s"), (3_600_000, "1h"), (60_000, "1m"), (1500, "1500ms")],
    )
    def test_a_duration_is_written_in_the_largest_unit_that_fits(self, millis: int, text: str) -> None:
        assert duration(millis) == text


class TestMinimum:
    """What a listener asked for when it registered."""

    def test_the_sentence_names_the_listener(self) -> None:
        case = Case(Limits(), {"a": "x"}, using(2, "a", "b", "c", "d"))
        assert case.block(node("b")) == []
        assert case.block(node("b"), node("c")) == [
            "Listener jm would be left with 1 usable node and needs 2: 1 more is possible among its nodes."
        ]

    def test_a_node_that_it_does_not_use_is_nothing_to_it(self) -> None:
        assert Case(Limits(), {"a": "x", "b": "x"}, using(2, "a", "b")).block(node("c")) == []

    def test_who_is_below_already_may_not_be_made_worse(self) -> None:
        case = Case(Limits(), {"a": "x", "b": "x"}, using(3, "a", "b", "c", "d"))
        assert case.block(node("a", action=EVACUATE), node("e")) == []
        assert case.block(node("c")) == [
            "Listener jm would be left with 1 usable node and needs 3: no more is possible among its nodes."
        ]

    @pytest.mark.parametrize("own", ["n7", "N7", "n7.example.com", "N7.Example.com"])
    @pytest.mark.parametrize("blocked", ["n7", "N7", "n7.example.com", "N7.EXAMPLE.COM"])
    def test_names_are_compared_in_any_case_short_or_full(self, own: str, blocked: str) -> None:
        assert Case(Limits(), {}, using(2, own, "n8")).block(node(blocked)) != []

    @pytest.mark.parametrize(
        ("own", "blocked"),
        [("n7.example.com", "n7.elsewhere.org"), ("n7", "n77"), ("10.0.0.1", "10"), ("n7", "10.0.0.7")],
    )
    def test_other_names_are_other_nodes(self, own: str, blocked: str) -> None:
        assert Case(Limits(), {}, using(1, own)).block(node(blocked)) == []

    def test_addresses_are_compared_as_such(self) -> None:
        assert Case(Limits(), {}, using(1, "fe80::1")).block(node("FE80:0::1")) != []

    def test_every_broken_limit_is_named(self) -> None:
        limits = Limits(blocked=1, by_author=1, longest_operator=DAY, share=0.5)
        lines = Case(limits, {"a": "ops"}, using(1, "a", "b"), known=NodeSet("ab")).block(node("b"))
        assert len(lines) == 5

    def test_to_free_a_node_is_told_where_the_listener_is_still_below(self) -> None:
        tracker = listed(node("a"), node("b"), node("c"))
        draft = Draft(tracker, NOW)
        trial = draft.trial()
        trial.unblock("a")
        (left,) = below(
            [using(2, "a", "b", "c"), using(1, "a", "b", own="rm"), using(9, "x", own="other")], draft, trial
        )
        assert (left.listener, left.before, left.usable, left.minimum) == ("jm", 0, 1, 2)
        check(
            Limits(), Present(draft=draft, author_of=lambda _: None, listeners=[using(2, "a")]), trial, Access.OPERATOR
        )


def test_a_set_that_is_said_again_is_kept() -> None:
    first = node_set(["a", "B"], None)
    assert node_set(["b", "A", "a"], first) is first
    assert node_set(["a"], first) is not first
    assert len(first) == 2


class Listeners:
    """Those of a test."""

    def __init__(self, *own: Using) -> None:
        self.own = list(own)

    @property
    def any_minimum(self) -> bool:
        return bool(self.own)

    def minimums(self) -> list[Using]:
        return self.own

    def known(self) -> NodeSet | None:
        return None


class TestCommands:
    """Guard: commands on a draft."""

    def guard(self, limits: Limits, *own: Using) -> Guard:
        self.counted: list[Source] = []
        return Guard(limits, Listeners(*own), lambda _: None, self.counted.append)

    def test_a_refused_command_changes_nothing_and_is_counted(self) -> None:
        guard, draft = self.guard(Limits(blocked=1)), Draft(listed(), NOW)
        draft.author = Author("ops", Source.PAGE)
        nodes = {own: (node(own), False) for own in "ab"}
        with pytest.raises(LimitError):
            guard.guarded(lambda draft: draft.block_many(nodes), Access.OPERATOR)(draft)
        assert (draft.changes, draft.count(NOW), draft.get("a")) == ([], 0, None)
        assert self.counted == [Source.PAGE]

    def test_a_command_that_passes_is_as_without_a_guard(self) -> None:
        guard, draft, plain = self.guard(Limits(blocked=9)), *(Draft(listed(node("a", end=NOW)), NOW) for _ in "12")
        draft.author = plain.author = Author("ops")
        for own in ("a", "b"):
            command = partial(Draft.block, node=node(own), allow_merge=False)
            assert guard.guarded(command, Access.OPERATOR)(draft) == command(plain)
        assert draft.changes == plain.changes
        assert draft.changes[0].type is ChangeType.EXPIRED
        assert (draft.revision, draft.count(NOW), {n.id for n in draft}) == (10, 2, {"a", "b"})

    def test_a_conflict_is_a_conflict(self) -> None:
        guard, draft = self.guard(Limits(blocked=1)), Draft(listed(node("a")), NOW)
        with pytest.raises(ConflictError):
            guard.guarded(lambda draft: draft.block(node("a"), allow_merge=False), Access.OPERATOR)(draft)
        assert self.counted == []

    def test_who_forces_passes(self) -> None:
        guard, draft = self.guard(Limits(blocked=1, longest_admin=5), using(1, "a")), Draft(listed(node("b")), NOW)
        draft.author = Author("root", forced="a fire")
        guard.guarded(lambda draft: draft.block(node("a"), allow_merge=False), Access.ADMIN)(draft)
        assert draft.changes[0].forced == "a fire"

    def test_with_nothing_to_guard_a_command_runs_on_the_draft_itself(self) -> None:
        draft = Draft(listed(), NOW)
        seen: list[Draft] = []
        self.guard(Limits()).guarded(seen.append, Access.OPERATOR)(draft)
        assert seen == [draft]

    def test_a_rehearsal_says_what_would_be_and_leaves_the_draft_alone(self) -> None:
        guard, draft = self.guard(Limits(blocked=1), using(2, "a", "b")), Draft(listed(node("b")), NOW)
        said = guard.rehearsed(lambda draft: draft.block(node("a"), allow_merge=False), Access.OPERATOR)(draft)
        assert (said.value, [change.type for change in said.changes]) == (node("a"), [ChangeType.BLOCKED])
        assert [(own.usable, own.minimum) for own in said.below] == [(0, 2)]
        assert said.refused is not None
        assert said.refused.startswith("This would block 2 nodes")
        assert (draft.changes, draft.count(NOW), self.counted) == ([], 1, [])

    def test_a_rehearsal_of_force_is_refused_by_nothing(self) -> None:
        guard, draft = self.guard(Limits(blocked=1), using(1, "a")), Draft(listed(node("b")), NOW)
        draft.author = Author("root", forced="a fire")
        said = guard.rehearsed(lambda draft: draft.block(node("a"), allow_merge=False), Access.ADMIN)(draft)
        assert (said.refused, [own.listener for own in said.below]) == (None, ["jm"])

    def test_of_several_those_pass_that_may(self) -> None:
        guard, draft = self.guard(Limits(blocked=3), using(1, "b", "c")), Draft(listed(), NOW)
        refused = guard.block_each(draft, [node(own) for own in "bcade"], Access.OPERATOR)
        assert {n.id for n in draft} == {"a", "b", "d"}
        assert {own: error.detail.partition(" ")[0] for own, error in refused.items()} == {"c": "Listener", "e": "This"}
        assert self.counted == []


ids = st.sampled_from("abcdef")
puts = st.tuples(
    st.just("put"), st.lists(ids, min_size=1, max_size=4, unique=True), st.sampled_from([None, "x", "y"]), st.booleans()
)
deletes = st.tuples(st.just("delete"), st.lists(ids, min_size=1, max_size=1), st.none(), st.booleans())
ticks = st.tuples(st.just("commit"), st.lists(ids, max_size=0), st.none(), st.booleans())


@given(st.lists(st.one_of(puts, deletes, ticks), max_size=30), st.integers(1, 4), st.integers(1, 3), st.integers(1, 6))
def test_no_sequence_of_requests_gets_past_the_limits(
    steps: list[tuple[str, list[str], str | None, bool]], most: int, by_author: int, minimum: int
) -> None:
    """In one transaction or many; whatever is merged, freed and blocked again."""
    tracker, authors = listed(), dict[str, str | None]()
    jm = using(minimum, *"abcdef")
    guard = Guard(Limits(blocked=most, by_author=by_author), Listeners(jm), authors.get, lambda _: None)
    draft = Draft(tracker, NOW)
    for kind, named, who, merge in steps:
        if kind == "commit":
            _commit(draft, tracker, authors)
            draft = Draft(tracker, NOW)
            continue
        draft.author = Author(who)
        _run(guard, draft, kind, named, merge)
        blocked = {n.id for n in draft}
        assert draft.count(NOW) == len(blocked) <= most
        assert len(blocked) <= 6 - minimum
        own = authors | {change.node.id: change.created_by for change in draft.changes}
        for author in (None, "x", "y"):
            assert sum(own[node_id] == author for node_id in blocked) <= by_author


def _run(guard: Guard, draft: Draft, kind: str, named: list[str], merge: bool) -> None:
    def command(draft: Draft) -> Any:
        if kind == "delete":
            return draft.unblock(named[0]) if draft.blocked(named[0]) else None
        return draft.block_many({own: (node(own), merge) for own in named})

    before = list(draft.changes)
    try:
        guard.guarded(command, Access.OPERATOR)(draft)
    except (LimitError, ConflictError):
        assert draft.changes == before


def _commit(draft: Draft, tracker: BlocklistTracker, authors: dict[str, str | None]) -> None:
    for change in draft.changes:
        tracker.apply(change)
        authors[change.node.id] = change.created_by


def test_the_settings_say_the_limits() -> None:
    assert not Settings(database_url="sqlite:///unused.db").limits
    settings = Settings.model_validate(
        {
            "database_url": "sqlite:///unused.db",
            "max_blocked": "12",
            "max_blocked_share": "0.1",
            "max_blocked_by_author": "3",
            "longest_block_operator": "7d",
            "longest_block_admin": "90s",
        }
    )
    assert settings.limits == Limits(blocked=12, share=0.1, by_author=3, longest_operator=7 * DAY, longest_admin=90_000)
