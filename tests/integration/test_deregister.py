"""Who may deregister a listener, with authentication."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from blocklist import BlocklistClient
from blocklist.model.claims import Role
from blocklist.model.listener import FencedError
from tests.integration.databases import Databases
from tests.integration.listeners import get_listener, register
from tests.integration.problems import problem_of
from tests.integration.secured import SecuredInProcess, secured_in_process


@pytest.fixture
def service(tmp_path: Path, databases: Databases) -> Iterator[SecuredInProcess]:
    with secured_in_process(tmp_path, databases) as service:
        yield service


def token(service: SecuredInProcess, role: Role, name: str) -> str:
    return str(service.make_token(role, name)["token"])


def test_a_listener_deregisters_only_what_its_own_token_registered(service: SecuredInProcess) -> None:
    own, other = (token(service, Role.LISTENER, name) for name in ("own", "other"))
    with service.client(own) as owner, service.client(other) as attacker:
        register(owner, "jm")
        problem_of(attacker.delete("/listeners/jm"), 404)
        assert get_listener(owner, "jm")["state"] == "live"
        with service.client(token(service, Role.LISTENER, "own")) as successor:
            assert successor.delete("/listeners/jm").status_code == 204
        problem_of(owner.delete("/listeners/jm"), 404)


@pytest.mark.parametrize("role", [Role.OPERATOR, Role.ADMIN])
def test_operators_deregister_any_listener(service: SecuredInProcess, role: Role) -> None:
    with service.client(token(service, Role.LISTENER, "own")) as owner:
        register(owner, "jm")
        with service.client(token(service, role, "other")) as operator:
            assert operator.delete("/listeners/jm").status_code == 204
        problem_of(owner.get("/listeners/jm"), 404)


def test_a_process_that_ends_does_not_remove_its_successor(service: SecuredInProcess) -> None:
    with service.client(token(service, Role.LISTENER, "own")) as owner:
        register(owner, "jm", "s1")
        register(owner, "jm", "s2")
        detail = problem_of(owner.delete("/listeners/jm?sessionId=s1"), 409)["detail"]
        assert detail == "Listener jm is registered with another session; it was not removed."
        assert get_listener(owner, "jm")["sessionId"] == "s2"
        for query in ("sessionId=a/b", "sessionid=s1", "sessionId=s1&sessionId=s2"):
            problem_of(owner.delete(f"/listeners/jm?{query}"), 400)
        assert owner.delete("/listeners/jm?sessionId=s2").status_code == 204
        problem_of(owner.delete("/listeners/jm?sessionId=s2"), 404)


def test_the_client_removes_only_its_own_session(service: SecuredInProcess) -> None:
    secret = token(service, Role.LISTENER, "own")
    with service.client(secret) as owner, BlocklistClient(service.url, token=secret) as client:
        register(owner, "jm", "s1")
        register(owner, "jm", "s2")
        with pytest.raises(FencedError):
            client.deregister("jm", "s1")
        assert get_listener(owner, "jm")["sessionId"] == "s2"
        client.deregister("jm", "s2")
