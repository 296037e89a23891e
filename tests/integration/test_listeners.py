"""Registration, leases and heartbeats: who is known, in which session, and until when."""

from __future__ import annotations

import re

import httpx
import pytest

from tests.integration.bodies import now_ms
from tests.integration.conftest import Start
from tests.integration.databases import ON_BOTH
from tests.integration.listeners import (
    FIELDS,
    JM,
    RM,
    beat,
    free,
    known,
    lapse,
    put,
    register,
    report,
    settled,
    watcher,
)
from tests.integration.problems import problem_of
from tests.integration.process import ServiceProcess, wait_until

pytestmark = ON_BOTH


class TestRegistering:
    """PUT /listeners/{id}"""

    def test_a_new_one_is_201_with_a_secret_shown_this_once(self, desk: httpx.Client) -> None:
        answer = desk.put("/listeners/jm", json=watcher())
        body = answer.json()
        assert (answer.status_code, set(body)) == (201, {*FIELDS, "secret"})
        assert body["secret"].startswith("whsec_")
        again = desk.put("/listeners/jm", json=watcher())
        assert (again.status_code, set(again.json())) == (200, set(FIELDS))
        assert set(known(desk, "jm")) == FIELDS
        assert body["secret"] not in desk.get("/listeners").text

    def test_it_is_as_it_asked_to_be(self, desk: httpx.Client) -> None:
        before = now_ms()
        body = register(desk, "jm", "s1", leaseSeconds=3600)
        after = now_ms()
        assert (body["id"], body["role"], body["sessionId"], body["callbackUrl"]) == ("jm", JM, "s1", None)
        assert (body["state"], body["lastError"]) == ("live", None)
        assert before + 3_600_000 <= int(body["leaseEnd"]) <= after + 3_600_000
        assert isinstance(body["leaseEnd"], str)
        assert settled(desk, "jm").items() <= body.items()

    def test_the_lease_is_50_s_unless_it_asks_otherwise(self, desk: httpx.Client) -> None:
        before = now_ms()
        end = int(register(desk, "jm")["leaseEnd"])
        assert before + 50_000 <= end <= now_ms() + 50_000

    @pytest.mark.parametrize("seconds", [1, 3600])
    def test_the_ends_of_the_range_are_in_it(self, desk: httpx.Client, seconds: int) -> None:
        assert desk.put("/listeners/jm", json=watcher(leaseSeconds=seconds)).status_code == 201

    def test_on_an_empty_list_there_is_nothing_to_acknowledge(self, desk: httpx.Client) -> None:
        put(desk, "a")
        revision = free(desk, "a")
        body = register(desk, "jm")
        assert (body["ackedRevision"], body["lagRevisions"], body["lagMs"]) == (revision, 0, 0)
        assert body["revision"] == revision

    def test_on_a_list_it_has_acknowledged_nothing_yet(self, desk: httpx.Client) -> None:
        revision = put(desk, "a")
        body = register(desk, "jm")
        assert (body["ackedRevision"], body["revision"]) == (0, revision)
        assert body["lagRevisions"] > 0

    def test_a_renewal_keeps_the_cursor(self, desk: httpx.Client) -> None:
        register(desk, "jm")
        first = put(desk, "a")
        report(desk, "jm", ackedRevision=first)
        put(desk, "b")
        renewed = register(desk, "jm")
        assert (renewed["ackedRevision"], renewed["lagRevisions"]) == (first, 1)

    def test_a_renewal_moves_the_end_of_the_lease(self, desk: httpx.Client) -> None:
        first = int(register(desk, "jm", leaseSeconds=10)["leaseEnd"])
        assert int(register(desk, "jm", leaseSeconds=20)["leaseEnd"]) >= first + 10_000

    def test_a_new_session_starts_from_a_snapshot(self, desk: httpx.Client) -> None:
        register(desk, "jm")
        report(desk, "jm", ackedRevision=put(desk, "a"))
        answer = desk.put("/listeners/jm", json=watcher("s2"))
        assert (answer.status_code, answer.json()["sessionId"], answer.json()["ackedRevision"]) == (200, "s2", 0)
        assert "secret" not in answer.json()

    def test_a_session_that_was_taken_over_has_no_say_any_more(self, desk: httpx.Client) -> None:
        register(desk, "jm", "s1")
        register(desk, "jm", "s2")
        before = settled(desk, "jm")
        problem_of(desk.put("/listeners/jm", json=watcher("s1")), 409)
        problem_of(beat(desk, "jm", "s1"), 409)
        problem_of(desk.post("/listeners/jm/secret", json={"sessionId": "s1"}), 409)
        assert settled(desk, "jm") == before

    def test_a_session_that_was_never_registered_is_no_session_of_it(self, desk: httpx.Client) -> None:
        register(desk, "jm", "s1")
        problem_of(beat(desk, "jm", "s3"), 409)

    def test_sessions_and_listeners_with_ids_of_every_kind(self, desk: httpx.Client) -> None:
        for name in ("application_1700000000000_0001", "::1", "A" * 253, "a:b.c-d_E"):
            assert register(desk, name, name)["id"] == name
            assert report(desk, name, name)

    def test_a_percent_decoded_id_is_the_same_listener(self, desk: httpx.Client) -> None:
        register(desk, "a:b")
        assert desk.get("/listeners/a%3Ab").json()["id"] == "a:b"

    def test_a_restart_of_the_service_forgets_nobody(self, start: Start) -> None:
        service = start()
        with service.client() as client:
            register(client, "jm", "s1")
            register(client, "jm", "s2")
            report(client, "jm", "s2", ackedRevision=put(client, "a"))
            put(client, "b")
            before = settled(client, "jm")
        service.stop()
        service.start()
        with service.client() as client:
            after = settled(client, "jm")
            assert after.pop("leaseEnd") > before.pop("leaseEnd"), "every lease runs anew"
            assert after == before
            problem_of(client.put("/listeners/jm", json=watcher("s1")), 409)
            report(client, "jm", "s2", ackedRevision=before["revision"])


