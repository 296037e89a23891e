"""Registration, sessions, leases and heartbeats."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

from app.listeners import replication
from tests.integration.bodies import now_ms
from tests.integration.conftest import StartInProcess
from tests.integration.databases import ON_BOTH, ON_SQLITE, Databases
from tests.integration.in_process import InProcessService, RunningClock, in_process
from tests.integration.listeners import (
    FIELDS,
    JM,
    RM,
    get_listener,
    heartbeat,
    post_heartbeat,
    put,
    register,
    registration_body,
    without_lag,
)
from tests.integration.problems import problem_of
from tests.integration.process import wait_until
from tests.integration.test_metrics import value

pytestmark = ON_BOTH


class TestRegistering:
    """PUT /listeners/{id}"""

    def test_a_new_listener_is_201_with_a_secret_shown_only_once(self, listener_client: httpx.Client) -> None:
        answer = listener_client.put("/listeners/jm", json=registration_body())
        body = answer.json()
        assert (answer.status_code, set(body)) == (201, {*FIELDS, "secret"})
        assert body["secret"].startswith("whsec_")
        again = listener_client.put("/listeners/jm", json=registration_body())
        assert (again.status_code, set(again.json())) == (200, set(FIELDS))
        assert set(get_listener(listener_client, "jm")) == FIELDS
        assert body["secret"] not in listener_client.get("/listeners").text

    def test_a_registration_has_the_requested_values(self, listener_client: httpx.Client) -> None:
        before = now_ms()
        body = register(listener_client, "jm", "s1", leaseSeconds=3600)
        after = now_ms()
        assert (body["id"], body["role"], body["sessionId"], body["callbackUrl"]) == ("jm", JM, "s1", None)
        assert (body["state"], body["lastError"]) == ("live", None)
        assert before + 3_600_000 <= int(body["leaseEnd"]) <= after + 3_600_000
        assert isinstance(body["leaseEnd"], str)
        assert without_lag(listener_client, "jm").items() <= body.items()

    def test_what_it_runs_is_shown_and_an_empty_text_is_400(self, listener_client: httpx.Client) -> None:
        software = {"product": "blocklist-spark", "version": "0.1.0", "platform": "Spark 4.3.0, Java 17"}
        assert software.items() <= register(listener_client, "jm", "s1", **software).items()
        assert software.items() <= get_listener(listener_client, "jm").items()
        assert get_listener(listener_client, "jm") == listener_client.get("/listeners").json()["listeners"][0]
        later = software | {"version": "0.2.0"}
        assert register(listener_client, "jm", "s1", **later)["version"] == "0.2.0"
        for wrong in ("", "x" * 201, "a\nb"):
            answer = listener_client.put("/listeners/jm", json=registration_body(version=wrong))
            assert (answer.status_code, "version" in answer.json()["detail"]) == (400, True)

    @pytest.mark.parametrize("seconds", [1, 3600])
    def test_the_shortest_and_longest_leases_are_accepted(self, listener_client: httpx.Client, seconds: int) -> None:
        assert listener_client.put("/listeners/jm", json=registration_body(leaseSeconds=seconds)).status_code == 201

    def test_a_session_that_was_taken_over_gets_409(self, listener_client: httpx.Client) -> None:
        register(listener_client, "jm", "s1")
        register(listener_client, "jm", "s2")
        before = without_lag(listener_client, "jm")
        problem_of(listener_client.put("/listeners/jm", json=registration_body("s1")), 409)
        problem_of(post_heartbeat(listener_client, "jm", "s1"), 409)
        problem_of(listener_client.post("/listeners/jm/secret", json={"sessionId": "s1"}), 409)
        assert without_lag(listener_client, "jm") == before

    def test_every_valid_id_is_accepted_for_sessions_and_listeners(self, listener_client: httpx.Client) -> None:
        for name in ("application_1700000000000_0001", "::1", "A" * 253, "a:b.c-d_E"):
            assert register(listener_client, name, name)["id"] == name
            assert heartbeat(listener_client, name, name)

    def test_a_percent_decoded_id_is_the_same_listener(self, listener_client: httpx.Client) -> None:
        register(listener_client, "a:b")
        assert listener_client.get("/listeners/a%3Ab").json()["id"] == "a:b"

    def test_listeners_survive_a_restart_of_the_service(self, tmp_path: Path, databases: Databases) -> None:
        settings = databases.settings(tmp_path)
        with in_process(RunningClock(), **settings) as service, service.client() as client:
            register(client, "jm", "s1")
            register(client, "jm", "s2")
            heartbeat(client, "jm", "s2", ackedRevision=put(client, "a"))
            put(client, "b")
            before = without_lag(client, "jm")
        with in_process(RunningClock(), **settings) as service, service.client() as client:
            after = without_lag(client, "jm")
            assert after.pop("leaseEnd") > before.pop("leaseEnd"), "every lease is renewed"
            assert after == before
            problem_of(client.put("/listeners/jm", json=registration_body("s1")), 409)
            heartbeat(client, "jm", "s2", ackedRevision=before["revision"])


class TestHeartbeat:
    """POST /listeners/{id}/heartbeat"""

    def test_the_response_has_the_current_revision_and_the_extended_lease(self, listener_client: httpx.Client) -> None:
        register(listener_client, "jm", leaseSeconds=10)
        revision, before = put(listener_client, "a"), now_ms()
        answer = heartbeat(listener_client, "jm", ackedRevision=revision)
        assert set(answer) == {"revision", "leaseEnd", "reported", "mode"}
        assert answer["revision"] == revision
        assert before + 10_000 <= int(answer["leaseEnd"]) <= now_ms() + 10_000
        assert isinstance(answer["leaseEnd"], str)
        assert get_listener(listener_client, "jm")["leaseEnd"] == answer["leaseEnd"]

    def test_a_future_revision_is_400_and_changes_nothing(self, listener_client: httpx.Client) -> None:
        register(listener_client, "jm", leaseSeconds=10)
        revision, before = put(listener_client, "a"), without_lag(listener_client, "jm")
        for ahead in (revision + 1, 2**53, 2**63 - 1, 2**64):
            problem_of(post_heartbeat(listener_client, "jm", ackedRevision=ahead, taskManagers={"tm": "a"}), 400)
        assert without_lag(listener_client, "jm").items() >= {"leaseEnd": before["leaseEnd"]}.items()
        assert listener_client.get("/blocklist").json()["a"]["taskManagers"] == []

    def test_the_lag_is_in_revisions_and_milliseconds(self, listener_client: httpx.Client) -> None:
        register(listener_client, "jm")
        first = put(listener_client, "a")
        put(listener_client, "b")
        wait_until(lambda: get_listener(listener_client, "jm")["lagMs"] > 0)
        assert get_listener(listener_client, "jm")["lagRevisions"] == 2
        heartbeat(listener_client, "jm", ackedRevision=first)
        assert get_listener(listener_client, "jm")["lagRevisions"] == 1
        heartbeat(listener_client, "jm", ackedRevision=first + 1)
        caught_up = get_listener(listener_client, "jm")
        assert (caught_up["lagRevisions"], caught_up["lagMs"]) == (0, 0)

    def test_an_unknown_listener_must_register_again(self, listener_client: httpx.Client) -> None:
        assert "register" in problem_of(post_heartbeat(listener_client, "nobody"), 404)["detail"]


@ON_SQLITE
class TestExpiry:
    """Without heartbeats the lease expires. With PostgreSQL, its clock decides."""

    def test_it_changes_the_state_is_logged_and_counted(self, timed: InProcessService) -> None:
        with capture_logs() as log, timed.client() as client:
            register(client, "jm", leaseSeconds=60)
            timed.clock.advance(60)
            assert get_listener(client, "jm")["state"] == "lapsed"
            timed.until(lambda: value(client, "blocklist_leases_expired_total") == 1)
        assert [line["listener"] for line in log if line["event"] == "listener lease expired"] == ["jm"]

    def test_an_expired_listener_is_removed_later(
        self, start_in_process: StartInProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(replication, "FORGET_AFTER_MS", 600_000)
        service = start_in_process(clock=RunningClock())
        client = service.client()
        register(client, "jm", leaseSeconds=60)
        register(client, "stays", leaseSeconds=3600)
        service.clock.advance(600)
        assert get_listener(client, "jm")["state"] == "lapsed"
        service.clock.advance(60)
        service.until(lambda: client.get("/listeners/jm").status_code == 404)
        assert [listener["id"] for listener in client.get("/listeners").json()["listeners"]] == ["stays"]
        assert client.put("/listeners/jm", json=registration_body()).status_code == 201


class TestReadingAndLeaving:
    """GET and DELETE."""

    def test_all_are_listed_by_id(self, listener_client: httpx.Client) -> None:
        assert listener_client.get("/listeners").json() == {"listeners": []}
        for name in ("b", "a:1", "B", "a"):
            register(listener_client, name, role=RM if name == "B" else JM)
        listed = listener_client.get("/listeners").json()
        assert set(listed) == {"listeners"}
        assert [listener["id"] for listener in listed["listeners"]] == ["B", "a", "a:1", "b"]
        for listener in listed["listeners"]:
            assert without_lag(listener_client, listener["id"]).items() <= listener.items()

    def test_leaving_is_204_and_then_the_listener_is_unknown(self, listener_client: httpx.Client) -> None:
        register(listener_client, "jm")
        left = listener_client.delete("/listeners/jm")
        assert (left.status_code, left.content) == (204, b"")
        problem_of(listener_client.get("/listeners/jm"), 404)
        problem_of(listener_client.delete("/listeners/jm"), 404)
        problem_of(post_heartbeat(listener_client, "jm"), 404)
        problem_of(listener_client.post("/listeners/jm/secret", json={"sessionId": "s1"}), 404)

    def test_the_session_can_rotate_the_secret(self, listener_client: httpx.Client) -> None:
        first = register(listener_client, "jm")["secret"]
        answer = listener_client.post("/listeners/jm/secret", json={"sessionId": "s1"})
        assert (answer.status_code, set(answer.json())) == (200, {"secret"})
        assert answer.json()["secret"].startswith("whsec_")
        assert answer.json()["secret"] != first
