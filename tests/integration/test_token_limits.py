"""What one token may use of the service: a number of listeners, and an amount of reports. Others are not affected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import httpx
import pytest

from blocklist.model.claims import Role
from tests.integration.bodies import block
from tests.integration.databases import ON_BOTH, Databases
from tests.integration.in_process import in_process
from tests.integration.listeners import (
    get_listener,
    heartbeat,
    post_heartbeat,
    put,
    register,
    registration_body,
    wait_until_lapsed,
)
from tests.integration.problems import problem_of
from tests.integration.process import wait_until
from tests.integration.receiver import http, receiving, responds
from tests.integration.replicas import running_replicas
from tests.integration.secured import SecuredInProcess, secured_in_process

Client = Callable[[str], httpx.Client]
MAX_BYTES: Final = 150_000
LIMITS: Final = {
    "max_listeners_per_token": "3",
    "max_report_bytes_per_token": str(MAX_BYTES),
    "callback_hosts": "127.0.0.1",
}


@pytest.fixture
def service(tmp_path: Path, databases: Databases) -> Iterator[SecuredInProcess]:
    with secured_in_process(tmp_path, databases, **LIMITS) as service:
        yield service


@pytest.fixture
def client_of(service: SecuredInProcess) -> Iterator[Client]:
    """A client with a new token of a listener, by the token's name."""
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(service.client(service.make_token(Role.LISTENER, name)["token"]))


def try_register(client: httpx.Client, listener: str, session: str = "s1") -> httpx.Response:
    return client.put(f"/listeners/{listener}", json=registration_body(session, leaseSeconds=600))


def nodes(number: int) -> dict[str, str]:
    """A report of about 1,800 bytes for each TaskManager."""
    return {f"tm-{it:046}": f"node-{it:045}" for it in range(number)}


def findings(first: int, number: int) -> dict[str, dict[str, str]]:
    return {f"n-{it}": {"kind": "slow", "reason": "x" * 300} for it in range(first, first + number)}


@ON_BOTH
class TestListeners:
    def test_those_that_register_at_the_same_time_are_counted_together(self, client_of: Client) -> None:
        client = client_of("greedy")
        with ThreadPoolExecutor(12) as pool:
            responses = list(pool.map(lambda number: try_register(client, f"jm-{number // 2}"), range(12)))
        statuses = [response.status_code for response in responses]
        assert (statuses.count(201), statuses.count(200), statuses.count(429)) == (3, 3, 6)

    def test_a_token_has_at_most_as_many_as_the_setting_says(
        self, service: SecuredInProcess, client_of: Client
    ) -> None:
        """Also with another token of the same name. Renewals and new sessions are allowed."""
        greedy, other = client_of("greedy"), client_of("other")
        for number in range(3):
            assert try_register(greedy, f"jm-{number}").status_code == 201
        detail = problem_of(try_register(greedy, "jm-3"), 429)["detail"]
        assert "3 live listeners" in detail
        assert "BLOCKLIST_MAX_LISTENERS_PER_TOKEN" in detail
        problem_of(try_register(client_of("greedy"), "jm-3"), 429)
        assert try_register(greedy, "jm-0").status_code == 200
        assert try_register(greedy, "jm-1", "s2").status_code == 200
        heartbeat(greedy, "jm-2")
        assert try_register(other, "jm-3").status_code == 201
        assert greedy.delete("/listeners/jm-0").status_code == 204
        assert try_register(greedy, "jm-4").status_code == 201
        problem_of(try_register(greedy, "jm-5"), 429)

    def test_they_count_after_a_restart(self, tmp_path: Path, databases: Databases) -> None:
        with secured_in_process(tmp_path, databases, **LIMITS) as service:
            token = service.make_token(Role.LISTENER, "greedy")["token"]
            with service.client(token) as greedy:
                for number in range(3):
                    try_register(greedy, f"jm-{number}")
        with secured_in_process(tmp_path, databases, **LIMITS) as service, service.client(token) as greedy:
            problem_of(try_register(greedy, "jm-3"), 429)
            assert try_register(greedy, "jm-0").status_code == 200

    def test_taking_over_the_listener_of_another_token_counts(self, client_of: Client) -> None:
        greedy, other = client_of("greedy"), client_of("other")
        for number in range(3):
            try_register(greedy, f"jm-{number}")
        assert try_register(other, "jm-9").status_code == 201
        problem_of(try_register(greedy, "jm-9"), 429)
        heartbeat(other, "jm-9")

    def test_one_that_has_lapsed_makes_room(self, service: SecuredInProcess, client_of: Client) -> None:
        greedy = client_of("greedy")
        register(greedy, "short", leaseSeconds=10)
        for number in range(2):
            try_register(greedy, f"jm-{number}")
        service.clock.advance(10)
        wait_until_lapsed(greedy, "short")
        wait_until(lambda: try_register(greedy, "jm-2").status_code == 201)
        assert greedy.get("/listeners/short").status_code == 404
        problem_of(try_register(greedy, "jm-3"), 429)