class TestHeartbeat:
    """POST /listeners/{id}/heartbeat"""

    def test_it_says_the_present_revision_and_moves_the_lease(self, desk: httpx.Client) -> None:
        register(desk, "jm", leaseSeconds=10)
        revision, before = put(desk, "a"), now_ms()
        answer = report(desk, "jm", ackedRevision=revision)
        assert set(answer) == {"revision", "leaseEnd"}
        assert answer["revision"] == revision
        assert before + 10_000 <= int(answer["leaseEnd"]) <= now_ms() + 10_000
        assert isinstance(answer["leaseEnd"], str)
        assert known(desk, "jm")["leaseEnd"] == answer["leaseEnd"]

    def test_without_a_revision_it_only_lives(self, desk: httpx.Client) -> None:
        register(desk, "jm")
        report(desk, "jm", ackedRevision=put(desk, "a"))
        before = known(desk, "jm")["ackedRevision"]
        report(desk, "jm")
        assert known(desk, "jm")["ackedRevision"] == before

    def test_a_lower_revision_than_known_is_passed_over(self, desk: httpx.Client) -> None:
        register(desk, "jm")
        revision = put(desk, "a")
        report(desk, "jm", ackedRevision=revision)
        report(desk, "jm", ackedRevision=revision - 1)
        assert known(desk, "jm")["ackedRevision"] == revision

    def test_a_revision_to_come_is_400_and_moves_nothing(self, desk: httpx.Client) -> None:
        register(desk, "jm", leaseSeconds=10)
        revision, before = put(desk, "a"), settled(desk, "jm")
        for ahead in (revision + 1, 2**53, 2**63 - 1, 2**64):
            problem_of(beat(desk, "jm", ackedRevision=ahead, taskManagers={"tm": "a"}), 400)
        assert settled(desk, "jm").items() >= {"leaseEnd": before["leaseEnd"]}.items()
        assert desk.get("/blocklist").json()["a"]["taskManagers"] == []

    def test_how_far_behind_it_is(self, desk: httpx.Client) -> None:
        register(desk, "jm")
        first = put(desk, "a")
        put(desk, "b")
        wait_until(lambda: known(desk, "jm")["lagMs"] > 0)
        assert known(desk, "jm")["lagRevisions"] == 2
        report(desk, "jm", ackedRevision=first)
        assert known(desk, "jm")["lagRevisions"] == 1
        report(desk, "jm", ackedRevision=first + 1)
        caught_up = known(desk, "jm")
        assert (caught_up["lagRevisions"], caught_up["lagMs"]) == (0, 0)

    def test_an_unknown_one_is_told_to_register_again(self, desk: httpx.Client) -> None:
        assert "register" in problem_of(beat(desk, "nobody"), 404)["detail"]


