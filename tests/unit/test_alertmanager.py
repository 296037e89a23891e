"""The rules of alerts: their nodes, their parts of a cause, and when a node is blocked, renewed and unblocked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.alertmanager import (
    Alert,
    AlertmanagerPost,
    AlertOutcome,
    _by_node,
    alert_cause,
    decide,
    event_after,
    is_dismissed,
    is_known,
    is_late,
    node_of,
    parse_post,
    read_alert,
)
from app.engine.background import on_changes
from app.store.tables import AlertEvent
from blocklist.model.changes import Author, Change, ChangeType, Snapshot, Source
from blocklist.model.claims import MAX_CLAIMS, Claims
from blocklist.model.draft import BlocklistTracker, Draft, claims_on
from blocklist.model.errors import InvalidError
from blocklist.model.evidence import Dismissal, EvidenceStore, Finding, FindingKind
from blocklist.model.node import MAX_CAUSE_LENGTH, PERMANENT, BlockAction, BlockedNode
from blocklist.wire.body import dump_json
from tests.alertmanager.posts import alert as alert_body
from tests.alertmanager.posts import post, real_posts, with_action

NOW = 1_000_000
HOUR = 3_600_000
MARK, EVACUATE = BlockAction.MARK_BLOCKED, BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS
A = Alert(node="n1", action=MARK, firing=True, fingerprint="aaaaaaaa", name="DiskFull", summary="/data1 is full")
B = replace(A, fingerprint="bbbbbbbb", name="Hot", summary="93 degrees")
A_RESOLVED, B_RESOLVED = replace(A, firing=False, summary=""), replace(B, firing=False, summary="")
A_PART, B_PART = "alert DiskFull: /data1 is full", "alert Hot: 93 degrees"


class NodeSimulation:
    """A list to which posts of alerts about n1 are applied."""

    def __init__(self, now: int = NOW) -> None:
        self.now = now
        self.tracker = BlocklistTracker(Snapshot(revision=0, history="00000000"))
        self.outcomes: list[AlertOutcome] = []

    def post(self, *alerts: Alert) -> NodeSimulation:
        """Apply a post."""
        draft = Draft(self.tracker, self.now)
        draft.author = Author("alertmanager")
        decision = decide(self.claims, alerts, self.now, HOUR, "alertmanager")
        assert len(decision.outcomes) == len(alerts)
        if decision.put or decision.remove:
            draft.change_claims("n1", decision.put, decision.remove)
        self.outcomes = list(decision.outcomes)
        return self._commit(draft)

    def block(self, cause: str, *, end: int = PERMANENT, action: BlockAction = MARK) -> NodeSimulation:
        """Block n1 for another cause, or merge."""
        draft = Draft(self.tracker, self.now)
        node = BlockedNode(id="n1", action=action, start=self.now, end=end, cause=cause)
        draft.author = Author("anna")
        draft.block(node, allow_merge=True)
        return self._commit(draft)

    def put(self, owner: str, block: BlockedNode) -> NodeSimulation:
        """A claim that anna makes for an owner."""
        draft = Draft(self.tracker, self.now)
        draft.author = Author("anna")
        draft.put_claim(owner, block)
        return self._commit(draft)

    def _commit(self, draft: Draft) -> NodeSimulation:
        for change in draft.changes:
            self.tracker.apply(change)
        return self

    @property
    def node(self) -> BlockedNode | None:
        return Draft(self.tracker, self.now).get_blocked("n1")

    @property
    def claims(self) -> Claims:
        return () if self.node is None else claims_on(self.tracker, self.node, self.now)

    @property
    def holding(self) -> set[str]:
        """The fingerprints of the alerts that claim the node."""
        return {it.owner.removeprefix("alertmanager/") for it in self.claims if it.owner != "anna"}

    @property
    def cause(self) -> str | None:
        return None if self.node is None else self.node.cause

    @property
    def revision(self) -> int:
        return self.tracker.revision


class TestBlocking:
    """A firing alert blocks its node, always with an end."""

    def test_a_free_node_is_blocked_for_the_duration(self) -> None:
        simulation = NodeSimulation().post(A)
        assert simulation.node == BlockedNode(id="n1", action=MARK, start=NOW, end=NOW + HOUR, cause=A_PART)
        assert (simulation.outcomes, simulation.revision) == ([AlertOutcome.BLOCKED], 1)

    def test_several_alerts_make_one_block_with_the_strongest_action(self) -> None:
        simulation = NodeSimulation().post(A, replace(B, action=EVACUATE))
        assert (simulation.cause, simulation.revision) == (f"{A_PART},{B_PART}", 1)
        assert simulation.node is not None
        assert simulation.node.action is EVACUATE

    def test_an_existing_block_is_merged(self) -> None:
        simulation = NodeSimulation().block("Kernel upgrade").post(A)
        assert (simulation.cause, simulation.outcomes) == (f"Kernel upgrade,{A_PART}", [AlertOutcome.MERGED])
        assert simulation.node is not None
        assert simulation.node.permanent

    def test_a_second_alert_is_merged(self) -> None:
        simulation = NodeSimulation().post(A).post(A, B)
        assert (simulation.cause, simulation.revision) == (f"{A_PART},{B_PART}", 2)
        assert simulation.outcomes == [AlertOutcome.UNCHANGED, AlertOutcome.MERGED]


class TestRepeats:
    """A repeated group changes nothing, except in the second half of the block's duration."""

    @pytest.mark.parametrize("summary", ["/data1 is full", "", "/data1 is fuller"])
    def test_nothing_changes_while_half_of_the_time_is_left(self, summary: str) -> None:
        simulation = NodeSimulation().post(A)
        simulation.now += HOUR // 2
        simulation.post(replace(A, summary=summary))
        assert (simulation.revision, simulation.outcomes, simulation.cause) == (1, [AlertOutcome.UNCHANGED], A_PART)

    def test_then_the_end_moves_and_the_cause_stays(self) -> None:
        simulation = NodeSimulation().post(A)
        simulation.now += HOUR // 2 + 1
        simulation.post(replace(A, summary="/data1 is fuller"))
        assert (simulation.revision, simulation.outcomes, simulation.cause) == (2, [AlertOutcome.RENEWED], A_PART)
        assert simulation.node is not None
        assert (simulation.node.start, simulation.node.end) == (NOW, simulation.now + HOUR)

    def test_a_stronger_action_applies_immediately(self) -> None:
        simulation = NodeSimulation().post(A).post(replace(A, action=EVACUATE))
        assert (simulation.revision, simulation.outcomes) == (2, [AlertOutcome.RENEWED])
        assert simulation.node is not None
        assert simulation.node.action is EVACUATE

    def test_a_weaker_action_too(self) -> None:
        simulation = NodeSimulation().post(replace(A, action=EVACUATE)).post(A)
        assert (simulation.revision, simulation.outcomes) == (2, [AlertOutcome.RENEWED])
        assert simulation.node is not None
        assert simulation.node.action is MARK

    def test_a_claim_that_a_person_has_made_a_canary_is_ordinary_again(self) -> None:
        simulation = NodeSimulation().post(A)
        [claim] = simulation.claims
        simulation.put(claim.owner, replace(claim.block, canary=True))
        assert simulation.node is not None
        assert simulation.node.canary
        assert simulation.post(A).outcomes == [AlertOutcome.RENEWED]
        assert not simulation.node.canary

    def test_an_alert_is_renewed_beside_a_longer_block(self) -> None:
        simulation = NodeSimulation().block("Kernel upgrade").post(A)
        simulation.now += HOUR // 2 + 1
        assert simulation.post(A).outcomes == [AlertOutcome.RENEWED]
        assert [it.block.end for it in simulation.claims] == [PERMANENT, simulation.now + HOUR]

    def test_an_expired_node_is_blocked_again(self) -> None:
        simulation = NodeSimulation().post(A)
        simulation.now += HOUR
        simulation.post(A)
        # Blocked, expired, blocked.
        assert (simulation.revision, simulation.outcomes, simulation.cause) == (3, [AlertOutcome.BLOCKED], A_PART)


