"""Evidence: when it expires, whose reports count, and when a node is blocked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import ClassVar, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocklist.model.changes import Author, Snapshot
from blocklist.model.claims import author_claim
from blocklist.model.draft import BlocklistTracker, Draft
from blocklist.model.errors import InvalidError
from blocklist.model.evidence import (
    BLOCK_MS,
    EVIDENCE_OWNER,
    MAX_PER_PRINCIPAL,
    MAX_REASON_LENGTH,
    TTL_MS,
    Evidence,
    EvidenceStore,
    EvidenceVerdict,
    Finding,
    FindingKind,
    due_blocks,
    evidence_claim,
)
from blocklist.model.inventory import Inventory
from blocklist.model.names import same_machine
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode
from blocklist.model.reported_node import NodeSource, ReportedNode, SourceKind
from tests.unit.counting import count_calls

NOW = 1_000_000
EXCLUDED = Finding(kind=FindingKind.EXCLUDED, reason="Spark excluded the host.")
SLOW = Finding(kind=FindingKind.SLOW, reason="Slow, very slow.")


def new_store(
    principals: int = 2, principal_of: Callable[[str], str | None] = lambda application: application
) -> EvidenceStore:
    return EvidenceStore(principals, principal_of)


def reported(store: EvidenceStore, now: int) -> list[tuple[str, str]]:
    return [(piece.evidence.node, piece.evidence.application) for piece in store.assess(now)]


def due_nodes(store: EvidenceStore, now: int) -> list[str]:
    return [verdict.node for verdict in store.verdicts(now)]


def counted(store: EvidenceStore, now: int) -> list[bool]:
    return [piece.ignored_reason is None for piece in store.assess(now)]


class TestRetention:
    """Evidence expires one minute after it was last reported."""

    def test_evidence_expires_after_exactly_one_minute(self) -> None:
        store = new_store()
        store.record("app", {"a": EXCLUDED}, NOW)
        assert reported(store, NOW + TTL_MS - 1) == [("a", "app")]
        assert reported(store, NOW + TTL_MS) == []

    def test_a_repeated_report_renews_evidence_and_an_omission_does_not(self) -> None:
        store = new_store()
        store.record("app", {"a": EXCLUDED, "b": EXCLUDED}, NOW)
        store.record("app", {"a": EXCLUDED}, NOW + 10)
        (a, b) = (piece.evidence for piece in store.assess(NOW + 20))
        assert (a.node, a.first_seen, a.last_seen) == ("a", NOW, NOW + 10)
        assert (b.node, b.first_seen, b.last_seen) == ("b", NOW, NOW)

    def test_expired_evidence_that_is_reported_again_is_new(self) -> None:
        store = new_store()
        store.record("app", {"a": EXCLUDED}, NOW)
        store.record("app", {"a": EXCLUDED}, NOW + TTL_MS)
        (a,) = store.assess(NOW + TTL_MS)
        assert a.evidence.first_seen == NOW + TTL_MS

    def test_another_kind_is_new_evidence_and_another_reason_is_not(self) -> None:
        store = new_store()
        store.record("app", {"a": EXCLUDED}, NOW)
        store.record("app", {"a": Finding(kind=FindingKind.EXCLUDED, reason="Worse.")}, NOW + 1)
        assert store.assess(NOW + 1)[0].evidence.first_seen == NOW
        store.record("app", {"a": SLOW}, NOW + 2)
        assert store.assess(NOW + 2)[0].evidence.first_seen == NOW + 2

    def test_removing_an_application_removes_its_evidence(self) -> None:
        store = new_store()
        store.record("app", {"a": EXCLUDED}, NOW)
        store.remove_application("app")
        store.remove_application("app")
        assert (reported(store, NOW), len(store)) == ([], 0)

    def test_evidence_is_listed_by_node_and_application(self) -> None:
        store = new_store()
        store.record("z", {"b": EXCLUDED, "a": SLOW}, NOW)
        store.record("y", {"b": EXCLUDED}, NOW)
        assert reported(store, NOW) == [("a", "z"), ("b", "y"), ("b", "z")]

    def test_the_number_of_pieces_per_application_is_limited(self) -> None:
        store = new_store()
        store.record("app", {"first": EXCLUDED}, NOW)
        store.record("app", {f"n{number}": EXCLUDED for number in range(MAX_PER_PRINCIPAL)}, NOW + 1)
        assert len(store) == MAX_PER_PRINCIPAL

    def test_the_applications_of_one_principal_share_the_limit(self) -> None:
        """Whoever reads all evidence must not be delayed by one token, however many listeners it registers."""
        store = new_store(principal_of=lambda application: application[0])
        for number in range(3):
            nodes = range(MAX_PER_PRINCIPAL // 2)
            store.record(f"a{number}", {f"n{number}-{node}": EXCLUDED for node in nodes}, NOW)
        assert len(store) == MAX_PER_PRINCIPAL
        store.record("b", {"n": EXCLUDED}, NOW)
        assert ("n", "b") in reported(store, NOW)
        store.remove_application("a0")
        store.record("a2", {"n": EXCLUDED}, NOW)
        assert ("n", "a2") in reported(store, NOW)
        assert ("first", "app") not in reported(store, NOW + 1)

    def test_pruning_leaves_nothing_behind(self) -> None:
        store = new_store()
        store.record("app", {"a": EXCLUDED}, NOW)
        store.record_unblock("a", NOW)
        for _ in range(2):
            store.prune(NOW + TTL_MS)
        assert (len(store), store._unblocked_at) == (0, {})

    def test_pruning_removes_what_an_application_no_longer_reports(self) -> None:
        store = new_store()
        store.record("app", {"old": EXCLUDED}, NOW)
        store.record("app", {"new": EXCLUDED}, NOW + 1)
        store.prune(NOW + TTL_MS)
        assert [piece.node for piece in store.of_application("app")] == ["new"]

    @pytest.mark.parametrize("reason", ["", "x" * (MAX_REASON_LENGTH + 1), "two\nlines", "\ud800"])
    def test_an_empty_long_or_unprintable_reason_is_rejected(self, reason: str) -> None:
        with pytest.raises(InvalidError):
            Finding(kind=FindingKind.SLOW, reason=reason)


class TestOneNode:
    NAMES = ("n1", "N1", "n1.a.example", "n1.b.example", "n2", "n2.a.example", "10.0.0.1")
    PRINCIPALS: ClassVar[dict[str, str | None]] = {"a1": "p", "a2": "p", "b": "q", "c": "r", "d": None}

    @given(
        st.lists(st.tuples(st.sampled_from(sorted(PRINCIPALS)), st.sets(st.sampled_from(NAMES))), max_size=6),
        st.sets(st.sampled_from(NAMES), max_size=1),
        st.sampled_from(NAMES),
    )
    def test_it_is_what_all_evidence_says_about_it(
        self, reports: list[tuple[str, set[str]]], unblocked: set[str], name: str
    ) -> None:
        store = new_store(principal_of=self.PRINCIPALS.get)
        for age, (application, nodes) in enumerate(reports):
            store.record(application, dict.fromkeys(sorted(nodes), SLOW), NOW + age * TTL_MS // 3)
        for node in unblocked:
            store.record_unblock(node, NOW + 1)
        now = NOW + TTL_MS
        about = [each for each in store.assess(now) if same_machine(each.evidence.node, name)]
        assert store.assess_node(name, now) == about

    def test_it_does_not_cost_what_is_reported_about_other_nodes(self) -> None:
        store = new_store()
        for number in range(300):
            store.record(f"app-{number}", {f"n{number}": SLOW, f"m{number}": SLOW}, NOW)
        store.assess_node("n7", NOW)
        assert count_calls(lambda: store.assess_node("n7", NOW)) < 1_000
        assert count_calls(lambda: store.assess(NOW)) > 3_000


class TestReplication:
    """Two stores may receive different reports; after an exchange they are equal."""

    def exchange(self, one: EvidenceStore, other: EvidenceStore) -> list[tuple[str, str, int, int]]:
        other.restore("app", one.of_application("app"))
        one.restore("app", other.of_application("app"))
        assert one.assess(NOW) == other.assess(NOW)
        pieces = [piece.evidence for piece in one.assess(NOW)]
        return [(e.node, e.finding.reason, e.first_seen - NOW, e.last_seen - NOW) for e in pieces]

    def test_a_replica_that_missed_the_first_report_gets_its_time(self) -> None:
        one, other = new_store(), new_store()
        one.record("app", {"a": EXCLUDED}, NOW)
        one.record("app", {"a": EXCLUDED}, NOW + 10)
        assert self.exchange(one, other) == [("a", EXCLUDED.reason, 0, 10)]

    def test_a_replica_that_missed_a_report_keeps_it_until_it_expires(self) -> None:
        one, other = new_store(), new_store()
        one.record("app", {"a": EXCLUDED}, NOW)
        one.record("app", {"b": SLOW}, NOW + 10)
        assert self.exchange(one, other) == [("a", EXCLUDED.reason, 0, 0), ("b", SLOW.reason, 10, 10)]

    @pytest.mark.parametrize("later", [10, TTL_MS - 1])
    def test_reports_received_by_different_replicas_are_joined(self, later: int) -> None:
        one, other = new_store(), new_store()
        one.record("app", {"a": EXCLUDED}, NOW)
        other.record("app", {"a": Finding(kind=FindingKind.EXCLUDED, reason="Worse.")}, NOW + later)
        assert self.exchange(one, other) == [("a", "Worse.", 0, later)]

    @pytest.mark.parametrize(("later", "finding"), [(TTL_MS, EXCLUDED), (10, SLOW)])
    def test_evidence_after_a_gap_or_of_another_kind_is_new(self, later: int, finding: Finding) -> None:
        one, other = new_store(), new_store()
        one.record("app", {"a": EXCLUDED}, NOW)
        other.record("app", {"a": finding}, NOW + later)
        assert self.exchange(one, other) == [("a", finding.reason, later, later)]

    def test_a_second_exchange_changes_nothing(self) -> None:
        one, other = new_store(), new_store()
        one.record("app", {"a": EXCLUDED, "b": SLOW}, NOW)
        assert self.exchange(one, other) == self.exchange(one, other)

    def test_restoring_keeps_the_limit_per_application(self) -> None:
        one, other = new_store(), new_store()
        one.record("app", {"first": EXCLUDED}, NOW)
        other.record("app", {f"n{number}": EXCLUDED for number in range(MAX_PER_PRINCIPAL)}, NOW + 1)
        one.restore("app", other.of_application("app"))
        assert one.of_application("app") == other.of_application("app")


class TestQuorum:
    """A minimum number of applications must report a node within the window."""

    def test_repeated_reports_of_one_application_are_not_enough(self) -> None:
        store = new_store()
        for time in range(5):
            store.record("app", {"a": EXCLUDED}, NOW + time)
        assert due_nodes(store, NOW + 5) == []

    def test_two_applications_are_enough_whatever_the_kind(self) -> None:
        store = new_store()
        store.record("x", {"a": EXCLUDED, "b": EXCLUDED}, NOW)
        store.record("y", {"a": SLOW}, NOW + 5)
        assert [(piece.node, piece.end) for piece in store.verdicts(NOW + 5)] == [("a", NOW + 5 + TTL_MS)]

    @pytest.mark.parametrize(("applications", "expected"), [(0, []), (1, ["a"]), (3, ["a"]), (4, [])])
    def test_the_number_of_applications_is_a_setting_and_0_disables_blocking(
        self, applications: int, expected: list[str]
    ) -> None:
        store = new_store(applications)
        for application in "xyz":
            store.record(application, {"a": EXCLUDED}, NOW)
        assert due_nodes(store, NOW) == expected


class TestMachines:
    """A machine may be reported under several of its names; it counts as one, and each report for one machine."""

    def due(self, **reported: Collection[str]) -> dict[str, list[str]]:
        store = new_store()
        for application, nodes in reported.items():
            store.record(application, dict.fromkeys(nodes, EXCLUDED), NOW)
        return {it.node: [piece.application for piece in it.evidence] for it in store.verdicts(NOW)}

    @pytest.mark.parametrize(
        ("one", "other", "blocked"),
        [
            ("n1", "N1", "n1"),
            ("n1", "n1.example.com", "n1.example.com"),
            ("N1.example.com", "n1.EXAMPLE.com", "N1.example.com"),
            ("10.0.0.7", "::ffff:10.0.0.7", "10.0.0.7"),
        ],
    )
    def test_two_names_of_a_machine_are_enough(self, one: str, other: str, blocked: str) -> None:
        assert list(self.due(x=[one], y=[other])) == [blocked]

    def test_machines_of_two_domains_are_not_one(self) -> None:
        assert self.due(x=["n1.a"], y=["n1.b"]) == {}

    def test_a_short_name_counts_for_one_of_several_full_names(self) -> None:
        assert self.due(x=["n1"], y=[f"n1.x{number}" for number in range(5)]) == {"n1.x0": ["y", "x"]}
        assert self.due(x=["n1.a", "n1.b"], y=["n1.b"], z=["n1"]) == {"n1.b": ["x", "y", "z"]}

    def test_one_application_that_uses_two_names_counts_once(self) -> None:
        store = new_store()
        store.record("x", {"n1": EXCLUDED, "n1.a": EXCLUDED}, NOW)
        assert due_nodes(store, NOW) == []


class TestNamesInTheInventory:
    """Names and addresses that only the inventory knows are one machine."""

    def store(self, *nodes: ReportedNode) -> EvidenceStore:
        inventory = Inventory()
        inventory.stage_nodes(NodeSource(kind=SourceKind.MANAGER, name="yarn"), nodes)
        inventory.apply_staged()
        return EvidenceStore(2, lambda application: application, inventory.aliases, inventory.machine_of)

    N7 = ReportedNode(id="n7", names=("worker-7.rack2",), addresses=("10.0.0.7",))

    def test_a_name_and_an_address_count_together(self) -> None:
        store = self.store(self.N7)
        store.record("x", {"10.0.0.7": EXCLUDED}, NOW)
        assert due_nodes(store, NOW) == []
        store.record("y", {"worker-7.rack2": EXCLUDED}, NOW)
        assert len(due_nodes(store, NOW)) == 1

    def test_two_names_that_one_application_reports_are_one_node(self) -> None:
        store = self.store(self.N7)
        for application in "xy":
            store.record(application, {"10.0.0.7": EXCLUDED, "worker-7.rack2": EXCLUDED}, NOW)
        assert len(due_nodes(store, NOW)) == 1

    def test_evidence_from_before_an_unblock_under_another_name_does_not_count(self) -> None:
        store = self.store(self.N7)
        store.record("x", {"10.0.0.7": EXCLUDED}, NOW)
        store.record("y", {"worker-7.rack2": EXCLUDED}, NOW)
        store.record_unblock("n7", NOW + 1)
        assert due_nodes(store, NOW + 1) == []

    def test_an_address_of_two_nodes_counts_for_neither(self) -> None:
        store = self.store(*(ReportedNode(id=node, addresses=("10.0.0.7",)) for node in ("n7", "n8")))
        for application, node in (("x", "10.0.0.7"), ("y", "n7"), ("z", "n8")):
            store.record(application, {node: EXCLUDED}, NOW)
        assert due_nodes(store, NOW) == []


class TestPrincipals:
    """All that one principal registers counts once."""

    TOKENS: Final = {"a-1": "a", "a-2": "a", "a-3": "a", "b-1": "b"}

    def store(self, principals: int = 2) -> EvidenceStore:
        return new_store(principals, self.TOKENS.get)

    def test_applications_of_two_principals_are_enough_and_all_are_named(self) -> None:
        store = self.store()
        for application in ("a-1", "a-2", "a-3"):
            store.record(application, {"a": EXCLUDED}, NOW)
        assert due_nodes(store, NOW) == []
        store.record("b-1", {"a": EXCLUDED}, NOW)
        (verdict,) = store.verdicts(NOW)
        assert [piece.application for piece in verdict.evidence] == ["a-1", "a-2", "a-3", "b-1"]

    def test_an_application_takes_over_from_another_one_of_its_principal(self) -> None:
        store = self.store()
        for application in ("a-1", "b-1"):
            store.record(application, {"a": EXCLUDED}, NOW)
        for application in ("a-2", "b-1"):
            store.record(application, {"a": EXCLUDED}, NOW + TTL_MS - 1)
        assert [piece.application for piece in store.verdicts(NOW + TTL_MS)[0].evidence] == ["a-2", "b-1"]

    def test_an_application_without_a_principal_does_not_count(self) -> None:
        store = self.store(principals=1)
        store.record("unknown", {"a": EXCLUDED}, NOW)
        assert due_nodes(store, NOW) == []
        (piece,) = store.assess(NOW)
        assert piece.ignored_reason == (
            "It is not known with which token the application registered: its evidence is ignored."
        )

    @given(
        st.lists(st.tuples(st.sampled_from(["a-1", "a-2", "a-3"]), st.sampled_from("abcde"))),
        st.sets(st.sampled_from("abcde")),
    )
    def test_no_reports_of_one_principal_block_anything(self, reports: list[tuple[str, str]], other: set[str]) -> None:
        store = self.store()
        for application, node in reports:
            store.record(application, {node: EXCLUDED}, NOW)
        store.record("b-1", dict.fromkeys(other, EXCLUDED), NOW)
        assert set(due_nodes(store, NOW)) <= other

    @given(st.lists(st.tuples(st.sampled_from([*TOKENS, "c"]), st.sampled_from("abcde"))), st.integers(1, 3))
    def test_what_is_believed_is_what_blocks(self, reports: list[tuple[str, str]], principals: int) -> None:
        store = self.store(principals)
        for application, node in reports:
            store.record(application, {node: EXCLUDED}, NOW)
        believed: defaultdict[str, set[str]] = defaultdict(set)
        for piece in store.assess(NOW):
            if piece.ignored_reason is None:
                believed[piece.evidence.node].add(self.TOKENS[piece.evidence.application])
        assert due_nodes(store, NOW) == sorted(node for node, found in believed.items() if len(found) >= principals)


class TestUnblocking:
    """After a manual unblock, only new evidence blocks a node again."""

    def test_evidence_from_before_an_unblock_never_counts_again(self) -> None:
        store = new_store()
        for time in (NOW, NOW + 30_000, NOW + 60_000, NOW + 90_000):
            for application in "xy":
                store.record(application, {"a": EXCLUDED}, time)
            store.record_unblock("a", NOW)
            store.prune(time)
            assert due_nodes(store, time) == []
        (piece, _) = store.assess(NOW + 90_000)
        assert piece.ignored_reason == "The node was unblocked manually after this was first reported."

    def test_new_evidence_counts(self) -> None:
        store = new_store()
        for application in "xy":
            store.record(application, {"a": EXCLUDED}, NOW)
        store.record_unblock("a", NOW + 1)
        store.record("v", {"a": EXCLUDED}, NOW + 2)
        assert due_nodes(store, NOW + 2) == []
        store.record("w", {"a": EXCLUDED}, NOW + 2)
        assert [piece.application for piece in store.verdicts(NOW + 2)[0].evidence] == ["v", "w"]

    def test_other_nodes_are_not_affected(self) -> None:
        store = new_store()
        for application in "xy":
            store.record(application, {"a": EXCLUDED, "b": EXCLUDED}, NOW)
        store.record_unblock("a", NOW)
        assert due_nodes(store, NOW) == ["b"]

    def test_evidence_of_another_replica_may_arrive_after_the_unblock(self) -> None:
        """A replica that was paused reads the change first."""
        store = new_store()
        store.record_unblock("a", NOW + 1)
        store.prune(NOW + 2)
        for application in "xy":
            store.restore(application, [replace(verdict().evidence[0], application=application)])
        store.prune(NOW + 3)
        assert due_nodes(store, NOW + 3) == []

    def test_an_unblock_in_the_future_covers_reports_until_then(self) -> None:
        """After a restart, what is new is not known."""
        store = new_store()
        store.record_unblock("a", NOW + 1000)
        store.prune(NOW)
        for application in "xy":
            store.record(application, {"a": EXCLUDED}, NOW + 1000)
        store.prune(NOW + 1001)
        assert due_nodes(store, NOW + 1001) == []


def verdict(node: str = "a", at: int = NOW, applications: int = 2, finding: Finding = EXCLUDED) -> EvidenceVerdict:
    evidence = tuple(
        Evidence(application=f"app-{number}", node=node, finding=finding, first_seen=at, last_seen=at)
        for number in range(1, applications + 1)
    )
    return EvidenceVerdict(node=node, end=at + TTL_MS, evidence=evidence)


def tracker(*nodes: BlockedNode, author: str | None = None) -> BlocklistTracker:
    """A list with these nodes, which this author claims."""
    by_id = {node.id: node for node in nodes}
    claims = {node.id: author_claim(author, node) for node in nodes}
    return BlocklistTracker(Snapshot(revision=7, history="00000000", nodes=by_id, claims=claims))


def node(cause: str = "Hot", *, end: int = PERMANENT, action: BlockAction = BlockAction.MARK_BLOCKED) -> BlockedNode:
    return BlockedNode(id="a", action=action, start=NOW - 1, end=end, cause=cause)


CAUSE = "2 applications say so: app-1 (Spark excluded the host); app-2 (Spark excluded the host)"


class TestBlocks:
    """The block that a verdict leads to."""

    def test_a_block_lasts_an_hour_from_the_last_report(self) -> None:
        (block,) = due_blocks([verdict()], tracker(), NOW + 10)
        assert block == BlockedNode(
            id="a", action=BlockAction.MARK_BLOCKED, start=NOW + 10, end=NOW + BLOCK_MS, cause=CAUSE
        )

    def test_an_expired_verdict_blocks_nothing(self) -> None:
        assert due_blocks([verdict()], tracker(), NOW + TTL_MS) == []

    def test_a_block_is_renewed_in_its_last_half_with_the_same_cause(self) -> None:
        current = tracker(node(CAUSE, end=NOW + BLOCK_MS), author=EVIDENCE_OWNER)
        later = verdict(at=NOW + BLOCK_MS // 2, applications=5)
        assert due_blocks([later], current, NOW + BLOCK_MS // 2 - 1) == []
        (renewal,) = due_blocks([later], current, NOW + BLOCK_MS // 2)
        assert (renewal.cause, renewal.end) == (CAUSE, NOW + BLOCK_MS // 2 + BLOCK_MS)

    def test_a_block_of_somebody_else_gets_a_claim_of_the_evidence_once(self) -> None:
        draft = Draft(tracker(node(end=NOW + BLOCK_MS * 10, action=BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS)), NOW)
        draft.author = Author(EVIDENCE_OWNER)
        (block,) = due_blocks([verdict()], draft, NOW)
        assert draft.block(block, allow_merge=True).cause == f"Hot,{CAUSE}"
        assert evidence_claim(draft, "a", NOW) == block
        assert due_blocks([verdict()], draft, NOW) == []

    def test_a_claim_that_a_person_has_made_a_canary_is_ordinary_again(self) -> None:
        draft = Draft(tracker(node(CAUSE, end=NOW + BLOCK_MS), author=EVIDENCE_OWNER), NOW)
        draft.author = Author("anna")
        draft.put_claim(EVIDENCE_OWNER, replace(node(CAUSE, end=NOW + BLOCK_MS), canary=True))
        draft.author = Author(EVIDENCE_OWNER)
        (block,) = due_blocks([verdict()], draft, NOW)
        assert not draft.block(block, allow_merge=True).canary
        assert due_blocks([verdict()], draft, NOW) == []

    def test_an_ended_block_is_not_renewed(self) -> None:
        current = tracker(node(CAUSE, end=NOW), author=EVIDENCE_OWNER)
        (block,) = due_blocks([verdict(finding=SLOW)], current, NOW)
        assert block.cause == "2 applications say so: app-1 (Slow; very slow); app-2 (Slow; very slow)"

    @pytest.mark.parametrize(
        ("applications", "ends"),
        [
            (1, "1 application says so: app-1 (Spark excluded the host)"),
            (3, "; app-3 (Spark excluded the host)"),
            (5, "; app-3 (Spark excluded the host); and 2 more"),
        ],
    )
    def test_a_cause_names_at_most_three_applications(self, applications: int, ends: str) -> None:
        (block,) = due_blocks([verdict(applications=applications)], tracker(), NOW)
        assert block.cause.endswith(ends)

    @given(
        st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1, max_size=MAX_REASON_LENGTH)
    )
    def test_a_cause_is_one_part_of_bounded_length_for_any_reason(self, reason: str) -> None:
        (block,) = due_blocks(
            [verdict(applications=3, finding=Finding(kind=FindingKind.SLOW, reason=reason))], tracker(), NOW
        )
        assert len(block.cause) < 700
        assert "," not in block.cause


steps = st.lists(
    st.tuples(
        st.integers(0, 40_000),
        st.sampled_from(["x", "y", "z"]),
        st.one_of(st.just("unblock"), st.sets(st.sampled_from(["a", "b"]))),
    ),
    max_size=30,
)


@given(steps)
def test_a_block_always_rests_on_enough_new_evidence(
    steps: list[tuple[int, str, str | set[str]]],
) -> None:
    """Compared with a direct implementation of the rule."""
    store, now = new_store(), NOW
    reported_at: dict[tuple[str, str], int] = {}
    first_reported: dict[tuple[str, str], int] = {}
    unblocked = 0
    draft = Draft(tracker(), now)
    draft.author = Author(EVIDENCE_OWNER)
    for elapsed, application, what in steps:
        now += elapsed
        draft.now = now
        if what == "unblock":
            store.record_unblock("a", now)
            unblocked = now
            if draft.get_blocked("a"):
                draft.unblock("a")
        else:
            for each in what:
                if now - reported_at.get((application, each), -TTL_MS) >= TTL_MS:
                    first_reported[application, each] = now
                reported_at[application, each] = now
            store.record(application, dict.fromkeys(what, EXCLUDED), now)
        store.prune(now)
        for wanted in due_blocks(store.verdicts(now), draft, now):
            draft.block(wanted, allow_merge=True)
        _check(draft.get_blocked("a"), reported_at, first_reported, unblocked, now)


def _check(
    blocked: BlockedNode | None,
    reported_at: Mapping[tuple[str, str], int],
    first_reported: Mapping[tuple[str, str], int],
    unblocked: int,
    now: int,
) -> None:
    reporters = [
        application
        for application in "xyz"
        if now - reported_at.get((application, "a"), -TTL_MS) < TTL_MS
        and first_reported.get((application, "a"), 0) > unblocked
    ]
    if len(reporters) >= 2:
        assert blocked is not None
        assert blocked.cause.count("say so") == 1
        assert now < blocked.end <= max(reported_at[application, "a"] for application in reporters) + BLOCK_MS


@given(duration=st.integers(TTL_MS, 10 * TTL_MS), left=st.integers(1, 20 * TTL_MS))
def test_a_longer_block_is_renewed_in_the_last_half_of_its_duration(duration: int, left: int) -> None:
    store = new_store(1)
    store.record("app", {"a": EXCLUDED}, NOW)
    draft = Draft(BlocklistTracker(Snapshot(revision=0, history="00000000")), NOW)
    draft.author = Author(EVIDENCE_OWNER)
    draft.block(
        BlockedNode(id="a", action=BlockAction.MARK_BLOCKED, start=0, end=NOW + left, cause="x"), allow_merge=True
    )
    due = due_blocks(store.verdicts(NOW), draft, NOW, lambda _: duration)
    assert [it.end for it in due] == ([NOW + duration] if left <= duration // 2 else [])
