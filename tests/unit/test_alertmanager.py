"""The rules of alerts: whom they name, how their part of a cause reads, when a node is blocked, renewed and freed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.evidence_blocks import hear
from app.integrations.alertmanager.causes import Causes
from app.integrations.alertmanager.rules import Alert, Outcome, decide
from app.integrations.alertmanager.wire import AlertmanagerPost, node_of, parse_post, read_alert
from blocklist.model.changes import Change, ChangeType, Snapshot, Source
from blocklist.model.draft import Draft
from blocklist.model.errors import InvalidError
from blocklist.model.evidence import EvidenceBook, Finding, Kind, Rule
from blocklist.model.node import MAX_CAUSE, MAX_CAUSES, PERMANENT, BlockAction, BlockedNode
from blocklist.model.tracker import BlocklistTracker
from blocklist.wire.nodes import dump_json
from tests.alertmanager.posts import alert as alert_body
from tests.alertmanager.posts import asking, post, real_posts

NOW = 1_000_000
HOUR = 3_600_000
MARK, EVACUATE = BlockAction.MARK_BLOCKED, BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS
A = Alert(node="n1", action=MARK, firing=True, mark="aaaaaaaa", name="DiskFull", summary="/data1 is full")
B = replace(A, mark="bbbbbbbb", name="Hot", summary="93 degrees")
A_ENDS, B_ENDS = replace(A, firing=False, summary=""), replace(B, firing=False, summary="")
SAYS_A, SAYS_B = "alert DiskFull: /data1 is full [aaaaaaaa]", "alert Hot: 93 degrees [bbbbbbbb]"


class Board:
    """A list on which alerts work, one post after the other."""

    def __init__(self, now: int = NOW) -> None:
        self.now = now
        self.tracker = BlocklistTracker(Snapshot(revision=0, history="00000000"))
        self.outcomes: list[Outcome] = []

    def post(self, *alerts: Alert) -> Board:
        """Alerts about n1."""
        draft = Draft(self.tracker, self.now)
        step = decide(draft.blocked("n1"), alerts, self.now, HOUR)
        assert len(step.outcomes) == len(alerts)
        if step.block is not None:
            draft.block(step.block, allow_merge=True)
        elif step.free:
            draft.unblock("n1")
        self.outcomes = list(step.outcomes)
        return self._commit(draft)

    def block(self, cause: str, *, end: int = PERMANENT, action: BlockAction = MARK) -> Board:
        """Somebody blocks n1, or merges."""
        draft = Draft(self.tracker, self.now)
        node = BlockedNode(id="n1", action=action, start=self.now, end=end, cause=cause)
        draft.block(node, allow_merge=True)
        return self._commit(draft)

    def _commit(self, draft: Draft) -> Board:
        for change in draft.changes:
            self.tracker.apply(change)
        return self

    @property
    def node(self) -> BlockedNode | None:
        return Draft(self.tracker, self.now).blocked("n1")

    @property
    def cause(self) -> str | None:
        return None if self.node is None else self.node.cause

    @property
    def parts(self) -> list[str]:
        return (self.cause or "").split(",")

    @property
    def revision(self) -> int:
        return self.tracker.revision


class TestBlocking:
    """A firing alert blocks its node, always with an end."""

    def test_a_free_node_is_blocked_for_the_duration(self) -> None:
        board = Board().post(A)
        assert board.node == BlockedNode(id="n1", action=MARK, start=NOW, end=NOW + HOUR, cause=SAYS_A)
        assert (board.outcomes, board.revision) == ([Outcome.BLOCKED], 1)

    def test_several_alerts_make_one_block_with_the_strongest_action(self) -> None:
        board = Board().post(A, replace(B, action=EVACUATE))
        assert (board.cause, board.revision) == (f"{SAYS_A},{SAYS_B}", 1)
        assert board.node is not None
        assert board.node.action is EVACUATE

    def test_somebody_else_s_block_is_merged_with(self) -> None:
        board = Board().block("Kernel upgrade").post(A)
        assert (board.cause, board.outcomes) == (f"Kernel upgrade,{SAYS_A}", [Outcome.MERGED])
        assert board.node is not None
        assert board.node.permanent

    def test_a_second_alert_joins_in(self) -> None:
        board = Board().post(A).post(A, B)
        assert (board.cause, board.revision) == (f"{SAYS_A},{SAYS_B}", 2)
        assert board.outcomes == [Outcome.UNCHANGED, Outcome.MERGED]


class TestRepeats:
    """A group that is sent again is silent, but in the last half of the block's time."""

    @pytest.mark.parametrize("summary", ["/data1 is full", "", "/data1 is fuller"])
    def test_nothing_changes_while_half_of_the_time_is_left(self, summary: str) -> None:
        board = Board().post(A)
        board.now += HOUR // 2
        board.post(replace(A, summary=summary))
        assert (board.revision, board.outcomes, board.cause) == (1, [Outcome.UNCHANGED], SAYS_A)

    def test_then_the_end_moves_and_the_cause_stays(self) -> None:
        board = Board().post(A)
        board.now += HOUR // 2 + 1
        board.post(replace(A, summary="/data1 is fuller"))
        assert (board.revision, board.outcomes, board.cause) == (2, [Outcome.RENEWED], SAYS_A)
        assert board.node is not None
        assert (board.node.start, board.node.end) == (NOW, board.now + HOUR)

    def test_a_stronger_action_is_told_at_once(self) -> None:
        board = Board().post(A).post(replace(A, action=EVACUATE))
        assert (board.revision, board.outcomes) == (2, [Outcome.RENEWED])
        assert board.node is not None
        assert board.node.action is EVACUATE
        assert board.post(A).revision == 2

    def test_after_its_end_the_node_is_blocked_anew(self) -> None:
        board = Board().post(A)
        board.now += HOUR
        board.post(A)
        # Blocked, expired, blocked.
        assert (board.revision, board.outcomes, board.cause) == (3, [Outcome.BLOCKED], SAYS_A)

    def test_unblocked_by_hand_it_is_blocked_again_by_the_next_post(self) -> None:
        board = Board().post(A)
        draft = Draft(board.tracker, NOW)
        draft.unblock("n1")
        board._commit(draft)
        assert board.post(A).outcomes == [Outcome.BLOCKED]