class TestResolving:
    """The node is unblocked when the last alert that holds it has resolved, unless there is another cause."""

    def test_the_only_alert_unblocks_it(self) -> None:
        simulation = NodeSimulation().post(A).post(A_RESOLVED)
        assert (simulation.node, simulation.outcomes, simulation.revision) == (None, [AlertOutcome.FREED], 2)
        assert (simulation.post(A_RESOLVED).outcomes, simulation.revision) == ([AlertOutcome.UNCHANGED], 2)

    def test_the_last_of_two_alerts_unblocks_it(self) -> None:
        simulation = NodeSimulation().post(A, B).post(A_RESOLVED)
        assert simulation.outcomes == [AlertOutcome.KEPT]
        assert simulation.cause == B_PART
        assert (simulation.node and simulation.node.end) == NOW + HOUR
        assert simulation.post(A_RESOLVED).revision == 2
        assert simulation.post(B_RESOLVED).node is None

    def test_two_resolved_in_one_post_unblock_it(self) -> None:
        simulation = NodeSimulation().post(A, B).post(A_RESOLVED, B_RESOLVED)
        assert (simulation.node, simulation.outcomes) == (None, [AlertOutcome.FREED, AlertOutcome.FREED])

    def test_one_resolves_and_another_fires_in_the_same_post(self) -> None:
        simulation = NodeSimulation().post(A).post(A_RESOLVED, B)
        assert simulation.cause == B_PART
        assert (simulation.outcomes, simulation.revision) == ([AlertOutcome.KEPT, AlertOutcome.MERGED], 2)
        assert simulation.post(B_RESOLVED).node is None

    @pytest.mark.parametrize("first", [True, False])
    def test_with_another_cause_it_stays_blocked(self, first: bool) -> None:
        simulation = NodeSimulation()
        if first:
            simulation.block("Kernel upgrade", end=NOW + 2 * HOUR)
        simulation.post(A)
        if not first:
            simulation.block("Kernel upgrade", end=NOW + 2 * HOUR)
        simulation.post(A_RESOLVED)
        assert simulation.outcomes == [AlertOutcome.KEPT]
        assert simulation.cause == "Kernel upgrade"
        assert simulation.post(A_RESOLVED).revision == 3

    def test_an_alert_of_the_same_name_about_another_disk_is_another(self) -> None:
        other = replace(A, fingerprint="cccccccc", summary="/data2 is full")
        simulation = NodeSimulation().post(A, other).post(A_RESOLVED)
        assert simulation.post(replace(other, firing=False)).node is None

    def test_an_alert_that_fires_again_holds_it_again(self) -> None:
        simulation = NodeSimulation().post(A, B).post(A_RESOLVED)
        simulation.now += 1
        assert simulation.post(A).cause == f"{B_PART},{A_PART}"
        assert simulation.post(A).outcomes == [AlertOutcome.UNCHANGED]
        assert simulation.post(B_RESOLVED).outcomes == [AlertOutcome.KEPT]
        assert simulation.post(A_RESOLVED).node is None

    def test_a_resolved_alert_that_does_not_hold_the_node_changes_nothing(self) -> None:
        simulation = NodeSimulation().block("Kernel upgrade").post(A_RESOLVED)
        assert (simulation.outcomes, simulation.revision) == ([AlertOutcome.UNCHANGED], 1)


