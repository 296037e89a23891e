"""Listeners: sessions are fenced, cursors never go back, a lease is half-open."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from app.listeners.reports import ERROR
from app.store.tables import reports
from blocklist.model.claims import owner_matches
from blocklist.model.errors import InvalidError, NotFoundError
from blocklist.model.listener import (
    LEASE_SECONDS,
    MAX_FORMER_SESSIONS,
    FencedError,
    Listener,
    ListenerRole,
    Mode,
    ModeRecord,
    Modes,
    Registration,
    heartbeat,
    register,
)
from blocklist.wire.listeners import REPORT_FIELDS
from tests.length import longer

if TYPE_CHECKING:
    from sqlalchemy import String

LEASE = 50_000
NOW = 1_000_000

revisions = st.integers(0, 2**53)


def registration(session: str = "s1", *, lease: int = LEASE, url: str | None = None) -> Registration:
    return Registration(id="jm", role=ListenerRole.JOB_MASTER, session=session, callback_url=url, lease=lease)


def listener(session: str = "s1", *, acked: int | None = 7, former: tuple[str, ...] = ()) -> Listener:
    """A listener that registered at NOW."""
    return Listener(
        id="jm",
        role=ListenerRole.JOB_MASTER,
        session=session,
        callback_url=None,
        lease=LEASE,
        lease_end=NOW + LEASE,
        acked=acked,
        former_sessions=former,
        registered_at=NOW,
    )


@pytest.mark.parametrize(
    ("listener", "mode"),
    [("app-1", Mode.APPLY), ("app-12", Mode.OFF), ("app-2", Mode.OBSERVE), ("other", Mode.OBSERVE)],
)
def test_the_most_exact_pattern_says_the_mode(listener: str, mode: Mode) -> None:
    patterns = {"*": Mode.OBSERVE, "app-1": Mode.APPLY, "app-1*": Mode.OFF, "app-*": Mode.OBSERVE}
    records = [ModeRecord(pattern, its, "anna", 0) for pattern, its in patterns.items()]
    assert Modes(records).wanted(listener) is Modes(records[::-1]).wanted(listener) is mode
    assert Modes().wanted(listener) is Mode.APPLY


@given(
    st.dictionaries(st.from_regex(r"[ab]{0,4}\*|[ab]{1,4}", fullmatch=True), st.sampled_from(Mode)),
    st.text("ab", min_size=1, max_size=5),
)
def test_the_mode_is_that_of_a_search_through_all_patterns(patterns: dict[str, Mode], listener: str) -> None:
    matching = [it for it in patterns if owner_matches(listener, it)]
    best = max(matching, key=lambda it: (not it.endswith("*"), len(it)), default=None)
    expected = Mode.APPLY if best is None else patterns[best]
    records = [ModeRecord(pattern, mode, "anna", 0) for pattern, mode in patterns.items()]
    assert Modes(records).wanted(listener) is expected


def test_of_two_modes_the_weaker_one_does_less() -> None:
    assert [Mode.APPLY.weaker(it) for it in Mode] == list(Mode)
    assert Mode.OFF.weaker(Mode.OBSERVE) is Mode.OBSERVE.weaker(Mode.OFF) is Mode.OFF


def test_the_default_lease_is_flinks_heartbeat_timeout() -> None:
    assert Registration(id="jm", role=ListenerRole.JOB_MASTER, session="s1").lease == LEASE_SECONDS * 1000 == 50_000


@pytest.mark.parametrize("url", [None, "http://127.0.0.1:1/"])
def test_a_new_listener_lives_for_its_lease(url: str | None) -> None:
    new = register(None, registration(lease=3_000, url=url), now=NOW, revision=9, empty=False)
    assert new == Listener(
        id="jm",
        role=ListenerRole.JOB_MASTER,
        session="s1",
        callback_url=url,
        lease=3_000,
        lease_end=NOW + 3_000,
        acked=None,
        former_sessions=(),
        registered_at=NOW,
    )


def test_a_listener_registering_on_an_empty_list_is_up_to_date() -> None:
    new = register(None, registration(), now=NOW, revision=9, empty=True)
    assert (new.acked, new.is_behind(9), new.is_behind(10)) == (9, False, True)


def test_a_manager_registering_on_an_empty_list_has_freed_nothing_yet() -> None:
    requested = replace(registration(), role=ListenerRole.RESOURCE_MANAGER)
    new = register(None, requested, now=NOW, revision=9, empty=True)
    assert (new.acked, new.is_behind(9)) == (None, True)
    acked = heartbeat(new, "s1", 9, now=NOW, revision=9)
    renewed = register(acked, requested, now=NOW + 1, revision=9, empty=True)
    assert renewed.acked == 9


def test_a_listener_registering_on_a_list_with_nodes_is_behind_at_every_revision() -> None:
    new = register(None, registration(), now=NOW, revision=0, empty=False)
    assert (new.acked, new.is_behind(0)) == (None, True)


@given(acked=st.none() | st.integers(0, 20), empty=st.booleans(), after=st.integers(0, LEASE - 1))
def test_a_renewal_keeps_the_cursor_and_moves_the_end(acked: int | None, empty: bool, after: int) -> None:
    current = listener(acked=acked)
    renewed = register(current, registration(), now=NOW + after, revision=20, empty=empty)
    assert renewed == replace(current, lease_end=NOW + after + LEASE)


def test_a_renewal_applies_its_new_role_url_and_lease() -> None:
    requested = Registration(
        id="jm", role=ListenerRole.RESOURCE_MANAGER, session="s1", callback_url="http://127.0.0.1:2/", lease=9_000
    )
    renewed = register(listener(), requested, now=NOW, revision=7, empty=False)
    assert (renewed.role, renewed.callback_url, renewed.lease_end) == (
        requested.role,
        requested.callback_url,
        NOW + 9_000,
    )


def test_a_session_that_was_taken_over_stays_fenced() -> None:
    replaced = register(listener(), registration("s2"), now=NOW, revision=7, empty=False)
    for now in (NOW, NOW + LEASE, NOW + 10 * LEASE):
        with pytest.raises(FencedError, match=r"s1.*taken over by s2"):
            register(replaced, registration("s1"), now=now, revision=7, empty=True)
    with pytest.raises(FencedError):
        heartbeat(replaced, "s1", 7, now=NOW, revision=7)


@pytest.mark.parametrize(("now", "live"), [(NOW, True), (NOW + LEASE - 1, True), (NOW + LEASE, False)])
def test_a_lease_is_half_open(now: int, live: bool) -> None:
    assert listener().is_live(now) is live


def test_a_heartbeat_renews_by_the_registered_lease() -> None:
    current = register(None, registration(lease=1_000), now=NOW, revision=7, empty=True)
    assert heartbeat(current, "s1", None, now=NOW + 999, revision=7).lease_end == NOW + 1_999


def test_a_heartbeat_at_the_end_of_the_lease_is_rejected() -> None:
    with pytest.raises(NotFoundError, match=r"jm.*register again"):
        heartbeat(listener(), "s1", 7, now=NOW + LEASE, revision=7)


def test_a_heartbeat_of_an_unknown_listener_is_told_to_register() -> None:
    with pytest.raises(NotFoundError, match="register again"):
        heartbeat(None, "s1", 7, now=NOW, revision=7)


def test_a_heartbeat_of_another_session_is_fenced_live_or_lapsed() -> None:
    for now in (NOW, NOW + LEASE):
        with pytest.raises(FencedError, match="jm"):
            heartbeat(listener("s2"), "s1", 7, now=now, revision=7)


@given(known=st.none() | revisions, acked=st.none() | revisions, revision=revisions)
def test_an_acknowledgement_never_goes_back_nor_ahead_of_the_list(
    known: int | None, acked: int | None, revision: int
) -> None:
    current = listener(acked=known)
    if acked is not None and acked > revision:
        with pytest.raises(InvalidError, match=f"ackedRevision.*{acked}.*{revision}"):
            heartbeat(current, "s1", acked, now=NOW, revision=revision)
        return
    after = heartbeat(current, "s1", acked, now=NOW + 5, revision=revision)
    revisions_seen = [number for number in (known, acked) if number is not None]
    assert after == replace(current, acked=max(revisions_seen, default=None), lease_end=NOW + 5 + LEASE)


@given(acked=st.none() | revisions, revision=revisions)
def test_a_listener_is_not_behind_the_revision_it_acknowledged(acked: int | None, revision: int) -> None:
    assert listener(acked=acked).is_behind(revision) is (acked is None or acked < revision)


@given(
    one=st.tuples(st.none() | revisions, st.integers(0, 9)), other=st.tuples(st.none() | revisions, st.integers(0, 9))
)
def test_two_views_of_one_registration_join_to_the_latest(
    one: tuple[int | None, int], other: tuple[int | None, int]
) -> None:
    """Cursor and lease end are each the later of the two, in either order."""
    first, second = (replace(listener(acked=acked), lease_end=NOW + end) for acked, end in (one, other))
    both = first.with_latest(second)
    assert both == second.with_latest(first) == both.with_latest(first)
    cursors = [acked for acked, _ in (one, other) if acked is not None]
    assert (both.acked, both.lease_end) == (max(cursors, default=None), NOW + max(one[1], other[1]))


@pytest.mark.parametrize("former", [listener("s0", acked=9), replace(listener(acked=9), registered_at=NOW - 1)])
def test_another_registration_is_not_joined(former: Listener) -> None:
    assert listener().with_latest(former) == listener()


class TestPrincipals:
    """A registration belongs to the principal that made it."""

    def registered(self, current: Listener | None, principal: str | None, now: int = NOW + 1) -> Listener:
        return register(current, registration(), now=now, revision=9, empty=False, principal=principal)

    def test_a_renewal_by_the_same_principal_keeps_the_cursor(self) -> None:
        renewed = self.registered(replace(listener(), principal="a"), "a")
        assert (renewed.principal, renewed.acked, renewed.registered_at) == ("a", 7, NOW)

    def test_a_renewal_makes_an_unknown_principal_known(self) -> None:
        renewed = self.registered(listener(), "a")
        assert (renewed.principal, renewed.acked, renewed.registered_at) == ("a", 7, NOW)

    def test_another_principal_starts_a_new_registration(self) -> None:
        other = self.registered(replace(listener(), principal="a"), "b")
        assert (other.principal, other.acked, other.registered_at) == ("b", None, NOW + 1)

    @pytest.mark.parametrize("registered_by", [None, "a"])
    def test_another_principal_must_register_before_it_reports(self, registered_by: str | None) -> None:
        current = replace(listener(), principal=registered_by)
        with pytest.raises(NotFoundError, match="was not registered with this token: register again"):
            heartbeat(current, "s1", None, now=NOW, revision=9, principal="b")

    @pytest.mark.parametrize("registered_by", [None, "a"])
    def test_without_authentication_everybody_may_report(self, registered_by: str | None) -> None:
        current = replace(listener(), principal=registered_by)
        assert heartbeat(current, "s1", 8, now=NOW, revision=9).acked == 8


class AgainstAModel(RuleBasedStateMachine):
    """Random sessions, compared with a model that records every session that was taken over."""

    sessions = st.integers(0, 24).map("s{}".format)

    def __init__(self) -> None:
        super().__init__()
        self.now, self.revision = NOW, 0
        self.current: Listener | None = None
        self.taken_over: list[str] = []
        self.acked: int | None = None

    @rule(session=sessions, empty=st.booleans(), lease=st.integers(1, 20))
    def register(self, session: str, empty: bool, lease: int) -> None:
        fenced = session in self.taken_over[-MAX_FORMER_SESSIONS:]
        before = self.current
        try:
            self.current = register(
                before, registration(session, lease=lease), now=self.now, revision=self.revision, empty=empty
            )
        except FencedError:
            assert fenced
            return
        assert not fenced
        renewal = before is not None and before.session == session and before.is_live(self.now)
        if before is not None and before.session != session:
            self.taken_over.append(before.session)
        self.acked = self.acked if renewal else (self.revision if empty else None)

    @rule(session=sessions, acked=st.integers(0, 30))
    def send_heartbeat(self, session: str, acked: int) -> None:
        before = self.current
        try:
            self.current = heartbeat(before, session, acked, now=self.now, revision=self.revision)
        except NotFoundError:
            assert before is None or not before.is_live(self.now)
        except FencedError:
            assert before is not None
            assert before.session != session
        except InvalidError:
            assert acked > self.revision
        else:
            self.acked = acked if self.acked is None else max(self.acked, acked)

    @rule(session=st.none())
    def send_heartbeat_of_the_current_session(self, session: None) -> None:
        if self.current is not None:
            self.send_heartbeat(self.current.session, min(self.revision, 30))

    @rule(step=st.integers(0, 8))
    def pass_time(self, step: int) -> None:
        self.now += step
        self.revision += step // 2

    @invariant()
    def the_current_session_is_no_former_one(self) -> None:
        if self.current is not None:
            assert self.current.acked == self.acked
            assert self.current.session not in self.current.former_sessions
            assert self.current.former_sessions == tuple(self.taken_over[-MAX_FORMER_SESSIONS:])


TestAgainstAModel = AgainstAModel.TestCase
TestAgainstAModel.settings = settings(max_examples=longer(60), stateful_step_count=60, deadline=None)


def test_the_database_has_room_for_the_name_of_each_part_of_a_report() -> None:
    """Another name would keep all reports from being saved."""
    room = cast("String", reports.c.part.type).length or 0
    assert [part for part in (*REPORT_FIELDS.values(), ERROR) if len(part) > room] == []