class TestLapse:
    """What happens without a sign of life."""

    def test_it_is_a_state_a_line_in_the_log_and_a_metric(self, desk: httpx.Client, listened: ServiceProcess) -> None:
        register(desk, "sleeper-of-the-log", leaseSeconds=1)
        lapse(desk, "sleeper-of-the-log")
        wait_until(lambda: bool(re.search(r"(?i)laps.*sleeper-of-the-log|sleeper-of-the-log.*laps", listened.log())))
        samples = re.findall(r"(?im)^[^#\n]*laps\S* (\S+)$", desk.get("/metrics").text)
        assert any(float(value) >= 1 for value in samples), "a metric counts those that lapsed"

    def test_a_heartbeat_comes_too_late(self, desk: httpx.Client) -> None:
        register(desk, "jm", leaseSeconds=1)
        lapse(desk, "jm")
        assert "register" in problem_of(beat(desk, "jm"), 404)["detail"]
        assert known(desk, "jm")["state"] == "lapsed"

    def test_the_next_registration_starts_from_a_snapshot(self, desk: httpx.Client) -> None:
        register(desk, "jm", leaseSeconds=1)
        report(desk, "jm", ackedRevision=put(desk, "a"))
        lapse(desk, "jm")
        back = desk.put("/listeners/jm", json=watcher())
        assert (back.status_code, back.json()["state"], back.json()["ackedRevision"]) == (200, "live", 0)

    def test_heartbeats_keep_it(self, desk: httpx.Client) -> None:
        """One that says something lives while one that says nothing lapses, both for one second at a time."""
        register(desk, "silent", leaseSeconds=2)
        register(desk, "jm", leaseSeconds=2)

        def silent_is_gone() -> bool:
            report(desk, "jm")
            return bool(known(desk, "silent")["state"] == "lapsed")

        wait_until(silent_is_gone)
        assert known(desk, "jm")["state"] == "live"

    def test_it_is_forgotten_in_the_end(self, start: Start) -> None:
        with start(forget_listeners="1s").client() as client:
            register(client, "jm", leaseSeconds=1)
            register(client, "stays")
            wait_until(lambda: client.get("/listeners/jm").status_code == 404)
            assert [listener["id"] for listener in client.get("/listeners").json()["listeners"]] == ["stays"]
            assert client.put("/listeners/jm", json=watcher()).status_code == 201


class TestTheOthers:
    """GET and DELETE."""

    def test_all_are_listed_by_id(self, desk: httpx.Client) -> None:
        assert desk.get("/listeners").json() == {"listeners": []}
        for name in ("b", "a:1", "B", "a"):
            register(desk, name, role=RM if name == "B" else JM)
        listed = desk.get("/listeners").json()
        assert set(listed) == {"listeners"}
        assert [listener["id"] for listener in listed["listeners"]] == ["B", "a", "a:1", "b"]
        for listener in listed["listeners"]:
            assert settled(desk, listener["id"]).items() <= listener.items()

    def test_leaving_is_204_and_then_it_is_unknown(self, desk: httpx.Client) -> None:
        register(desk, "jm")
        left = desk.delete("/listeners/jm")
        assert (left.status_code, left.content) == (204, b"")
        problem_of(desk.get("/listeners/jm"), 404)
        problem_of(desk.delete("/listeners/jm"), 404)
        problem_of(beat(desk, "jm"), 404)
        problem_of(desk.post("/listeners/jm/secret", json={"sessionId": "s1"}), 404)

    def test_who_left_may_come_back_as_a_new_one(self, desk: httpx.Client) -> None:
        first = register(desk, "jm", "s1")["secret"]
        desk.delete("/listeners/jm")
        back = desk.put("/listeners/jm", json=watcher("s1"))
        assert back.status_code == 201
        assert back.json()["secret"] != first

    def test_the_secret_may_be_changed_by_its_session(self, desk: httpx.Client) -> None:
        first = register(desk, "jm")["secret"]
        answer = desk.post("/listeners/jm/secret", json={"sessionId": "s1"})
        assert (answer.status_code, set(answer.json())) == (200, {"secret"})
        assert answer.json()["secret"].startswith("whsec_")
        assert answer.json()["secret"] != first