MINUTE = 60_000
FIRED = replace(A, started_at=NOW)
ENDED = replace(A_RESOLVED, started_at=NOW, ended_at=NOW + MINUTE)
DISMISSAL = Dismissal(A.owner, NOW + MINUTE, "anna", revision=5)


def events(*posts: tuple[Alert, int], revision: int = 0) -> AlertEvent | None:
    """The event that is known after these posts, with the times at which they came."""
    event: AlertEvent | None = None
    for alert, now in posts:
        if not is_late(alert, event, now, HOUR):
            event = event_after(alert, event, now, revision)
    return event


class TestLatePosts:
    """A post about an event that the service has seen end changes nothing."""

    SEEN_END = NOW + 2 * MINUTE

    @pytest.mark.parametrize(
        "posts",
        [
            [(FIRED, NOW), (ENDED, SEEN_END)],
            [(FIRED, NOW), (ENDED, SEEN_END - MINUTE), (FIRED, SEEN_END), (ENDED, SEEN_END)],
            [(ENDED, SEEN_END)],
            [(ENDED, SEEN_END - MINUTE), (ENDED, SEEN_END)],
            [(replace(FIRED, started_at=NOW - 5000), NOW), (ENDED, SEEN_END)],
            [(FIRED, NOW), (replace(ENDED, ended_at=NOW + MINUTE), SEEN_END), (replace(ENDED, ended_at=1), SEEN_END)],
        ],
        ids=["fired and ended", "again and again", "end first", "end twice", "began twice", "end before the beginning"],
    )
    def test_a_firing_post_after_the_end(self, posts: list[tuple[Alert, int]]) -> None:
        event = events(*posts)
        assert is_late(FIRED, event, self.SEEN_END, HOUR)
        assert is_late(replace(FIRED, started_at=ENDED.ended_at), event, self.SEEN_END + HOUR - 1, HOUR)
        assert not is_late(replace(FIRED, started_at=NOW + MINUTE + 1), event, self.SEEN_END, HOUR), "a new event"

    def test_an_alert_that_is_still_posted_long_after_its_end_fires(self) -> None:
        """As after minutes in which Alertmanager could not hear of Prometheus."""
        event = events((FIRED, NOW), (ENDED, self.SEEN_END))
        assert not is_late(FIRED, event, self.SEEN_END + HOUR, HOUR)
        assert is_known(FIRED, event), "and it is no new event"
        assert events((FIRED, NOW), (ENDED, self.SEEN_END), (FIRED, self.SEEN_END + HOUR)) == AlertEvent(NOW)

    def test_the_end_of_an_earlier_event(self) -> None:
        anew = replace(FIRED, started_at=NOW + 5 * MINUTE)
        event = events((FIRED, NOW), (anew, NOW + 5 * MINUTE))
        assert is_late(ENDED, event, NOW + 6 * MINUTE, HOUR)
        assert not is_late(replace(ENDED, ended_at=NOW + 6 * MINUTE), event, NOW + 6 * MINUTE, HOUR)
        assert is_late(replace(ENDED, ended_at=None), event, NOW + 6 * MINUTE, HOUR), "by its start alone"

    def test_of_two_in_one_post_the_end_counts_in_whatever_order(self) -> None:
        anew = replace(FIRED, started_at=NOW + 5 * MINUTE)
        for posted, counts in (([FIRED, ENDED], ENDED), ([ENDED, FIRED], ENDED), ([anew, ENDED, FIRED], anew)):
            assert _by_node(posted) == {"n1": [counts]}
        assert _by_node([A_RESOLVED, A]) == {"n1": [A]}, "without times the last one"

    def test_without_times_no_post_is_late(self) -> None:
        event = events((A, NOW), (A_RESOLVED, NOW + 1))
        assert not is_late(A, event, NOW + 2, HOUR)
        assert not is_late(A_RESOLVED, event, NOW + 2, HOUR)
        assert not is_known(A, event)

    @given(st.integers(-(10**9), 10**9))
    def test_the_clock_of_the_sender_does_not_matter(self, ahead: int) -> None:
        def shifted(alert: Alert, by: int = 0) -> Alert:
            ended = None if alert.ended_at is None else alert.ended_at + ahead + by
            return replace(alert, started_at=NOW + ahead + by, ended_at=ended)

        event = events((shifted(FIRED), NOW), (shifted(ENDED), self.SEEN_END))
        assert is_late(shifted(FIRED), event, self.SEEN_END, HOUR)
        assert not is_late(shifted(FIRED, 3 * MINUTE), event, self.SEEN_END, HOUR)

    def test_only_an_event_that_was_seen_before_is_known(self) -> None:
        assert not is_known(FIRED, None)
        assert is_known(FIRED, events((FIRED, NOW)))
        assert not is_known(replace(FIRED, started_at=NOW + 1), events((FIRED, NOW)))


