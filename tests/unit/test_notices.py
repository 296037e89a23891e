"""Notices: what is worth one, how they are grouped and limited, and what they say."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, cast

import pytest
from structlog.testing import capture_logs

from app.net.urls import make_senders, split_urls
from app.notices import notifier as target_module
from app.notices import observer
from app.notices.notifier import MAX_QUEUED, Notifier, Result, Target, notice_body, notice_title
from app.notices.observer import (
    MAX_GROUPS_OF_KIND,
    MAX_NAMED,
    Event,
    ListenerObserver,
    Notice,
    NoticeGroups,
    NoticeKind,
    Subject,
    TrackedNodes,
)
from blocklist.model.changes import Change, ChangeType
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode
from tests.integration.process import wait_until

BLOCKED: Final = Subject(NoticeKind.BLOCKED, "", "disk", "ann")
SECRET: Final = "T0PSECRET"


def event(node: str, subject: Subject = BLOCKED, reason: str = "") -> Event:
    return Event(subject, node, 1_700_000_000_000, reason)


class TestGrouping:
    def test_events_with_the_same_subject_in_the_window_are_one_notice(self) -> None:
        own = NoticeGroups()
        own.add(event("n1"), 0)
        own.add(event("n2"), 4.9)
        assert own.due(4.9) == ([], 0)
        (notice,), _ = own.due(5)
        assert (notice.subject, list(notice.nodes), notice.count) == (BLOCKED, ["n1", "n2"], 2)
        assert own.due(100) == ([], 0)

    def test_a_notice_names_the_clusters_of_its_nodes(self) -> None:
        own = NoticeGroups({"n1": "yarn", "n2": "k8s-a", "n3": "yarn"}.get)
        for node in ("n1", "n2", "n3", "unknown"):
            own.add(event(node), 0)
        (notice,), _ = own.due(5)
        assert notice_body(notice).splitlines()[1] == "Clusters: k8s-a, yarn"

    @pytest.mark.parametrize(
        "other", [BLOCKED._replace(cause="fan"), BLOCKED._replace(by="bob"), BLOCKED._replace(kind=NoticeKind.FREED)]
    )
    def test_another_cause_author_or_kind_is_a_notice_of_its_own(self, other: Subject) -> None:
        own = NoticeGroups()
        own.add(event("n1"), 0)
        own.add(event("n2", other), 0)
        assert [notice.subject for notice in own.due(5)[0]] == [BLOCKED, other]

    def test_a_node_counts_once_however_often_it_was_blocked(self) -> None:
        own = NoticeGroups()
        for node in ("n1", "n1", "n2", "n1"):
            own.add(event(node), 0)
        (notice,), _ = own.due(5)
        assert notice_title(notice) == "blocklist: 2 nodes blocked"
        own.add(event("n1"), 10)
        own.add(event("n1"), 11)
        (notice,), _ = own.due(20)
        assert (notice_title(notice), notice_body(notice).splitlines()[0]) == ("blocklist: n1 blocked", "Nodes: n1")

    def test_a_storm_with_a_cause_for_each_node_is_a_handful_of_notices(self) -> None:
        own = NoticeGroups()
        for number in range(1000):
            own.add(event(f"n{number}", BLOCKED._replace(cause=f"disk {number}")), 0)
        notices, left_out = own.due(5)
        assert len(notices) == MAX_GROUPS_OF_KIND + 1
        assert sum(notice.count for notice in notices) == 1000
        assert left_out == 0
        assert max(len(notice.nodes) for notice in notices) == MAX_NAMED

    def test_groups_of_other_kinds_are_possible_after_a_storm(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(observer, "MAX_PER_MINUTE", 100)
        own = NoticeGroups()
        for round_ in range(2):
            for number in range(20):
                own.add(event("n", BLOCKED._replace(cause=f"disk {number}")), round_ * 5)
            assert len(own.due(round_ * 5 + 5)[0]) == MAX_GROUPS_OF_KIND + 1


class TestLimit:
    def test_what_is_beyond_the_limit_is_counted_and_said_in_the_next_notice(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(observer, "MAX_PER_MINUTE", 2)
        own = NoticeGroups()
        for number in range(4):
            for node in ("a", "b"):
                own.add(event(node, BLOCKED._replace(cause=str(number))), 0)
        sent, left_out = own.due(5)
        assert [notice.subject.cause for notice in sent if notice.subject] == ["0", "1"]
        assert left_out == 2
        own.add(event("z"), 62)
        assert own.due(62) == ([], 0), "the group is still open"
        (later,), left_out = own.due(67)
        assert (later.left_out, left_out) == (2, 0)

    def test_what_was_left_out_is_said_even_if_nothing_else_happens(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(observer, "MAX_PER_MINUTE", 1)
        own = NoticeGroups()
        own.add(event("a"), 0)
        own.add(event("b", BLOCKED._replace(cause="fan")), 0)
        assert [len(own.due(now)[0]) for now in (5, 64.9, 65, 200)] == [1, 0, 1, 0]

    def test_it_holds_for_any_60_seconds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(observer, "MAX_PER_MINUTE", 3)
        own = NoticeGroups()
        sent: list[float] = []
        for now in range(300):
            own.add(event("n", BLOCKED._replace(cause=str(now))), now)
            sent += [now] * len(own.due(now)[0])
        assert all(late - early >= 60 for early, late in zip(sent, sent[3:], strict=False))
        assert len(sent) >= 14


def change(revision: int, kind: ChangeType, *, evacuate: bool = False, node: str = "n1", by: str = "ann") -> Change:
    action = BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS if evacuate else BlockAction.MARK_BLOCKED
    blocked = BlockedNode(id=node, action=action, cause="disk", start=1, end=PERMANENT)
    return Change(revision=revision, type=kind, at=5, node=blocked, created_by=by)


class TestChanges:
    @pytest.mark.parametrize("kind", [ChangeType.UNBLOCKED, ChangeType.EXPIRED])
    def test_a_block_and_its_end_are_news(self, kind: ChangeType) -> None:
        nodes = TrackedNodes()
        found = nodes.apply([change(1, ChangeType.BLOCKED), change(2, kind)])
        assert [(each.subject.kind, each.subject.what) for each in found] == [
            (NoticeKind.BLOCKED, ""), (NoticeKind.FREED, kind.value),
        ]  # fmt: skip
        assert nodes.get("n1") is None

    def test_a_merge_is_news_only_if_it_begins_the_evacuation(self) -> None:
        nodes = TrackedNodes()
        nodes.apply([change(1, ChangeType.BLOCKED)])
        assert nodes.apply([change(2, ChangeType.MERGED)]) == []
        (found,) = nodes.apply([change(3, ChangeType.MERGED, evacuate=True)])
        assert (found.subject.kind, found.subject.what) == (NoticeKind.BLOCKED, "with evacuation")
        assert nodes.apply([change(4, ChangeType.MERGED, evacuate=True)]) == []
        assert nodes.apply([change(5, ChangeType.NARROWED)]) == []

    def test_of_a_block_that_leaves_a_canary_it_is_said(self) -> None:
        begun = change(1, ChangeType.BLOCKED)
        (found,) = TrackedNodes().apply([replace(begun, node=replace(begun.node, canary=True))])
        assert found.subject.what == "with a canary"

    def test_a_canary_that_becomes_an_ordinary_block_is_news(self) -> None:
        nodes = TrackedNodes()
        begun, merged = change(1, ChangeType.BLOCKED), change(2, ChangeType.MERGED)
        nodes.apply([replace(begun, node=replace(begun.node, canary=True))])
        (found,) = nodes.apply([merged])
        assert (found.subject.kind, found.subject.what) == (NoticeKind.BLOCKED, "")
        assert nodes.apply([change(3, ChangeType.MERGED)]) == []

    def test_of_a_block_from_before_the_start_only_the_end_is_news(self) -> None:
        nodes = TrackedNodes()
        assert nodes.apply([change(7, ChangeType.MERGED, evacuate=True)]) == []
        assert nodes.evacuating() == []
        assert len(nodes.apply([change(8, ChangeType.EXPIRED)])) == 1

    def test_once_the_list_was_read_again_it_is_unknown_what_changed_meanwhile(self) -> None:
        nodes = TrackedNodes()
        nodes.apply([change(1, ChangeType.BLOCKED)])
        observer, left_out = cast("ListenerObserver", None), list[int]()
        notifier = Notifier(
            [], NoticeGroups(), nodes, observer, replicated=False, is_first=lambda: True, on_left_out=left_out.append
        )
        notifier.reset()
        assert nodes.get("n1") is None


class TestText:
    def test_one_node(self) -> None:
        notice = Notice(subject=BLOCKED._replace(what="with evacuation"), at=1_700_000_000_000, nodes=["n1"], count=1)
        assert notice_title(notice) == "blocklist: n1 blocked (with evacuation)"
        assert notice_body(notice) == "Nodes: n1\nCause: disk\nBy: ann\nAt: 2023-11-14 22:13:20 UTC"

    def test_many_nodes_and_what_was_left_out(self) -> None:
        notice = Notice(
            subject=Subject(NoticeKind.REFUSED, "", "disk", "app-1"),
            nodes=["n1", "n2"],
            count=1200,
            reasons=["last host"],
            left_out=3,
        )
        assert notice_title(notice) == "blocklist: 1,200 nodes blocked, but a listener refuses that"
        assert notice_body(notice).splitlines() == [
            "Nodes: n1, n2 and 1,198 more", "Cause: disk", "Reason: last host", "Listener: app-1",
            "At: 1970-01-01 00:00:00 UTC",
            "Left out before this notice: 3 notices. See the history.",
        ]  # fmt: skip

    def test_a_notice_without_a_subject_says_what_was_left_out(self) -> None:
        notice = Notice(left_out=1)
        assert notice_title(notice) == "blocklist: notices were left out"
        assert notice_body(notice) == "Left out before this notice: 1 notice. See the history."

    def test_a_long_cause_is_cut(self) -> None:
        notice = Notice(subject=BLOCKED._replace(cause="x" * 5000), nodes=["n1"], count=1)
        assert len(notice_body(notice)) < 500


class RecordingSender:
    """Records what it is given; waits while `release` is not set."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []
        self.release = threading.Event()
        self.error: Exception | None = None

    def __call__(self, title: str, body: str) -> bool:
        assert self.release.wait(60)
        self.sent.append((title, body))
        if self.error is not None:
            raise self.error
        return True


