"""The rules of listeners: sessions fence, cursors never go back, a lease is half open."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from blocklist.model.errors import InvalidError, NotFoundError
from blocklist.model.listener import (
    LEASE_SECONDS,
    REMEMBERED,
    FencedError,
    Listener,
    Registration,
    Role,
    heartbeat,
    register,
)

LEASE = 50_000
NOW = 1_000_000

revisions = st.integers(0, 2**53)


def wanted(session: str = "s1", *, lease: int = LEASE, url: str | None = None) -> Registration:
    return Registration(id="jm", role=Role.JOB_MASTER, session=session, callback_url=url, lease=lease)


def listener(session: str = "s1", *, acked: int | None = 7, former: tuple[str, ...] = ()) -> Listener:
    """A listener that registered at NOW."""
    return Listener(
        id="jm",
        role=Role.JOB_MASTER,
        session=session,
        callback_url=None,
        lease=LEASE,
        lease_end=NOW + LEASE,
        acked=acked,
        former=former,
        since=NOW,
    )


def test_the_usual_lease_is_that_of_flinks_heartbeats() -> None:
    assert Registration(id="jm", role=Role.JOB_MASTER, session="s1").lease == LEASE_SECONDS * 1000 == 50_000


@pytest.mark.parametrize("url", [None, "http://127.0.0.1:1/"])
def test_a_new_listener_lives_for_its_lease(url: str | None) -> None:
    new = register(None, wanted(lease=3_000, url=url), now=NOW, revision=9, empty=False)
    assert new == Listener(
        id="jm",
        role=Role.JOB_MASTER,
        session="s1",
        callback_url=url,
        lease=3_000,
        lease_end=NOW + 3_000,
        acked=None,
        former=(),
        since=NOW,
    )


def test_registering_on_an_empty_list_leaves_nothing_to_be_told() -> None:
    new = register(None, wanted(), now=NOW, revision=9, empty=True)
    assert (new.acked, new.behind(9), new.behind(10)) == (9, False, True)


def test_registering_late_leaves_the_whole_list_to_be_told_whatever_the_revision() -> None:
    new = register(None, wanted(), now=NOW, revision=0, empty=False)
    assert (new.acked, new.behind(0)) == (None, True)


@given(acked=st.none() | st.integers(0, 20), empty=st.booleans(), after=st.integers(0, LEASE - 1))
def test_a_renewal_keeps_the_cursor_and_moves_the_end(acked: int | None, empty: bool, after: int) -> None:
    present = listener(acked=acked)
    renewed = register(present, wanted(), now=NOW + after, revision=20, empty=empty)
    assert renewed == replace(present, lease_end=NOW + after + LEASE)


def test_a_renewal_takes_what_it_asks_for_now() -> None:
    asked = Registration(
        id="jm", role=Role.RESOURCE_MANAGER, session="s1", callback_url="http://127.0.0.1:2/", lease=9_000
    )
    renewed = register(listener(), asked, now=NOW, revision=7, empty=False)
    assert (renewed.role, renewed.callback_url, renewed.lease_end) == (asked.role, asked.callback_url, NOW + 9_000)


@pytest.mark.parametrize(("empty", "acked"), [(False, None), (True, 20)])
@pytest.mark.parametrize("after", [0, LEASE - 1, LEASE, 10 * LEASE])
def test_a_new_session_takes_over_and_starts_anew(after: int, empty: bool, acked: int | None) -> None:
    taken = register(listener(), wanted("s2"), now=NOW + after, revision=20, empty=empty)
    assert (taken.session, taken.acked, taken.former) == ("s2", acked, ("s1",))


@pytest.mark.parametrize(("empty", "acked"), [(False, None), (True, 20)])
@pytest.mark.parametrize("after", [LEASE, LEASE + 1, 10 * LEASE])
def test_the_same_session_starts_anew_once_its_lease_has_lapsed(after: int, empty: bool, acked: int | None) -> None:
    back = register(listener(), wanted(), now=NOW + after, revision=20, empty=empty)
    assert (back.session, back.acked, back.former) == ("s1", acked, ())
    assert back.live(NOW + after)
    assert back.registration != listener().registration


def test_a_session_that_was_taken_over_may_not_come_back() -> None:
    taken = register(listener(), wanted("s2"), now=NOW, revision=7, empty=False)
    for moment in (NOW, NOW + LEASE, NOW + 10 * LEASE):
        with pytest.raises(FencedError, match=r"s1.*taken over by s2"):
            register(taken, wanted("s1"), now=moment, revision=7, empty=True)
    with pytest.raises(FencedError):
        heartbeat(taken, "s1", 7, now=NOW, revision=7)


def test_the_last_sixteen_sessions_are_remembered_and_the_one_before_is_forgotten() -> None:
    present: Listener | None = None
    for number in range(REMEMBERED + 2):
        present = register(present, wanted(f"s{number}"), now=NOW, revision=7, empty=False)
    assert present is not None
    assert (REMEMBERED, present.former) == (16, tuple(f"s{n}" for n in range(1, 17)))
    for number in range(1, 17):
        with pytest.raises(FencedError):
            register(present, wanted(f"s{number}"), now=NOW, revision=7, empty=False)
    assert register(present, wanted("s0"), now=NOW, revision=7, empty=False).session == "s0"


@pytest.mark.parametrize(("now", "live"), [(NOW, True), (NOW + LEASE - 1, True), (NOW + LEASE, False)])
def test_a_lease_is_half_open(now: int, live: bool) -> None:
    assert listener().live(now) is live


def test_a_heartbeat_renews_by_the_lease_that_was_asked_for() -> None:
    present = register(None, wanted(lease=1_000), now=NOW, revision=7, empty=True)
    assert heartbeat(present, "s1", None, now=NOW + 999, revision=7).lease_end == NOW + 1_999


def test_a_heartbeat_at_the_end_of_the_lease_is_too_late() -> None:
    with pytest.raises(NotFoundError, match=r"jm.*register again"):
        heartbeat(listener(), "s1", 7, now=NOW + LEASE, revision=7)


def test_a_heartbeat_of_nobody_says_to_register() -> None:
    with pytest.raises(NotFoundError, match="register again"):
        heartbeat(None, "s1", 7, now=NOW, revision=7)


def test_another_session_is_fenced_lapsed_or_not() -> None:
    for moment in (NOW, NOW + LEASE):
        with pytest.raises(FencedError, match="jm"):
            heartbeat(listener("s2"), "s1", 7, now=moment, revision=7)


@given(known=st.none() | revisions, acked=st.none() | revisions, revision=revisions)
def test_an_acknowledgement_never_goes_back_nor_ahead_of_the_list(
    known: int | None, acked: int | None, revision: int
) -> None:
    present = listener(acked=known)
    if acked is not None and acked > revision:
        with pytest.raises(InvalidError, match=f"ackedRevision.*{acked}.*{revision}"):
            heartbeat(present, "s1", acked, now=NOW, revision=revision)
        return
    after = heartbeat(present, "s1", acked, now=NOW + 5, revision=revision)
    said = [number for number in (known, acked) if number is not None]
    assert after == replace(present, acked=max(said, default=None), lease_end=NOW + 5 + LEASE)


@given(acked=st.none() | revisions, revision=revisions)
def test_who_has_the_list_up_to_a_revision_is_not_behind_it(acked: int | None, revision: int) -> None:
    assert listener(acked=acked).behind(revision) is (acked is None or acked < revision)


@given(
    one=st.tuples(st.none() | revisions, st.integers(0, 9)), other=st.tuples(st.none() | revisions, st.integers(0, 9))
)
def test_what_two_have_heard_of_one_registration_comes_together(
    one: tuple[int | None, int], other: tuple[int | None, int]
) -> None:
    """Cursor and lease are each the later of the two, in whichever order."""
    first, second = (replace(listener(acked=acked), lease_end=NOW + end) for acked, end in (one, other))
    both = first.with_latest(second)
    assert both == second.with_latest(first) == both.with_latest(first)
    cursors = [acked for acked, _ in (one, other) if acked is not None]
    assert (both.acked, both.lease_end) == (max(cursors, default=None), NOW + max(one[1], other[1]))


@pytest.mark.parametrize("former", [listener("s0", acked=9), replace(listener(acked=9), since=NOW - 1)])
def test_what_was_heard_of_another_registration_is_not_taken(former: Listener) -> None:
    assert listener().with_latest(former) == listener()


class AgainstADiary(RuleBasedStateMachine):
    """Sessions come and go by chance, next to a diary that says who was ever taken over."""

    sessions = st.integers(0, 24).map("s{}".format)

    def __init__(self) -> None:
        super().__init__()
        self.now, self.revision = NOW, 0
        self.present: Listener | None = None
        self.taken_over: list[str] = []
        self.heard: int | None = None

    @rule(session=sessions, empty=st.booleans(), lease=st.integers(1, 20))
    def register(self, session: str, empty: bool, lease: int) -> None:
        fenced = session in self.taken_over[-REMEMBERED:]
        before = self.present
        try:
            self.present = register(
                before, wanted(session, lease=lease), now=self.now, revision=self.revision, empty=empty
            )
        except FencedError:
            assert fenced
            return
        assert not fenced
        renewal = before is not None and before.session == session and before.live(self.now)
        if before is not None and before.session != session:
            self.taken_over.append(before.session)
        self.heard = self.heard if renewal else (self.revision if empty else None)

    @rule(session=sessions, acked=st.integers(0, 30))
    def beat(self, session: str, acked: int) -> None:
        before = self.present
        try:
            self.present = heartbeat(before, session, acked, now=self.now, revision=self.revision)
        except NotFoundError:
            assert before is None or not before.live(self.now)
        except FencedError:
            assert before is not None
            assert before.session != session
        except InvalidError:
            assert acked > self.revision
        else:
            self.heard = acked if self.heard is None else max(self.heard, acked)

    @rule(session=st.none())
    def beat_of_the_present_session(self, session: None) -> None:
        if self.present is not None:
            self.beat(self.present.session, min(self.revision, 30))

    @rule(step=st.integers(0, 8))
    def pass_time(self, step: int) -> None:
        self.now += step
        self.revision += step // 2

    @invariant()
    def the_present_session_is_no_former_one(self) -> None:
        if self.present is not None:
            assert self.present.acked == self.heard
            assert self.present.session not in self.present.former
            assert self.present.former == tuple(self.taken_over[-REMEMBERED:])


TestAgainstADiary = AgainstADiary.TestCase
TestAgainstADiary.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