class TestDismissedAlerts:
    """Somebody has unblocked the node: the alert counts once it has been seen to end, and fires anew."""

    RESTARTED = replace(A, started_at=NOW + 10 * MINUTE)
    """As after a restart of Prometheus."""

    def test_until_the_end_is_seen(self) -> None:
        fired = events((FIRED, NOW))
        assert is_dismissed(FIRED, fired, DISMISSAL)
        assert is_dismissed(FIRED, None, DISMISSAL)
        assert is_dismissed(self.RESTARTED, fired, DISMISSAL), "another start, and no end"
        assert is_dismissed(A, fired, DISMISSAL), "without a start"
        assert not is_dismissed(FIRED, fired, None)

    def test_after_the_end_a_new_event_counts_and_keeps_counting(self) -> None:
        ended = events((FIRED, NOW), (ENDED, NOW + 2 * MINUTE), revision=5)
        assert is_dismissed(FIRED, ended, DISMISSAL), "the event that was dismissed"
        assert not is_dismissed(self.RESTARTED, ended, DISMISSAL)
        again = event_after(self.RESTARTED, ended, NOW + 11 * MINUTE, 7)
        assert not is_dismissed(self.RESTARTED, again, DISMISSAL)
        assert is_dismissed(self.RESTARTED, again, DISMISSAL._replace(revision=8)), "dismissed once more"

    def test_an_end_that_was_seen_before_does_not_count(self) -> None:
        ended = events((FIRED, NOW), (ENDED, NOW + MINUTE), revision=4)
        assert is_dismissed(self.RESTARTED, ended, DISMISSAL)