@ON_BOTH
class TestReports:
    def test_the_reports_of_one_token_are_limited_together(self, client_of: Client) -> None:
        greedy, other = client_of("greedy"), client_of("other")
        for client, name in ((greedy, "a"), (greedy, "b"), (other, "c")):
            try_register(client, name)
        heartbeat(greedy, "a", taskManagers=nodes(40))
        detail = problem_of(post_heartbeat(greedy, "b", taskManagers=nodes(20)), 413)["detail"]
        assert "BLOCKLIST_MAX_REPORT_BYTES_PER_TOKEN" in detail
        assert greedy.get(f"/taskmanagers/{next(iter(nodes(1)))}").status_code == 200
        heartbeat(other, "c", taskManagers=nodes(40))
        heartbeat(greedy, "b")
        heartbeat(greedy, "b", taskManagers=nodes(1))
        heartbeat(greedy, "a", taskManagers=nodes(39))

    def test_less_makes_room_and_so_does_leaving(self, client_of: Client) -> None:
        greedy = client_of("greedy")
        for name in ("a", "b"):
            try_register(greedy, name)
        heartbeat(greedy, "a", taskManagers=nodes(40))
        problem_of(post_heartbeat(greedy, "b", taskManagers=nodes(40)), 413)
        heartbeat(greedy, "a", taskManagers={})
        heartbeat(greedy, "b", taskManagers=nodes(40))
        problem_of(post_heartbeat(greedy, "a", taskManagers=nodes(40)), 413)
        greedy.delete("/listeners/b")
        heartbeat(greedy, "a", taskManagers=nodes(40))

    def test_so_does_the_end_of_a_lease(self, service: SecuredInProcess, client_of: Client) -> None:
        greedy = client_of("greedy")
        register(greedy, "short", leaseSeconds=10)
        heartbeat(greedy, "short", taskManagers=nodes(40))
        try_register(greedy, "a")
        service.clock.advance(10)
        wait_until_lapsed(greedy, "short")
        wait_until(lambda: post_heartbeat(greedy, "a", taskManagers=nodes(40)).status_code == 200)

    def test_evidence_that_is_kept_from_earlier_reports_counts(self, client_of: Client) -> None:
        """A map of evidence does not remove that of the map before: it expires."""
        greedy = client_of("greedy")
        try_register(greedy, "a")
        heartbeat(greedy, "a", evidence=findings(0, 100))
        problem_of(post_heartbeat(greedy, "a", evidence=findings(100, 100)), 413)
        heartbeat(greedy, "a", evidence=findings(0, 100))


def test_a_response_to_a_push_with_too_much_acknowledges_it_without_its_report(
    service: SecuredInProcess, client_of: Client
) -> None:
    report = b'{"taskManagers":{%s}}' % b",".join(b'"tm-%d":"node-%d"' % (it, it) for it in range(200))
    greedy = client_of("greedy")
    with (
        receiving(responds(http(200, report, "Content-Type: application/json"))) as receiver,
        service.client(service.admin) as admin,
    ):
        receiver.register(greedy, "jm")
        revision = put(admin, "a")
        wait_until(lambda: get_listener(greedy, "jm")["ackedRevision"] >= revision)
        assert "BLOCKLIST_MAX_REPORT_BYTES_PER_TOKEN" in get_listener(greedy, "jm")["lastError"]
        assert len(receiver.requests) < 5


def test_without_authentication_there_is_no_limit(tmp_path: Path, databases: Databases) -> None:
    """Everybody is one anonymous principal, who may do anything."""
    settings = {**databases.settings(tmp_path), **LIMITS}
    with in_process(**settings) as service, service.client() as client:
        for number in range(5):
            assert try_register(client, f"jm-{number}").status_code == 201
        heartbeat(client, "jm-0", taskManagers=nodes(200))


@pytest.mark.databases("postgresql")
@pytest.mark.xdist_group("replicas")
def test_replicas_count_together(tmp_path: Path, databases: Databases) -> None:
    admin_file = tmp_path / "admin.token"
    settings = {"auth": "tokens", "admin_token_file": str(admin_file), **LIMITS, **databases.settings(tmp_path)}
    with running_replicas(tmp_path, 2, **settings) as replicas:
        one, two = replicas.clients
        one.headers["Authorization"] = f"Bearer {admin_file.read_text().strip()}"
        made = one.post("/tokens", json={"name": "greedy", "role": "listener"}).raise_for_status().json()
        for client in replicas.clients:
            client.headers["Authorization"] = f"Bearer {made['token']}"
        for number, client in enumerate((one, two, one)):
            assert try_register(client, f"jm-{number}").status_code == 201
        problem_of(try_register(two, "jm-3"), 429)
        problem_of(try_register(one, "jm-3"), 429)
        heartbeat(one, "jm-0", taskManagers=nodes(40))
        wait_until(lambda: two.get(f"/taskmanagers/{next(iter(nodes(1)))}").status_code == 200)
        problem_of(post_heartbeat(two, "jm-1", taskManagers=nodes(40)), 413)
        heartbeat(two, "jm-1")


class TestMinimum:
    """A listener may forbid blocks of its own nodes only."""

    def block(self, service: SecuredInProcess, node: str) -> int:
        operator = service.client(service.make_token(Role.OPERATOR, "ops")["token"])
        with operator as client:
            return client.put(f"/blocklist/nodes/{node}", json=block()).status_code

    def test_nodes_that_only_one_token_states_are_not_kept_free_for_it(
        self, service: SecuredInProcess, client_of: Client
    ) -> None:
        attacker = client_of("attacker")
        register(attacker, "jm", minNodes=2)
        heartbeat(attacker, "jm", nodes=["a", "b", "c"])
        assert get_listener(attacker, "jm")["usableNodes"] == 0
        assert self.block(service, "a") == 201

    def test_a_job_keeps_nodes_free_on_which_it_runs(self, service: SecuredInProcess, client_of: Client) -> None:
        """Not those that others name as well: it could keep the whole cluster from being blocked."""
        job, other = client_of("job"), client_of("other")
        register(job, "jm", minNodes=1)
        heartbeat(job, "jm", nodes=["a.example.com", "b"], taskManagers={"tm": "a"})
        register(other, "other")
        heartbeat(other, "other", nodes=["B"])
        assert get_listener(job, "jm")["usableNodes"] == 1
        assert (self.block(service, "b.example.com"), self.block(service, "a")) == (201, 409)
