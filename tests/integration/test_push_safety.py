"""Pushes are signed, and go to allowed hosts only."""

from __future__ import annotations

import httpx
import pytest

from tests.integration.conftest import Start
from tests.integration.listeners import get_listener, put, registration_body, wait_until_pushed
from tests.integration.problems import problem_of
from tests.integration.process import wait_until
from tests.integration.receiver import Receiver, fails, http, receiving, responds


class TestSignatures:
    """Standard Webhooks."""

    def test_every_push_is_signed_with_the_secret(self, listener_client: httpx.Client, receiver: Receiver) -> None:
        receiver.register(listener_client, "jm")
        wait_until_pushed(listener_client, receiver, put(listener_client, "a"))
        receiver.wait(lambda it: bool(it.heartbeats()))
        for push in receiver.requests:
            assert push.signatures == (True,)
            assert {"webhook-id", "webhook-timestamp", "webhook-signature"} <= push.headers.keys()
        ids = [push.headers["webhook-id"] for push in receiver.requests]
        assert len(set(ids)) == len(ids)

    def test_each_listener_has_its_own_secret(self, listener_client: httpx.Client) -> None:
        with receiving() as one, receiving() as two:
            one.register(listener_client, "one")
            two.register(listener_client, "two")
            one.secrets.append(two.secrets[0])
            wait_until_pushed(listener_client, one, put(listener_client, "a"), "one")
            assert {push.signatures for push in one.requests} == {(True, False)}

    def test_a_repeated_push_keeps_its_id(self, listener_client: httpx.Client) -> None:
        with receiving(fails(2)) as receiver:
            receiver.register(listener_client, "jm")
            wait_until_pushed(listener_client, receiver, put(listener_client, "a"))
            pushes = [push for push in receiver.requests if not push.heartbeat]
            assert {push.raw for push in pushes} == {pushes[0].raw}
            assert len({push.headers["webhook-id"] for push in pushes}) == 1
            assert all(push.signatures == (True,) for push in pushes)

    def test_after_a_rotation_pushes_verify_with_both_secrets(
        self, listener_client: httpx.Client, receiver: Receiver
    ) -> None:
        receiver.register(listener_client, "jm")
        answer = listener_client.post("/listeners/jm/secret", json={"sessionId": "s1"})
        receiver.secrets.append(answer.json()["secret"])
        receiver.secrets.append("whsec_c29tZWJvZHkgZWxzZSdz")
        wait_until_pushed(listener_client, receiver, put(listener_client, "a"))
        push = receiver.applied[-1]
        assert push.signatures == (True, True, False)
        assert len(push.headers["webhook-signature"].split(" ")) == 2

    def test_the_secret_survives_a_takeover_and_a_restart(self, start: Start) -> None:
        service = start()
        with receiving() as receiver, service.client() as client:
            receiver.register(client, "jm")
            receiver.start_session("s2")
            assert "secret" not in receiver.register(client, "jm")
            wait_until_pushed(client, receiver, put(client, "a"))
            service.stop()
            service.start()
            wait_until_pushed(client, receiver, put(client, "b"))
            assert {push.signatures for push in receiver.requests} == {(True,)}

    def test_a_secret_is_in_no_log_and_no_response(self, start: Start) -> None:
        service = start()
        with service.client() as client, receiving() as receiver:
            receiver.register(client, "jm")
            wait_until_pushed(client, receiver, put(client, "a"))
            answers = [client.get(path).text for path in ("/listeners", "/listeners/jm", "/metrics")]
        service.stop()
        bare = receiver.secrets[0].removeprefix("whsec_")
        assert not [text for text in [*answers, service.log()] if bare in text]


class TestCallbackHosts:
    """A registration cannot make the service send requests to internal hosts."""

    def test_only_names_in_the_setting_are_allowed(self, start: Start) -> None:
        with receiving() as receiver, start(callback_hosts="localhost").client() as client:
            refused = client.put("/listeners/jm", json=receiver.registration())
            assert "127.0.0.1" in problem_of(refused, 400)["detail"]
            receiver.url = receiver.url.replace("127.0.0.1", "localhost")
            receiver.register(client, "jm")
            wait_until_pushed(client, receiver, put(client, "a"))
            assert receiver.requests[0].headers["host"] == receiver.url.split("/")[2]

    def test_networks_and_patterns(self, start: Start) -> None:
        with start(callback_hosts="*.spark.example,10.1.0.0/16,fd00::/8").client() as client:
            for host, status in {
                "10.1.255.255": 201,
                "10.2.0.0": 400,
                "[fd00::1]:8000": 201,
                "[fe00::1]": 400,
                "[::ffff:10.2.0.1]": 400,
                "127.0.0.1": 400,
                "spark.example": 400,
                "badspark.example": 400,
                "a.spark.example.org": 400,
            }.items():
                body = registration_body(callbackUrl=f"http://{host}/hook")
                answer = client.put("/listeners/jm", json=body)
                assert answer.status_code == status, (host, answer.text)
                client.delete("/listeners/jm")

    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    def test_redirects_are_not_followed(self, listener_client: httpx.Client, status: int) -> None:
        with receiving() as inside:
            location = f"Location: {inside.url}"
            with receiving(responds(http(status, b"", location))) as receiver:
                receiver.register(listener_client, "jm")
                revision = put(listener_client, "a")
                receiver.wait(lambda it: len(it.requests) >= 2)
                wait_until(lambda: get_listener(listener_client, "jm")["lastError"] is not None)
                assert get_listener(listener_client, "jm")["ackedRevision"] < revision
        assert inside.requests == []

    def test_a_proxy_from_the_environment_is_not_used(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
        with receiving() as proxy, receiving() as receiver:
            for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
                monkeypatch.setenv(name, proxy.url.removesuffix("/hook"))
            for name in ("no_proxy", "NO_PROXY"):
                monkeypatch.delenv(name, raising=False)
            with start().client() as client:
                receiver.register(client, "jm")
                wait_until_pushed(client, receiver, put(client, "a"))
        assert proxy.requests == []