@pytest.mark.parametrize(("source", "believed"), [(Source.REQUEST, False), (Source.ALERTMANAGER, True)])
def test_evidence_still_counts_after_an_unblock_by_a_resolved_alert(source: Source, believed: bool) -> None:
    book = EvidenceStore(2, lambda application: application)
    book.record("app", {"n1": Finding(kind=FindingKind.SLOW, reason="Slow.")}, NOW)
    node = BlockedNode(id="n1", action=MARK, start=0, end=PERMANENT, cause=A_PART)
    on_changes(book, [Change(revision=1, type=ChangeType.UNBLOCKED, at=NOW, node=node, source=source)])
    assert [piece.ignored_reason is None for piece in book.assess(NOW)] == [believed]


class TestTheCap:
    """A node has at most 32 claims; alerts never take another one's place."""

    def many(self, count: int) -> list[Alert]:
        return [replace(A, fingerprint=f"{number:08x}", name=f"Alert{number}") for number in range(count)]

    def test_further_alerts_wait_for_room(self) -> None:
        alerts = self.many(MAX_CLAIMS + 2)
        simulation = NodeSimulation().post(*alerts)
        assert simulation.outcomes == [AlertOutcome.BLOCKED] * MAX_CLAIMS + [AlertOutcome.CROWDED] * 2
        assert simulation.post(*alerts).revision == 1
        assert simulation.outcomes[-2:] == [AlertOutcome.CROWDED] * 2
        simulation.post(*alerts[2:], *(replace(alert, firing=False) for alert in alerts[:2]))
        assert simulation.outcomes[-4:-2] == [AlertOutcome.MERGED] * 2
        assert simulation.holding == {alert.fingerprint for alert in alerts[2:]}


TEXT = st.text(st.characters(codec=None), max_size=2000) | st.text(max_size=50)
ALERTS = [
    replace(A, fingerprint=mark * 8, name=mark.upper(), action=action, firing=firing)
    for mark in "abc"
    for action in (MARK, EVACUATE)
    for firing in (True, False)
]
POSTS = st.lists(
    st.lists(st.sampled_from(ALERTS), min_size=1, max_size=3, unique_by=lambda alert: alert.fingerprint), max_size=12
)
Posts = Sequence[Sequence[Alert]]


def run(posts: Posts, *, foreign: bool = False) -> NodeSimulation:
    simulation = NodeSimulation()
    if foreign:
        simulation.block("Kernel upgrade")
    for alerts in posts:
        simulation.post(*alerts)
    return simulation


class TestAnySequence:
    @given(posts=POSTS, foreign=st.booleans())
    def test_the_last_state_of_an_alert_counts(self, posts: Posts, foreign: bool) -> None:
        last = {alert.fingerprint: alert.firing for alerts in posts for alert in alerts}
        simulation = run(posts, foreign=foreign)
        firing = {mark for mark, fires in last.items() if fires}
        assert simulation.holding >= firing
        assert (simulation.node is not None) == (foreign or bool(firing))
        if not foreign:
            assert simulation.holding == firing

    @given(posts=POSTS, times=st.integers(2, 4), foreign=st.booleans())
    def test_a_repeated_post_has_the_effect_of_one(self, posts: Posts, times: int, foreign: bool) -> None:
        once, often = (
            run(posts, foreign=foreign),
            run([alerts for alerts in posts for _ in range(times)], foreign=foreign),
        )
        assert (often.node, often.revision) == (once.node, once.revision)

    @given(posts=POSTS)
    def test_a_whole_sequence_sent_twice_leaves_the_same_alerts_holding(self, posts: Posts) -> None:
        assert run([*posts, *posts]).holding == run(posts).holding

    @given(posts=POSTS, data=st.data())
    def test_the_order_of_alerts_in_a_post_does_not_matter(self, posts: Posts, data: st.DataObject) -> None:
        mixed = [data.draw(st.permutations(alerts)) for alerts in posts]
        assert run(mixed).holding == run(posts).holding

    @given(name=TEXT, summary=TEXT)
    def test_any_text_makes_one_part(self, name: str, summary: str) -> None:
        simulation = NodeSimulation().post(replace(A, name=name, summary=summary))
        assert simulation.cause is not None
        assert 1 <= len(simulation.cause) <= MAX_CAUSE_LENGTH
        assert "," not in simulation.cause

    @given(cause=st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1), foreign=st.booleans())
    def test_any_cause_can_be_parsed(self, cause: str, foreign: bool) -> None:
        simulation = NodeSimulation().block(cause)
        assert simulation.post(A).post(A_RESOLVED).node is not None


