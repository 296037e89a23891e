"""Pushes are signed, go to allowed hosts only, and tell nobody what answers there."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

import httpx
import pytest
from structlog.testing import capture_logs

from app.listeners.webhook_client import TIMEOUT_SECONDS
from blocklist.model.claims import Role
from tests.integration.conftest import Start
from tests.integration.databases import Databases
from tests.integration.listeners import get_listener, put, registration_body, wait_until_pushed
from tests.integration.problems import problem_of
from tests.integration.process import wait_until
from tests.integration.receiver import Receiver, Responder, fails, http, never_responds, receiving, responds
from tests.integration.secured import SecuredInProcess, secured_in_process


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


# With tokens: what a caller learns.

NOT_HTTP: Final = b"220 mail.internal ESMTP secret\r\n"
JSON: Final = "Content-Type: application/json"


@contextmanager
def secured_client(
    folder: Path, databases: Databases, **settings: str
) -> Iterator[tuple[SecuredInProcess, httpx.Client]]:
    """A service, and a client of it with the token of a listener."""
    with secured_in_process(folder, databases, **settings) as service:
        token = service.make_token(Role.LISTENER)["token"]
        with service.client(token) as client:
            yield service, client


def test_a_listener_that_was_allowed_before_gets_no_pushes(tmp_path: Path, databases: Databases) -> None:
    """The address is checked again when pushes begin, for example after authentication was switched on."""
    with receiving() as receiver:
        with secured_client(tmp_path, databases, callback_hosts="127.0.0.1") as (_, client):
            receiver.register(client, "jm", leaseSeconds=600)
        received = len(receiver.requests)
        with secured_client(tmp_path, databases) as (service, _), service.client(service.admin) as admin:
            put(admin, "a")
            wait_until(lambda: get_listener(admin, "jm")["lastError"] is not None)
        assert len(receiver.requests) == received


def _errors(service: SecuredInProcess, client: httpx.Client, host: str) -> dict[str, str]:
    """The `lastError` of a listener on each kind of port."""
    answers: dict[str, Responder] = {
        "status 404": responds(http(404)),
        "status 500": responds(http(500)),
        "a redirect": responds(http(302, b"", "Location: http://10.0.0.1/")),
        "another protocol": responds(NOT_HTTP),
        "closes at once": lambda _receiver, _push, connection: connection.shutdown(socket.SHUT_RDWR),
        "says nothing": never_responds,
    }
    with ExitStack() as stack:
        urls = {name: stack.enter_context(receiving(answer)).url for name, answer in answers.items()}
        with closing(socket.create_server(("127.0.0.1", 0))) as closed:
            urls["closed"] = f"http://127.0.0.1:{closed.getsockname()[1]}/hook"
        admin = stack.enter_context(service.client(service.admin))
        for number, url in enumerate(urls.values()):
            body = registration_body(callbackUrl=url.replace("127.0.0.1", host), leaseSeconds=600)
            client.put(f"/listeners/jm-{number}", json=body).raise_for_status()
        put(admin, "a")

        def without_error() -> set[str]:
            return {
                name for number, name in enumerate(urls) if get_listener(admin, f"jm-{number}")["lastError"] is None
            }

        wait_until(lambda: without_error() <= {"says nothing"})
        service.clock.advance(TIMEOUT_SECONDS)
        wait_until(lambda: not without_error())
        return {name: get_listener(client, f"jm-{number}")["lastError"] for number, name in enumerate(urls)}


def test_last_error_does_not_tell_whether_a_port_is_open(tmp_path: Path, databases: Databases) -> None:
    """The reason is in the log of the service."""
    with capture_logs() as log, secured_client(tmp_path, databases, callback_hosts="127.0.0.0/8") as (service, client):
        errors = _errors(service, client, "127.0.0.1")
        assert len(set(errors.values())) == 1, errors
        assert "log" in errors["closed"]
        assert "Cannot connect" in str(log)
        assert "status 404" in str(log)


def test_a_host_that_is_allowed_by_name_may_show_its_status(tmp_path: Path, databases: Databases) -> None:
    with secured_client(tmp_path, databases, callback_hosts="localhost") as (service, client):
        errors = _errors(service, client, "localhost")
        assert "404" in errors["status 404"]
        assert "500" in errors["status 500"]
        assert len({errors[name] for name in ("closed", "closes at once", "another protocol", "says nothing")}) == 1


def test_last_error_does_not_quote_the_response(tmp_path: Path, databases: Databases) -> None:
    answer = http(200, b'{"refused": {"internal secret": "x"}}', JSON)
    with (
        capture_logs() as log,
        receiving(responds(answer)) as inside,
        secured_client(tmp_path, databases, callback_hosts="127.0.0.0/8") as (service, client),
        service.client(service.admin) as admin,
    ):
        _register_and_wait(inside, client, admin)
        assert "secret" not in get_listener(client, "jm")["lastError"]
        assert "report in a push response ignored" in str(log)


def _register_and_wait(receiver: Receiver, client: httpx.Client, admin: httpx.Client) -> None:
    client.put("/listeners/jm", json=registration_body(callbackUrl=receiver.url)).raise_for_status()
    put(admin, "a")
    wait_until(lambda: get_listener(admin, "jm")["lastError"] is not None)
