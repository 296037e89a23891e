"""With tokens, callbacks do not go to this machine unless the setting says so, and nobody learns what answers there."""

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
from blocklist.model.roles import Role
from tests.integration.databases import Databases
from tests.integration.listeners import get_listener, put, registration_body, wait_until_pushed
from tests.integration.problems import problem_of
from tests.integration.process import wait_until
from tests.integration.receiver import Receiver, Responder, http, never_responds, receiving, responds
from tests.integration.secured import SecuredInProcess, secured_in_process

THIS_MACHINE: Final = ["127.0.0.1", "127.0.0.2", "localhost", "[::1]", "0.0.0.0", "[::]", "[::ffff:127.0.0.1]", "0"]
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


@pytest.mark.parametrize("hosts", [None, "0.0.0.0/0,::/0,*.local*,local*"], ids=["default", "everything but loopback"])
def test_callbacks_to_this_machine_are_refused(tmp_path: Path, databases: Databases, hosts: str | None) -> None:
    settings = {} if hosts is None else {"callback_hosts": hosts}
    with receiving() as inside, secured_client(tmp_path, databases, **settings) as (_, client):
        port = inside.url.split(":")[2]
        for host in THIS_MACHINE:
            body = registration_body(callbackUrl=f"http://{host}:{port}")
            detail = problem_of(client.put("/listeners/jm", json=body), 400)["detail"]
            assert "BLOCKLIST_CALLBACK_HOSTS" in detail
    assert inside.requests == []


@pytest.mark.parametrize("hosts", ["127.0.0.0/8", "127.0.0.1", "localhost"])
def test_an_operator_may_allow_them(tmp_path: Path, databases: Databases, hosts: str) -> None:
    with receiving() as receiver, secured_client(tmp_path, databases, callback_hosts=hosts) as (service, client):
        receiver.url = receiver.url.replace("127.0.0.1", hosts.partition("/")[0].replace("127.0.0.0", "127.0.0.1"))
        receiver.register(client, "jm")
        with service.client(service.admin) as admin:
            wait_until_pushed(admin, receiver, put(admin, "a"))


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


def test_an_unknown_name_gets_the_same_answer_as_a_forbidden_one(tmp_path: Path, databases: Databases) -> None:
    """Otherwise registrations would show which names exist in the network of the service."""
    with secured_client(tmp_path, databases, callback_hosts="10.0.0.0/8") as (_, client):
        details = {
            host: problem_of(
                client.put("/listeners/jm", json=registration_body(callbackUrl=f"http://{host}/hook")), 400
            )["detail"].replace(host, "HOST")
            for host in ("localhost", "no-such-host.invalid")
        }
    assert len(set(details.values())) == 1


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