@pytest.fixture
def sender() -> Iterator[RecordingSender]:
    sender = RecordingSender()
    yield sender
    sender.release.set()


def wait_for(results: list[Result], number: int) -> None:
    wait_until(lambda: len(results) >= number)


class TestTarget:
    def test_what_does_not_fit_into_the_queue_of_a_target_that_hangs_is_left_out_and_said(
        self, sender: RecordingSender
    ) -> None:
        results: list[Result] = []
        target = Target(1, sender, results.append)
        notice = Notice(subject=BLOCKED, nodes=["n1"], count=2)
        # The thread does not run yet: nothing leaves the queue.
        accepted = [target.put(notice) for _ in range(MAX_QUEUED + 30)]
        assert accepted == [True] * MAX_QUEUED + [False] * 30
        sender.release.set()
        target.start()
        wait_for(results, MAX_QUEUED)
        assert target.put(notice)
        wait_for(results, MAX_QUEUED + 1)
        target.close()
        target.join(60)
        assert "Left out before this notice: 30 notices." in sender.sent[-1][1]

    def test_a_notice_that_takes_too_long_has_failed_once(
        self, sender: RecordingSender, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(target_module, "SEND_SECONDS", 0.0)
        results: list[Result] = []
        target = Target(1, sender, results.append)
        target.start()
        target.put(Notice(subject=BLOCKED, nodes=["n1"], count=1))
        deadline = time.monotonic() + 60
        while not results and time.monotonic() < deadline:
            target.check_timeout()
        target.check_timeout()
        sender.release.set()
        target.close()
        target.join(60)
        assert results == [Result.TIMED_OUT]

    def test_one_that_raises_goes_on_and_its_exception_is_not_logged(self, sender: RecordingSender) -> None:
        results: list[Result] = []
        sender.error = RuntimeError(f"https://example.com/{SECRET}")
        sender.release.set()
        target = Target(2, sender, results.append)
        target.start()
        with capture_logs() as logs:
            for _ in range(2):
                target.put(Notice(subject=BLOCKED, nodes=["n1"], count=1))
            wait_for(results, 2)
            sender.error = None
            target.put(Notice(subject=BLOCKED, nodes=["n1"], count=1))
            wait_for(results, 3)
            target.close()
            target.join(60)
        assert results == [Result.FAILED, Result.FAILED, Result.SENT]
        assert [(line["event"], line["url_number"], line.get("why")) for line in logs] == [
            ("notices cannot be sent", 2, "RuntimeError"), ("notices are sent again", 2, None),
        ]  # fmt: skip

    def test_a_result_that_cannot_be_counted_stops_nothing(self, sender: RecordingSender) -> None:
        sender.release.set()

        def broken(_: Result) -> None:
            raise RuntimeError

        target = Target(1, sender, broken)
        target.start()
        for _ in range(2):
            target.put(Notice(subject=BLOCKED, nodes=["n1"], count=1))
        target.close()
        target.join(60)
        assert len(sender.sent) == 2


class TestUrls:
    @pytest.mark.parametrize("receivers", [f"to={SECRET}", f"to=a@b.example,{SECRET}", f"to=a@b.example&cc={SECRET}"])
    def test_a_receiver_that_would_be_left_out_is_an_error(
        self, receivers: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with pytest.raises(ValueError, match=r"^URL 1 has a part that apprise would leave out") as error:
            make_senders(f"mailtos://u:p@example.com?{receivers}")
        assert SECRET not in f"{error.value}{caplog.text}"
        assert len(make_senders("mailtos://u:p@example.com?to=a@b.example,c@d.example&cc=e@f.example")) == 1

    def test_they_are_separated_by_commas_before_a_scheme(self) -> None:
        text = " json://h/a?to=x,y , slack://A/B/C,mailto://u:p@h,"
        assert split_urls(text) == ["json://h/a?to=x,y", "slack://A/B/C", "mailto://u:p@h"]
        assert make_senders("") == []

    @pytest.mark.parametrize("wrong", [f"foo://{SECRET}", f"slack://{SECRET}", f"mailto://u:{SECRET}@", SECRET])
    def test_a_wrong_one_is_reported_by_its_position_and_never_shown(
        self, wrong: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with pytest.raises(ValueError, match=r"^URL 2 is not one that apprise accepts") as error:
            make_senders(f"json://127.0.0.1/a,{wrong}" if "://" in wrong else f"json://127.0.0.1/a,x://{wrong}")
        assert SECRET not in str(error.value)
        assert error.value.__cause__ is None
        assert SECRET not in caplog.text