class TestResolving:
    """The node is free when the last alert that holds it has resolved, unless somebody else has a part in it."""

    def test_the_only_alert_frees_it(self) -> None:
        board = Board().post(A).post(A_ENDS)
        assert (board.node, board.outcomes, board.revision) == (None, [Outcome.FREED], 2)
        assert (board.post(A_ENDS).outcomes, board.revision) == ([Outcome.UNCHANGED], 2)

    def test_of_two_the_last_one_does(self) -> None:
        board = Board().post(A, B).post(A_ENDS)
        assert board.outcomes == [Outcome.KEPT]
        assert board.cause == f"{SAYS_A},{SAYS_B},resolved DiskFull [aaaaaaaa]"
        assert (board.node and board.node.end) == NOW + HOUR
        assert board.post(A_ENDS).revision == 2
        assert board.post(B_ENDS).node is None

    def test_two_in_one_post_free_it_together(self) -> None:
        board = Board().post(A, B).post(A_ENDS, B_ENDS)
        assert (board.node, board.outcomes) == (None, [Outcome.FREED, Outcome.FREED])

    def test_one_resolves_in_the_post_in_which_the_other_fires(self) -> None:
        board = Board().post(A).post(A_ENDS, B)
        assert board.cause == f"{SAYS_A},resolved DiskFull [aaaaaaaa],{SAYS_B}"
        assert (board.outcomes, board.revision) == ([Outcome.KEPT, Outcome.MERGED], 2)
        assert board.post(B_ENDS).node is None

    @pytest.mark.parametrize("first", [True, False])
    def test_with_somebody_else_s_cause_it_stays_blocked(self, first: bool) -> None:
        board = Board()
        if first:
            board.block("Kernel upgrade", end=NOW + 2 * HOUR)
        board.post(A)
        if not first:
            board.block("Kernel upgrade", end=NOW + 2 * HOUR)
        board.post(A_ENDS)
        assert board.outcomes == [Outcome.KEPT]
        assert set(board.parts) == {"Kernel upgrade", SAYS_A, "resolved DiskFull [aaaaaaaa]"}
        assert board.post(A_ENDS).revision == 3

    def test_an_alert_of_the_same_name_about_another_disk_is_another(self) -> None:
        other = replace(A, mark="cccccccc", summary="/data2 is full")
        board = Board().post(A, other).post(A_ENDS)
        assert board.post(replace(other, firing=False)).node is None

    def test_one_that_fires_again_holds_it_again(self) -> None:
        board = Board().post(A, B).post(A_ENDS).post(A)
        again = "alert DiskFull: /data1 is full [aaaaaaaa 2]"
        assert board.cause == f"{SAYS_A},{SAYS_B},resolved DiskFull [aaaaaaaa],{again}"
        assert board.post(A).outcomes == [Outcome.UNCHANGED]
        assert board.post(B_ENDS).outcomes == [Outcome.KEPT]
        assert board.post(A_ENDS).node is None

    def test_a_resolve_that_nobody_waits_for_changes_nothing(self) -> None:
        board = Board().block("Kernel upgrade").post(A_ENDS)
        assert (board.outcomes, board.revision) == ([Outcome.UNCHANGED], 1)