@pytest.mark.parametrize(
    ("name", "summary", "part"),
    [
        ("DiskFull", "", "alert DiskFull"),
        ("", "", "alert"),
        ("", "full", "alert : full"),
        ("Disk,Full", "a, b\r\n\tc  d", "alert Disk;Full: a; b c d"),
        ("Hot", "\x1b[31mred\x7f\u0085", "alert Hot: [31mred"),
        ("Hot", "ü\u2028ß", "alert Hot: ü ß"),
        ("x" * 300, "", f"alert {'x' * 199}…"),
    ],
)
def test_the_text_of_a_part(name: str, summary: str, part: str) -> None:
    assert alert_cause(name, summary) == part


@pytest.mark.parametrize(
    ("labels", "node"),
    [
        ({"node": "worker-17", "instance": "worker-18:9100"}, "worker-17"),
        ({"node": "2001:db8::1"}, "2001:db8::1"),
        ({"node": "[2001:db8::1]"}, "2001:db8::1"),
        ({"node": "", "instance": "worker-18.dc1:9100"}, "worker-18.dc1"),
        ({"instance": "worker-18"}, "worker-18"),
        ({"instance": "10.0.0.7:9100"}, "10.0.0.7"),
        ({"instance": "[2001:db8::1]:9100"}, "2001:db8::1"),
        ({"instance": "[::1]"}, "::1"),
        ({"instance": "2001:db8::1"}, "2001:db8::1"),
        ({"instance": "::1"}, "::1"),
        ({"instance": "https://worker-18:9100/x"}, "https://worker-18:9100/x"),
        ({"instance": ":9100"}, None),
        ({"instance": "[]:9100"}, None),
        ({"instance": ""}, None),
        ({"host": "worker-17"}, None),
        ({}, None),
    ],
)
def test_the_node_of_an_alert(labels: dict[str, str], node: str | None) -> None:
    assert node_of(labels, "node") == node


def test_the_label_of_the_node_is_a_setting() -> None:
    assert node_of({"host": "a", "node": "b", "instance": "c:1"}, "host") == "a"
    assert node_of({"node": "b", "instance": "c:1"}, "host") == "c"


