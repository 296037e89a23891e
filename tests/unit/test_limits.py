"""Limits: what is refused, with which error, and that no sequence of requests exceeds them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.handler import LimitGuard
from app.settings import Settings
from blocklist.model.changes import Author, Change, ChangeType, Snapshot, Source
from blocklist.model.claims import Role, author_claim
from blocklist.model.draft import BlocklistTracker, Draft
from blocklist.model.errors import ConflictError, LimitError
from blocklist.model.evidence import BLOCK_MS, TTL_MS
from blocklist.model.limits import LEEWAY_MS, EvidenceLimit, LimitContext, Limits, ask_above, check_limits
from blocklist.model.names import MachineSet, ReportedMachines, normalize_name
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode, exact_duration
from blocklist.model.usable_nodes import ListenerNodes, nodes_in_use, shortfalls
from tests.unit.counting import count_calls
from tests.unit.labelled_nodes import labelled_nodes

NOW: Final = 1000
DAY: Final = 86_400_000
NOTHING_KNOWN: Final = ReportedMachines()
MARK, EVACUATE = BlockAction.MARK_BLOCKED, BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS


def node(node_id: str, *, end: int = PERMANENT, action: BlockAction = MARK, cause: str = "disk") -> BlockedNode:
    return BlockedNode(id=node_id, action=action, start=500, end=end, cause=cause)


def listed(*nodes: BlockedNode, authors: Mapping[str, str | None] | None = None) -> BlocklistTracker:
    claims = {n.id: author_claim((authors or {}).get(n.id), n) for n in nodes}
    return BlocklistTracker(Snapshot(revision=7, history="00c0ffee", nodes={n.id: n for n in nodes}, claims=claims))


def listener_nodes(minimum: int, *nodes: str, listener_id: str = "jm") -> ListenerNodes:
    return ListenerNodes(id=listener_id, nodes=frozenset(map(normalize_name, nodes)), minimum=minimum)


def names_of(listeners: Iterable[ListenerNodes]) -> MachineSet:
    return MachineSet(name for listener in listeners for name in listener.nodes)


class LimitCase:
    """Blocked nodes (node -> author), and the result of blocking more."""

    def __init__(
        self,
        limits: Limits,
        blocked_by: Mapping[str, str | None] | None = None,
        *listeners: ListenerNodes,
        known: ReportedMachines = NOTHING_KNOWN,
        nodes: tuple[BlockedNode, ...] = (),
    ) -> None:
        self.limits = limits
        authors = blocked_by or {}
        others = (node(node_id) for node_id in authors if node_id not in {n.id for n in nodes})
        draft = Draft(listed(*nodes, *others, authors=authors), NOW)
        self.context = LimitContext(draft=draft, listeners=listeners, names=names_of(listeners), known=known)

    def block(self, *nodes: BlockedNode, role: Role = Role.OPERATOR, by: str | None = "ops") -> list[str]:
        """The sentences of the LimitError; none if the block is allowed."""
        fork = self.context.draft.fork()
        fork.author = Author(by)
        for it in nodes:
            fork.block(it, allow_merge=True)
        try:
            check_limits(self.limits, self.context, fork, role)
        except LimitError as error:
            return list(error.lines)
        return []


class TestMaxBlocked:
    """BLOCKLIST_MAX_BLOCKED."""

    @pytest.mark.parametrize(
        ("existing", "new", "remaining"),
        [
            (0, 2, None),
            (1, 1, None),
            (0, 3, "2 more are possible"),
            (1, 2, "1 more is possible"),
            (2, 1, "no more is possible"),
            (4, 1, "no more is possible"),
        ],
    )
    def test_the_error_states_the_count_and_how_many_more_are_possible(
        self, existing: int, new: int, remaining: str | None
    ) -> None:
        sentence = (
            f"This would block {existing + new} nodes; at most 2 may be blocked at once"
            f" (BLOCKLIST_MAX_BLOCKED): {remaining}."
        )
        case = LimitCase(Limits(max_blocked=2), {f"old-{n}": "x" for n in range(existing)})
        assert case.block(*(node(f"new-{n}") for n in range(new))) == ([] if remaining is None else [sentence])

    def test_a_blocked_node_may_be_blocked_longer_and_stronger(self) -> None:
        case = LimitCase(Limits(max_blocked=1), nodes=(node("a", end=2000), node("b", end=2000)))
        assert case.block(node("a", end=3000, action=EVACUATE, cause="hot"), node("b")) == []

    def test_an_expired_node_counts_as_new(self) -> None:
        case = LimitCase(Limits(max_blocked=1), nodes=(node("a", end=NOW), node("b", end=NOW)))
        assert case.block(node("a")) == []
        assert case.block(node("a"), node("b")) != []

    def test_without_limits_everything_passes(self) -> None:
        assert not Limits()
        assert LimitCase(Limits()).block(*(node(f"n{n}") for n in range(1000)), role=Role.OPERATOR, by=None) == []


class TestShare:
    """BLOCKLIST_MAX_BLOCKED_SHARE."""

    KNOWN: Final = ReportedMachines(f"n{number}.example.com" for number in range(10))

    def test_only_confirmed_nodes_count(self) -> None:
        case = LimitCase(Limits(max_share=0.2), {"n0": "x", "elsewhere": "x"}, known=self.KNOWN)
        assert case.block(node("N1")) == []
        assert case.block(node("n1"), node("gone"), node("other")) == []
        assert case.block(node("n1"), node("n2.example.com")) == [
            (
                "This would block 3 of the 10 known nodes; at most 2 may be blocked at once"
                " (BLOCKLIST_MAX_BLOCKED_SHARE is 0.2): 1 more is possible."
            )
        ]

    def test_a_short_name_of_several_nodes_counts_for_each(self) -> None:
        known = ReportedMachines(f"n{number}.{site}" for number in range(5) for site in ("ams", "fra", "lon", "nyc"))
        case = LimitCase(Limits(max_share=0.5), known=known)
        assert case.block(node("n0"), node("n1")) == []
        assert "12 of the 20 known nodes" in case.block(node("n0"), node("n1"), node("n2"))[0]
        for number in range(5):
            for site in ("fra", "lon", "nyc"):
                known.discard(f"n{number}.{site}")
        assert case.block(node("n0"), node("n1"), node("n2")) == []

    def test_the_names_of_one_node_count_once(self) -> None:
        case = LimitCase(Limits(max_share=0.1), {"n0": "x"}, known=self.KNOWN)
        assert case.block(node("n0.example.com"), node("N0")) == []

    def test_an_exceeded_share_may_stay_but_not_grow(self) -> None:
        case = LimitCase(Limits(max_share=0.1), {"n0": "x", "n1": "x"}, known=self.KNOWN)
        assert case.block(node("n0", action=EVACUATE)) == []
        assert case.block(node("n2")) != []

    @pytest.mark.parametrize(
        ("share", "known", "max_nodes"),
        [(0.29, 100, 29), (0.81, 10, 9), (0.1, 9, 1), (0.1, 11, 2), (0.5, 3, 2), (0.2, 3, 1)],
    )
    def test_the_share_is_rounded_up(self, share: float, known: int, max_nodes: int) -> None:
        case = LimitCase(Limits(max_share=share), known=ReportedMachines(f"n{number}" for number in range(known)))
        nodes = [node(f"n{number}") for number in range(known)]
        assert case.block(*nodes[:max_nodes]) == []
        assert case.block(*nodes[: max_nodes + 1]) != []

    def test_without_confirmed_nodes_there_is_no_share(self) -> None:
        assert LimitCase(Limits(max_share=0.01)).block(node("a"), node("b")) == []


class TestAuthor:
    """BLOCKLIST_MAX_BLOCKED_BY_AUTHOR."""

    def test_each_author_has_a_separate_count(self) -> None:
        case = LimitCase(Limits(max_by_author=2), {"a": "ops", "b": "night", "c": None})
        assert case.block(node("d")) == []
        assert case.block(node("d"), node("e")) == [
            (
                "This would be 3 nodes blocked by ops; one author may block at most 2"
                " (BLOCKLIST_MAX_BLOCKED_BY_AUTHOR): 1 more is possible."
            )
        ]

    def test_authors_without_a_name_count_as_one(self) -> None:
        case = LimitCase(Limits(max_by_author=2), {"a": "ops", "b": None, "c": None})
        assert case.block(node("d"), by=None) == [
            (
                "This would be 3 nodes blocked by authors without a name; one author may block at most 2"
                " (BLOCKLIST_MAX_BLOCKED_BY_AUTHOR): no more is possible."
            )
        ]

    def test_a_block_counts_for_the_author_of_each_of_its_claims(self) -> None:
        nodes = (node("a", end=2000), node("b", end=2000), node("c", end=2000))
        case = LimitCase(Limits(max_by_author=1), {"a": "ops", "b": "night", "c": "night"}, nodes=nodes)
        assert case.block(node("a")) == []
        assert case.block(node("b")) != []
        assert case.block(node("b", end=1500, cause="more")) != [], "it would hold b when night withdraws"
        assert LimitCase(Limits(max_by_author=1), {"b": "night"}, nodes=nodes).block(node("b")) == []

    def test_earlier_blocks_of_the_same_transaction_count(self) -> None:
        case = LimitCase(Limits(max_by_author=1))
        case.context.draft.author = Author("ops")
        case.context.draft.block(node("a"), allow_merge=False)
        assert case.block(node("b")) != []
        assert case.block(node("b"), by="night") == []


class TestLongestBlock:
    """BLOCKLIST_LONGEST_BLOCK_OPERATOR and _ADMIN."""

    LIMITS: Final = Limits(longest_operator_ms=7 * DAY, longest_admin_ms=30 * DAY)

    def test_the_error_states_the_latest_end(self) -> None:
        assert LimitCase(self.LIMITS).block(node("a")) == [
            "An operator may block for at most 7d: end it by 1970-01-08T00:00:01Z at the latest, or ask an admin."
        ]
        assert LimitCase(self.LIMITS).block(node("a"), role=Role.ADMIN) == [
            "An admin may block for at most 30d: end it by 1970-01-31T00:00:01Z at the latest, or force it."
        ]

    @pytest.mark.parametrize(
        ("end", "role", "passes"),
        [
            (NOW + 7 * DAY, Role.OPERATOR, True),
            (NOW + 7 * DAY + LEEWAY_MS, Role.OPERATOR, True),
            (NOW + 7 * DAY + LEEWAY_MS + 1, Role.OPERATOR, False),
            (NOW + 8 * DAY, Role.ADMIN, True),
            (NOW + 30 * DAY + LEEWAY_MS + 1, Role.ADMIN, False),
            (PERMANENT, Role.ADMIN, False),
        ],
    )
    def test_the_longest_block_counts_from_now_with_a_minute_of_leeway(
        self, end: int, role: Role, passes: bool
    ) -> None:
        assert (LimitCase(self.LIMITS).block(node("a", end=end), role=role) == []) == passes

    def test_by_default_for_ever_may_be_said_but_a_long_time_is_a_typing_error(self) -> None:
        limits = Limits(longest_operator_ms=30 * DAY, may_be_permanent=True)
        assert LimitCase(limits).block(node("a", end=PERMANENT)) == []
        (sentence,) = LimitCase(limits).block(node("a", end=NOW + 300 * DAY), node("b", end=PERMANENT))
        assert "end it by 1970-01-31T00:00:01Z at the latest" in sentence
        assert sentence.endswith(" or block it for ever (--forever, or no endTimestamp).")

    def test_a_merge_counts_only_if_it_moves_the_end(self) -> None:
        existing = (node("a"), node("b", end=NOW + 8 * DAY))
        case = LimitCase(self.LIMITS, {"a": "ops", "b": "ops"}, nodes=existing)
        assert case.block(node("a", action=EVACUATE), node("b", end=NOW + 8 * DAY, action=EVACUATE)) == []
        assert case.block(node("b", end=NOW + 7 * DAY, cause="more")) == []
        assert case.block(node("b", end=NOW + 9 * DAY)) != []

    def test_a_claim_is_limited_even_if_the_block_ends_later_anyway(self) -> None:
        case = LimitCase(self.LIMITS, {"a": "x"}, nodes=(node("a", end=PERMANENT),))
        assert case.block(node("a", end=NOW + 7 * DAY), by="y") == []
        assert case.block(node("a", end=NOW + 8 * DAY), by="y") != []

    def test_only_the_claim_that_is_put_is_limited_not_those_of_others(self) -> None:
        draft = Draft(listed(node("a", end=NOW + 30 * DAY), authors={"a": "x"}), NOW)
        fork = draft.fork()
        fork.author = Author("y")
        fork.put_claim("mine", node("a", end=NOW + DAY, action=EVACUATE))
        fork.remove_claim("a", "x")
        fork.put_claim("mine", node("a", end=NOW + DAY + 1))
        check_limits(self.LIMITS, LimitContext(draft=draft), fork, Role.OPERATOR)

    def test_an_owner_may_shorten_a_claim_that_is_too_long_but_not_lengthen_it(self) -> None:
        draft = Draft(listed(node("a", end=NOW + 30 * DAY), authors={"a": "x"}), NOW)
        for days, allowed in ((30, True), (20, True), (31, False)):
            fork = draft.fork()
            fork.put_claim("x", node("a", end=NOW + days * DAY, cause="other"))
            with nullcontext() if allowed else pytest.raises(LimitError):
                check_limits(self.LIMITS, LimitContext(draft=draft), fork, Role.OPERATOR)

    def test_a_role_without_a_limit_has_none(self) -> None:
        case = LimitCase(Limits(longest_operator_ms=DAY))
        assert case.block(node("a"), role=Role.ADMIN) == []
        assert case.block(node("a")) != []

    def test_an_end_beyond_the_calendar_is_given_in_milliseconds(self) -> None:
        (sentence,) = LimitCase(Limits(longest_operator_ms=2**62)).block(node("a"))
        assert f"end it by {NOW + 2**62} (Unix milliseconds) at the latest" in sentence

    @pytest.mark.parametrize(
        ("millis", "text"),
        [(7 * DAY, "7d"), (DAY * 3 // 2, "36h"), (90_000, "90s"), (3_600_000, "1h"), (60_000, "1m"), (1500, "1500ms")],
    )
    def test_a_duration_uses_the_largest_unit_that_fits(self, millis: int, text: str) -> None:
        assert exact_duration(millis) == text


class TestMinimum:
    """The minimum number of usable nodes of a listener."""

    def test_the_error_names_the_listener(self) -> None:
        case = LimitCase(Limits(), {"a": "x"}, listener_nodes(2, "a", "b", "c", "d"))
        assert case.block(node("b")) == []
        assert case.block(node("b"), node("c")) == [
            "Listener jm would be left with 1 usable node and needs 2: 1 more is possible among its nodes."
        ]

    def test_a_node_that_a_listener_does_not_use_does_not_affect_its_minimum(self) -> None:
        assert LimitCase(Limits(), {"a": "x", "b": "x"}, listener_nodes(2, "a", "b")).block(node("c")) == []

    def test_a_listener_below_its_minimum_may_not_lose_more_nodes(self) -> None:
        case = LimitCase(Limits(), {"a": "x", "b": "x"}, listener_nodes(3, "a", "b", "c", "d"))
        assert case.block(node("a", action=EVACUATE), node("e")) == []
        assert case.block(node("c")) == [
            "Listener jm would be left with 1 usable node and needs 3: no more is possible among its nodes."
        ]

    @pytest.mark.parametrize("used", ["n7", "N7", "n7.example.com", "N7.Example.com"])
    @pytest.mark.parametrize("blocked", ["n7", "N7", "n7.example.com", "N7.EXAMPLE.COM"])
    def test_names_are_compared_in_any_case_short_or_full(self, used: str, blocked: str) -> None:
        assert LimitCase(Limits(), {}, listener_nodes(2, used, "n8")).block(node(blocked)) != []

    @pytest.mark.parametrize(
        ("used", "blocked"),
        [("n7.example.com", "n7.elsewhere.org"), ("n7", "n77"), ("10.0.0.1", "10"), ("n7", "10.0.0.7")],
    )
    def test_other_names_are_other_nodes(self, used: str, blocked: str) -> None:
        assert LimitCase(Limits(), {}, listener_nodes(1, used)).block(node(blocked)) == []

    def test_addresses_are_compared_as_addresses(self) -> None:
        assert LimitCase(Limits(), {}, listener_nodes(1, "fe80::1")).block(node("FE80:0::1")) != []

    def test_every_violated_limit_is_named(self) -> None:
        limits = Limits(max_blocked=1, max_by_author=1, longest_operator_ms=DAY, max_share=0.5)
        lines = LimitCase(limits, {"a": "ops"}, listener_nodes(1, "a", "b"), known=ReportedMachines("ab")).block(
            node("b")
        )
        assert len(lines) == 5

    def test_unblocking_reports_a_remaining_shortfall_and_is_allowed(self) -> None:
        tracker = listed(node("a"), node("b"), node("c"))
        draft = Draft(tracker, NOW)
        fork = draft.fork()
        fork.unblock("a")
        listeners = [
            listener_nodes(2, "a", "b", "c"),
            listener_nodes(1, "a", "b", listener_id="rm"),
            listener_nodes(9, "x", listener_id="other"),
        ]
        (left,) = shortfalls(listeners, names_of(listeners), draft, fork)
        assert (left.listener, left.usable_before, left.usable, left.minimum) == ("jm", 0, 1, 2)
        check_limits(
            Limits(),
            LimitContext(draft=draft, listeners=[listener_nodes(2, "a")]),
            fork,
            Role.OPERATOR,
        )


def test_a_refusal_names_twenty_listeners_and_says_how_many_more_there_are() -> None:
    listeners = [listener_nodes(1, "a", listener_id=f"jm-{number}") for number in range(22)]
    lines = LimitCase(Limits(), None, *listeners).block(node("a"))
    assert len(lines) == 21
    assert lines[-1] == "2 more listeners would be left with fewer nodes than they need."


def test_a_job_uses_the_nodes_on_which_it_runs() -> None:
    stated = frozenset({"n1", "n2.a", "n3"})
    assert nodes_in_use(stated, frozenset({"n1", "n2"})) == {"n1", "n2.a"}
    assert nodes_in_use(stated, frozenset()) == set()


def test_a_minimum_costs_no_more_because_many_listeners_and_blocks_have_one_node_in_common() -> None:
    blocked = [node(f"b{number}") for number in range(500)]
    listeners = [listener_nodes(1, "a", listener_id=f"jm-{number}") for number in range(500)]
    case = LimitCase(Limits(), None, *listeners, nodes=tuple(blocked))
    assert count_calls(lambda: case.block(node("a"))) < 20_000


class FakeMinimums:
    """Listeners with minimums, for LimitGuard."""

    def __init__(self, *listeners: ListenerNodes) -> None:
        self.listeners = list(listeners)

    @property
    def any_minimum(self) -> bool:
        return bool(self.listeners)

    @property
    def names(self) -> MachineSet:
        return names_of(self.listeners)

    def minimums(self, changes: Iterable[Change]) -> list[ListenerNodes]:
        return self.listeners

    @property
    def known(self) -> ReportedMachines:
        return ReportedMachines()


class TestLimitGuard:
    """LimitGuard: commands on a draft."""

    def guard(self, limits: Limits, *listeners: ListenerNodes) -> LimitGuard:
        self.counted: list[Source] = []
        return LimitGuard(limits, FakeMinimums(*listeners), labelled_nodes({}), self.counted.append)

    def test_a_refused_command_changes_nothing_and_is_counted(self) -> None:
        guard, draft = self.guard(Limits(max_blocked=1)), Draft(listed(), NOW)
        draft.author = Author("ops", Source.PAGE)
        nodes = {node_id: (node(node_id), False) for node_id in "ab"}
        with pytest.raises(LimitError):
            guard.enforce(lambda draft: draft.block_many(nodes), Role.OPERATOR)(draft)
        assert (draft.changes, draft.count(NOW), draft.get("a")) == ([], 0, None)
        assert self.counted == [Source.PAGE]

    def test_an_allowed_command_has_the_same_effect_as_without_a_guard(self) -> None:
        guard, draft, plain = self.guard(Limits(max_blocked=9)), *(Draft(listed(node("a", end=NOW)), NOW) for _ in "12")
        draft.author = plain.author = Author("ops")
        for node_id in ("a", "b"):
            command = partial(Draft.block, node=node(node_id), allow_merge=False)
            assert guard.enforce(command, Role.OPERATOR)(draft) == command(plain)
        assert draft.changes == plain.changes
        assert draft.changes[0].type is ChangeType.EXPIRED
        assert (draft.revision, draft.count(NOW), {n.id for n in draft}) == (10, 2, {"a", "b"})

    def test_a_conflict_is_raised_before_a_limit(self) -> None:
        guard, draft = self.guard(Limits(max_blocked=1)), Draft(listed(node("a")), NOW)
        with pytest.raises(ConflictError):
            guard.enforce(lambda draft: draft.block(node("a"), allow_merge=False), Role.OPERATOR)(draft)
        assert self.counted == []

    def test_force_bypasses_all_limits(self) -> None:
        guard, draft = (
            self.guard(Limits(max_blocked=1, longest_admin_ms=5), listener_nodes(1, "a")),
            Draft(listed(node("b")), NOW),
        )
        draft.author = Author("root", forced="a fire")
        guard.enforce(lambda draft: draft.block(node("a"), allow_merge=False), Role.ADMIN)(draft)
        assert draft.changes[0].forced == "a fire"

    def test_without_limits_a_command_runs_on_the_draft_itself(self) -> None:
        draft = Draft(listed(), NOW)
        seen: list[Draft] = []
        self.guard(Limits()).enforce(seen.append, Role.OPERATOR)(draft)
        assert seen == [draft]

    def test_a_dry_run_returns_the_result_and_leaves_the_draft_unchanged(self) -> None:
        guard, draft = self.guard(Limits(max_blocked=1), listener_nodes(2, "a", "b")), Draft(listed(node("b")), NOW)
        result = guard.dry_run(lambda draft: draft.block(node("a"), allow_merge=False), Role.OPERATOR)(draft)
        assert (result.value, [change.type for change in result.changes]) == (node("a"), [ChangeType.BLOCKED])
        assert [(it.usable, it.minimum) for it in result.shortfalls] == [(0, 2)]
        assert result.refusal is not None
        assert result.refusal.startswith("This would block 2 nodes")
        assert (draft.changes, draft.count(NOW), self.counted) == ([], 1, [])

    def test_a_dry_run_with_force_is_never_refused(self) -> None:
        guard, draft = self.guard(Limits(max_blocked=1), listener_nodes(1, "a")), Draft(listed(node("b")), NOW)
        draft.author = Author("root", forced="a fire")
        result = guard.dry_run(lambda draft: draft.block(node("a"), allow_merge=False), Role.ADMIN)(draft)
        assert (result.refusal, [it.listener for it in result.shortfalls]) == (None, ["jm"])

    def test_block_each_blocks_what_the_limits_allow(self) -> None:
        guard, draft = self.guard(Limits(max_blocked=3), listener_nodes(1, "b", "c")), Draft(listed(), NOW)
        refused = guard.block_each(draft, [node(node_id) for node_id in "bcade"], Role.OPERATOR)
        assert {n.id for n in draft} == {"a", "b", "d"}
        assert {node_id: error.detail.partition(" ")[0] for node_id, error in refused.items()} == {
            "c": "Listener",
            "e": "This",
        }
        assert self.counted == []


ids = st.sampled_from("abcdef")
puts = st.tuples(
    st.just("put"), st.lists(ids, min_size=1, max_size=4, unique=True), st.sampled_from([None, "x", "y"]), st.booleans()
)
deletes = st.tuples(st.just("delete"), st.lists(ids, min_size=1, max_size=1), st.none(), st.booleans())
ticks = st.tuples(st.just("commit"), st.lists(ids, max_size=0), st.none(), st.booleans())


@given(st.lists(st.one_of(puts, deletes, ticks), max_size=30), st.integers(1, 4), st.integers(1, 3), st.integers(1, 6))
def test_no_sequence_of_requests_exceeds_the_limits(
    steps: list[tuple[str, list[str], str | None, bool]], max_nodes: int, by_author: int, minimum: int
) -> None:
    """In one transaction or many, with merges and unblocking."""
    tracker, authors = listed(), dict[str, str | None]()
    jm = listener_nodes(minimum, *"abcdef")
    limits = Limits(max_blocked=max_nodes, max_by_author=by_author)
    guard = LimitGuard(limits, FakeMinimums(jm), labelled_nodes({}), lambda _: None)
    draft = Draft(tracker, NOW)
    for kind, node_ids, author, merge in steps:
        if kind == "commit":
            _commit(draft, tracker, authors)
            draft = Draft(tracker, NOW)
            continue
        draft.author = Author(author)
        _run(guard, draft, kind, node_ids, merge)
        blocked = {n.id for n in draft}
        assert draft.count(NOW) == len(blocked) <= max_nodes
        assert len(blocked) <= 6 - minimum
        authors_now = authors | {change.node.id: change.created_by for change in draft.changes}
        for name in (None, "x", "y"):
            assert sum(authors_now[node_id] == name for node_id in blocked) <= by_author


def _run(guard: LimitGuard, draft: Draft, kind: str, node_ids: list[str], merge: bool) -> None:
    def command(draft: Draft) -> Any:
        if kind == "delete":
            return draft.unblock(node_ids[0]) if draft.get_blocked(node_ids[0]) else None
        return draft.block_many({node_id: (node(node_id), merge) for node_id in node_ids})

    before = list(draft.changes)
    try:
        guard.enforce(command, Role.OPERATOR)(draft)
    except (LimitError, ConflictError):
        assert draft.changes == before


def _commit(draft: Draft, tracker: BlocklistTracker, authors: dict[str, str | None]) -> None:
    for change in draft.changes:
        tracker.apply(change)
        authors[change.node.id] = change.created_by


class TestEvidenceLimit:
    """A share of the confirmed nodes, at least one, and of six or more at least two."""

    @pytest.mark.parametrize(
        ("share", "confirmed", "most"),
        [(0.1, 0, 1), (0.1, 1, 1), (0.1, 20, 2), (0.1, 21, 3), (0.29, 100, 29), (0.999, 1, 1), (1.0, 0, None)],
    )
    def test_the_share_is_rounded_up_and_1_is_no_limit(self, share: float, confirmed: int, most: int | None) -> None:
        assert EvidenceLimit(share=share, confirmed=lambda: confirmed).max_nodes() == most

    @pytest.mark.parametrize(("confirmed", "most"), [(2, 1), (5, 1), (6, 2), (19, 2)])
    def test_two_of_a_small_cluster_are_at_most_a_third_of_it(self, confirmed: int, most: int) -> None:
        assert EvidenceLimit(share=0.01, confirmed=lambda: confirmed).max_nodes() == most

    def test_the_error_names_the_share_and_the_setting(self) -> None:
        assert EvidenceLimit(share=0.1, confirmed=lambda: 9).error(2).detail == (
            "Evidence may block at most 2 nodes at once: 0.1 of the 9 confirmed nodes, at least one, of six or more two"
            " (BLOCKLIST_EVIDENCE_MAX_SHARE)."
        )

    def test_a_tenth_is_the_default(self) -> None:
        assert Settings(database_url="sqlite:///unused.db").evidence_max_share == 0.1


@pytest.mark.parametrize(("known", "most"), [(0, 20), (1, 1), (3, 1), (10, 1), (11, 2), (199, 20), (5000, 20)])
def test_a_change_of_more_than_a_tenth_or_of_more_than_twenty_is_asked_about(known: int, most: int) -> None:
    assert ask_above(known) == most


def test_limits_are_read_from_the_settings() -> None:
    assert not Settings(database_url="sqlite:///unused.db").limits
    by_default = Settings(database_url="sqlite:///unused.db", auth="tokens")
    assert by_default.limits == Limits(max_share=0.5, longest_operator_ms=30 * DAY, may_be_permanent=True)
    off = {"max_blocked_share": "1", "longest_block_operator": "0s"}
    assert not Settings.model_validate(by_default.model_dump() | off).limits
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
    assert settings.limits == Limits(
        max_blocked=12, max_share=0.1, max_by_author=3, longest_operator_ms=7 * DAY, longest_admin_ms=90_000
    )


@pytest.mark.parametrize(
    ("given", "end"),
    [
        ({}, "4h"),
        ({"default_duration": "60d"}, "60d"),
        ({"auth": "tokens", "default_duration": "60d"}, "30d"),
        ({"auth": "tokens", "default_duration": "forever"}, "forever"),
        ({"auth": "tokens", "longest_block_operator": "2h"}, "2h"),
        ({"longest_block_operator": "7d", "default_duration": "forever"}, "7d"),
        ({"auth": "tokens", "longest_block_admin": "90m", "default_duration": "forever"}, "90m"),
    ],
)
def test_the_default_end_is_one_that_the_limits_allow(given: dict[str, str], end: str) -> None:
    assert Settings.model_validate({"database_url": "sqlite:///unused.db", **given}).default_end == end


@pytest.mark.parametrize(
    ("longest", "duration"), [("0s", BLOCK_MS), ("7d", BLOCK_MS), ("20m", 1_200_000), ("1s", TTL_MS)]
)
def test_no_limit_on_the_duration_refuses_a_block_of_evidence(longest: str, duration: int) -> None:
    given = {"database_url": "sqlite:///unused.db", "longest_block_operator": longest}
    assert Settings.model_validate(given).evidence_duration_ms == duration