@pytest.mark.parametrize(("source", "believed"), [(Source.REQUEST, False), (Source.ALERTMANAGER, True)])
def test_what_applications_say_goes_on_to_count_when_an_alert_has_resolved(source: Source, believed: bool) -> None:
    book = EvidenceBook(Rule(), lambda _: {"n1", "n2", "n3"})
    book.say("app", {"n1": Finding(kind=Kind.SLOW, reason="Slow.")}, NOW)
    node = BlockedNode(id="n1", action=MARK, start=0, end=PERMANENT, cause=SAYS_A)
    hear(book, [Change(revision=1, type=ChangeType.UNBLOCKED, at=NOW, node=node, source=source)])
    assert [own.doubt is None for own in book.listed(NOW)] == [believed]


class TestTheCap:
    """A cause has at most 32 parts: what holds a node is never pushed out by alerts."""

    def many(self, count: int) -> list[Alert]:
        return [replace(A, mark=f"{number:08x}", name=f"Alert{number}") for number in range(count)]

    def test_further_alerts_wait_for_room(self) -> None:
        alerts = self.many(MAX_CAUSES + 2)
        board = Board().post(*alerts)
        assert board.outcomes == [Outcome.BLOCKED] * MAX_CAUSES + [Outcome.CROWDED] * 2
        assert board.post(*alerts).revision == 1
        assert board.outcomes[-2:] == [Outcome.CROWDED] * 2
        board.post(*(replace(alert, firing=False) for alert in alerts[:2]), *alerts[2:])
        assert board.outcomes[-2:] == [Outcome.MERGED] * 2
        assert set(Causes(board.node).holding) == {alert.mark for alert in alerts[2:]}

    def test_what_has_resolved_gives_way_first(self) -> None:
        board = Board().block("Kernel upgrade").post(B)
        for _ in range(MAX_CAUSES):
            board.post(A).post(A_ENDS)
            assert {"Kernel upgrade", SAYS_B} <= set(board.parts)
            assert set(Causes(board.node).holding) == {B.mark}
        assert len(board.parts) == MAX_CAUSES

    def test_where_others_fill_the_cause_it_stays_theirs(self) -> None:
        board = Board().block(",".join(f"cause {number}" for number in range(MAX_CAUSES)))
        assert board.post(A).outcomes == [Outcome.CROWDED]
        assert board.revision == 1


TEXT = st.text(st.characters(codec=None), max_size=2000) | st.text(max_size=50)
ALERTS = [
    replace(A, mark=mark * 8, name=mark.upper(), action=action, firing=firing)
    for mark in "abc"
    for action in (MARK, EVACUATE)
    for firing in (True, False)
]
POSTS = st.lists(st.lists(st.sampled_from(ALERTS), min_size=1, max_size=3, unique_by=lambda own: own.mark), max_size=12)
Posts = Sequence[Sequence[Alert]]


def run(posts: Posts, *, foreign: bool = False) -> Board:
    board = Board()
    if foreign:
        board.block("Kernel upgrade")
    for alerts in posts:
        board.post(*alerts)
    return board