class TestReading:
    @pytest.mark.parametrize(
        ("value", "outcome"),
        [
            (alert_body(blocklist=""), AlertOutcome.UNLABELLED),
            (alert_body(blocklist="drain"), AlertOutcome.UNKNOWN_ACTION),
            (alert_body(blocklist="MARK"), AlertOutcome.UNKNOWN_ACTION),
            (alert_body(node=""), AlertOutcome.NO_NODE),
            (alert_body(node="a/b"), AlertOutcome.BAD_NODE),
            (alert_body(node=".."), AlertOutcome.BAD_NODE),
            (alert_body(node="x" * 254), AlertOutcome.BAD_NODE),
            (alert_body(node="", instance="http://a/b"), AlertOutcome.BAD_NODE),
            ({}, AlertOutcome.UNREADABLE), (None, AlertOutcome.UNREADABLE), ("alert", AlertOutcome.UNREADABLE),
            ([], AlertOutcome.UNREADABLE),
            ({**alert_body(), "status": "pending"}, AlertOutcome.UNREADABLE),
            ({**alert_body(), "labels": ["node"]}, AlertOutcome.UNREADABLE),
            ({**alert_body(), "labels": {"node": 5}}, AlertOutcome.UNREADABLE),
            ({**alert_body(), "annotations": None}, AlertOutcome.UNREADABLE),
            (alert_body(node="\ud800"), AlertOutcome.BAD_NODE),
        ],
    )  # fmt: skip
    def test_ignored_alerts_have_an_outcome(self, value: Any, outcome: AlertOutcome) -> None:
        assert read_alert(value, "node") is outcome

    @pytest.mark.parametrize("starts", [None, 5, "", "soon", "1970-01-01T00:16:39", "0001-01-01T00:00:00Z"], ids=repr)
    def test_an_invalid_start_is_unknown(self, starts: object) -> None:
        read = read_alert({**alert_body(), "startsAt": starts}, "node")
        assert isinstance(read, Alert)
        assert read.started_at is None

    def test_the_whole_fingerprint_is_used(self) -> None:
        read = read_alert({**alert_body(), "fingerprint": "809c736d29768b8c"}, "node")
        assert isinstance(read, Alert)
        assert read.fingerprint == "809c736d29768b8c"

    def test_two_alerts_whose_fingerprints_begin_alike_are_two(self) -> None:
        """One that resolves must not free the node of the other."""
        read = [
            read_alert({**alert_body(), "fingerprint": fingerprint}, "node")
            for fingerprint in ("809c736d29768b8c", "809c736d00000000")
        ]
        assert len({it.owner for it in read if isinstance(it, Alert)}) == 2

    @pytest.mark.parametrize("fingerprint", ["", "809C736D29768B8C", "x,y", "809c", "\ud800"])
    def test_without_a_valid_fingerprint_the_labels_are_hashed(self, fingerprint: str) -> None:
        def mark(disk: str) -> str:
            read = read_alert({**alert_body(disk=disk), "fingerprint": fingerprint}, "node")
            assert isinstance(read, Alert)
            return read.fingerprint

        assert mark("a") == mark("a") != mark("b\udfff")

    @pytest.mark.parametrize(
        "body",
        [b"", b"{", b"[]", b"5", b"null", b"{}", b'{"alerts": null}', b'{"alerts": {}}', b'{"alerts": "x"}', b"\xff"],
    )
    def test_an_invalid_post_is_an_error(self, body: bytes) -> None:
        with pytest.raises(InvalidError):
            parse_post(body)

    @pytest.mark.parametrize(
        ("value", "count"),
        [
            (1, 1),
            (2**53, 2**53),
            (0, 0),
            (-1, 0),
            ("3", 0),
            (None, 0),
            (1.5, 0),
            (True, 0),
            (2**53 + 1, 0),
            (10**400, 0),
        ],
    )
    def test_the_number_of_omitted_alerts(self, value: object, count: int) -> None:
        assert AlertmanagerPost(alerts=[], truncatedAlerts=value).truncated == count

    def test_older_and_newer_versions_are_parsed(self) -> None:
        assert parse_post(dump_json({"alerts": [alert_body()]})).truncated == 0
        newer = {**post({**alert_body(), "values": {"B": 1.5}}), "version": "5", "orgId": 1}
        assert isinstance(read_alert(parse_post(dump_json(newer)).alerts[0], "node"), Alert)


class TestRealPosts:
    def test_without_the_label_they_are_ignored(self) -> None:
        outcomes = {read_alert(value, "node") for body in real_posts() for value in body["alerts"]}
        assert outcomes == {AlertOutcome.UNLABELLED}

    def test_they_name_their_nodes(self) -> None:
        read = [read_alert(value, "node") for value in with_action(real_posts()[0], "evacuate")["alerts"]]
        assert read == [
            Alert(
                node="worker-17", action=EVACUATE, firing=True, fingerprint="809c736d29768b8c", name="NodeDiskPressure",
                summary="disk almost full on worker-17", started_at=1795247704371,
            ),
            Alert(
                node="worker-18", action=EVACUATE, firing=True, fingerprint="d4782649c84de0e7", name="NodeDiskPressure",
                summary="", started_at=1795247704385,
            ),
        ]  # fmt: skip

    def test_another_group_has_no_node(self) -> None:
        (only,) = with_action(real_posts()[1])["alerts"]
        assert read_alert(only, "node") is AlertOutcome.NO_NODE

    def test_the_fingerprint_does_not_change_when_it_resolves(self) -> None:
        marks: dict[str, set[str]] = {}
        for body in real_posts():
            for read in (read_alert(value, "node") for value in with_action(body)["alerts"]):
                if isinstance(read, Alert):
                    marks.setdefault(read.node, set()).add(read.fingerprint)
        assert marks == {
            "worker-17": {"809c736d29768b8c"},
            "worker-18": {"d4782649c84de0e7"},
            "worker-19": {"86572facd1273c8f"},
        }