class TestWhateverComes:
    @given(posts=POSTS, foreign=st.booleans())
    def test_what_an_alert_said_last_counts(self, posts: Posts, foreign: bool) -> None:
        last = {alert.mark: alert.firing for alerts in posts for alert in alerts}
        board = run(posts, foreign=foreign)
        firing = {mark for mark, fires in last.items() if fires}
        assert set(Causes(board.node).holding) >= firing
        assert (board.node is not None) == (foreign or bool(firing))
        if not foreign:
            assert set(Causes(board.node).holding) == firing

    @given(posts=POSTS, times=st.integers(2, 4), foreign=st.booleans())
    def test_a_post_that_is_sent_several_times_is_the_same_as_sent_once(
        self, posts: Posts, times: int, foreign: bool
    ) -> None:
        once, often = run(posts, foreign=foreign), run([own for own in posts for _ in range(times)], foreign=foreign)
        assert (often.node, often.revision) == (once.node, once.revision)

    @given(posts=POSTS)
    def test_a_whole_sequence_sent_twice_leaves_the_same_alerts_holding(self, posts: Posts) -> None:
        assert set(Causes(run([*posts, *posts]).node).holding) == set(Causes(run(posts).node).holding)

    @given(posts=POSTS, data=st.data())
    def test_the_order_of_alerts_in_a_post_does_not_matter(self, posts: Posts, data: st.DataObject) -> None:
        mixed = [data.draw(st.permutations(own)) for own in posts]
        assert set(Causes(run(mixed).node).holding) == set(Causes(run(posts).node).holding)

    @given(name=TEXT, summary=TEXT)
    def test_any_text_makes_one_part_that_is_known_again(self, name: str, summary: str) -> None:
        board = Board().post(replace(A, name=name, summary=summary))
        assert board.cause is not None
        assert 1 <= len(board.cause) <= MAX_CAUSE
        assert "," not in board.cause
        assert list(Causes(board.node).holding) == [A.mark]
        board.post(B, replace(A_ENDS, name=name))
        assert list(Causes(board.node).holding) == [B.mark]

    @given(cause=st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1), foreign=st.booleans())
    def test_any_cause_can_be_read(self, cause: str, foreign: bool) -> None:
        board = Board().block(cause)
        assert board.post(A).post(A_ENDS).node is not None


@pytest.mark.parametrize(
    "cause",
    [
        "alert", "alert DiskFull", "alert DiskFull: full", "alert DiskFull: full [aaaaaaa]",
        "ALERT DiskFull [aaaaaaaa]",
        "alert DiskFull [AAAAAAAA]", "alert DiskFull [aaaaaaaa 0]", "alert DiskFull [aaaaaaaa] again", "[aaaaaaaa]",
        "alert DiskFull [aaaaaaaa x]", " alert DiskFull [aaaaaaaa]",
    ],
)  # fmt: skip
def test_what_only_resembles_an_alert_s_part_is_somebody_else_s(cause: str) -> None:
    causes = Causes(BlockedNode(id="n1", action=MARK, start=0, end=PERMANENT, cause=cause))
    assert (causes.foreign, causes.holding) == ([cause], {})


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
def test_how_a_part_reads(name: str, summary: str, part: str) -> None:
    assert Causes(None).fires("aaaaaaaa", name, summary) == f"{part} [aaaaaaaa]"


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
def test_which_node_an_alert_is_about(labels: dict[str, str], node: str | None) -> None:
    assert node_of(labels, "node") == node


def test_which_label_names_the_node_is_a_setting() -> None:
    assert node_of({"host": "a", "node": "b", "instance": "c:1"}, "host") == "a"
    assert node_of({"node": "b", "instance": "c:1"}, "host") == "c"


class TestReading:
    @pytest.mark.parametrize(
        ("value", "outcome"),
        [
            (alert_body(blocklist=""), Outcome.UNLABELLED),
            (alert_body(blocklist="drain"), Outcome.UNKNOWN_ACTION),
            (alert_body(blocklist="MARK"), Outcome.UNKNOWN_ACTION),
            (alert_body(node=""), Outcome.NO_NODE),
            (alert_body(node="a/b"), Outcome.BAD_NODE),
            (alert_body(node=".."), Outcome.BAD_NODE),
            (alert_body(node="x" * 254), Outcome.BAD_NODE),
            (alert_body(node="", instance="http://a/b"), Outcome.BAD_NODE),
            (alert_body(node="fe80::1%eth0"), Outcome.BAD_NODE),
            ({}, Outcome.UNREADABLE), (None, Outcome.UNREADABLE), ("alert", Outcome.UNREADABLE),
            ([], Outcome.UNREADABLE),
            ({**alert_body(), "status": "pending"}, Outcome.UNREADABLE),
            ({**alert_body(), "labels": ["node"]}, Outcome.UNREADABLE),
            ({**alert_body(), "labels": {"node": 5}}, Outcome.UNREADABLE),
            ({**alert_body(), "annotations": None}, Outcome.UNREADABLE),
            (alert_body(node="\ud800"), Outcome.BAD_NODE),
        ],
    )  # fmt: skip
    def test_what_is_passed_over_is_told_why(self, value: Any, outcome: Outcome) -> None:
        assert read_alert(value, "node") is outcome

    def test_the_mark_is_the_first_half_of_the_fingerprint(self) -> None:
        read = read_alert({**alert_body(), "fingerprint": "809c736d29768b8c"}, "node")
        assert isinstance(read, Alert)
        assert read.mark == "809c736d"

    @pytest.mark.parametrize("fingerprint", ["", "809C736D29768B8C", "x,y", "809c", "\ud800"])
    def test_without_a_good_one_the_labels_stand_for_it(self, fingerprint: str) -> None:
        def mark(disk: str) -> str:
            read = read_alert({**alert_body(disk=disk), "fingerprint": fingerprint}, "node")
            assert isinstance(read, Alert)
            return read.mark

        assert mark("a") == mark("a") != mark("b\udfff")

    @pytest.mark.parametrize(
        "body",
        [b"", b"{", b"[]", b"5", b"null", b"{}", b'{"alerts": null}', b'{"alerts": {}}', b'{"alerts": "x"}', b"\xff"],
    )
    def test_what_is_no_post_at_all_is_an_error(self, body: bytes) -> None:
        with pytest.raises(InvalidError):
            parse_post(body)

    @pytest.mark.parametrize(("said", "count"), [(3, 3), (0, 0), (-1, 0), ("3", 0), (None, 0), (1.5, 0), (True, 0)])
    def test_how_many_were_left_out(self, said: object, count: int) -> None:
        assert AlertmanagerPost(alerts=[], truncatedAlerts=said).truncated == count

    def test_older_and_newer_versions_are_read(self) -> None:
        assert parse_post(dump_json({"alerts": [alert_body()]})).truncated == 0
        newer = {**post({**alert_body(), "values": {"B": 1.5}}), "version": "5", "orgId": 1}
        assert isinstance(read_alert(parse_post(dump_json(newer)).alerts[0], "node"), Alert)


class TestRealPosts:
    def test_without_the_label_nothing_is_done(self) -> None:
        outcomes = {read_alert(own, "node") for body in real_posts() for own in body["alerts"]}
        assert outcomes == {Outcome.UNLABELLED}

    def test_they_name_their_nodes(self) -> None:
        read = [read_alert(own, "node") for own in asking(real_posts()[0], "evacuate")["alerts"]]
        assert read == [
            Alert(
                node="worker-17", action=EVACUATE, firing=True, mark="809c736d", name="NodeDiskPressure",
                summary="disk almost full on worker-17",
            ),
            Alert(
                node="worker-18", action=EVACUATE, firing=True, mark="d4782649", name="NodeDiskPressure", summary=""
            ),
        ]  # fmt: skip

    def test_another_group_has_no_node(self) -> None:
        (only,) = asking(real_posts()[1])["alerts"]
        assert read_alert(only, "node") is Outcome.NO_NODE

    def test_the_mark_is_the_same_when_it_has_resolved(self) -> None:
        marks: dict[str, set[str]] = {}
        for body in real_posts():
            for read in (read_alert(own, "node") for own in asking(body)["alerts"]):
                if isinstance(read, Alert):
                    marks.setdefault(read.node, set()).add(read.mark)
        assert marks == {"worker-17": {"809c736d"}, "worker-18": {"d4782649"}, "worker-19": {"86572fac"}}
