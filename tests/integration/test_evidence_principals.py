"""Evidence with authentication: everything that one token registers is one application, and cannot invent nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from blocklist.model.claims import Role
from tests.integration.bodies import block, current_list
from tests.integration.databases import Databases
from tests.integration.listeners import (
    JM,
    RM,
    get_listener,
    heartbeat,
    post_heartbeat,
    put,
    register,
    registration_body,
)
from tests.integration.problems import problem_of
from tests.integration.process import wait_until
from tests.integration.secured import SecuredInProcess, SecuredService, secured_in_process, secured_service
from tests.integration.test_evidence import EXCLUDED, evidence, metric, report_evidence, summary
from tests.integration.test_sessions import csrf_of, log_in

Client = Callable[[str], httpx.Client]
CLUSTER: Final = [f"node-{number:03}" for number in range(40)]
PROBE: Final = "aaa-probe"
"""A node that is evaluated before all others, as they are evaluated by id."""


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("principals")


@pytest.fixture
def service(folder: Path, databases: Databases) -> Iterator[SecuredInProcess]:
    with secured_in_process(folder, databases) as service:
        yield service


@pytest.fixture
def client_of(service: SecuredInProcess) -> Iterator[Client]:
    with clients_of_listeners(service) as client_of:
        yield client_of


MANAGERS: Final = ("yarn", "manager")


@contextmanager
def clients_of_listeners(service: SecuredInProcess | SecuredService) -> Iterator[Client]:
    """A client with the token of a listener, by the token's name; that of a manager for the name of one."""
    clients: dict[str, httpx.Client] = {}

    def client_of(name: str) -> httpx.Client:
        if name not in clients:
            role = Role.MANAGER if name in MANAGERS else Role.LISTENER
            token = service.make_token(role, name)["token"]
            clients[name] = stack.enter_context(service.client(token))
        return clients[name]

    with ExitStack() as stack:
        yield client_of


def application(client: httpx.Client, name: str, nodes: Iterable[str], role: str = JM) -> None:
    """A listener with a TaskManager on each of these nodes."""
    register(client, name, role=role)
    heartbeat(client, name, taskManagers={f"{name}:{node}": node for node in nodes})


def wait_until_evaluated(client_of: Client, service: SecuredInProcess) -> None:
    """Return when all earlier reports have been evaluated: the service has blocked another node since."""
    for name in ("probe-1", "probe-2"):
        register(client_of(name), name)
        report_evidence(client_of(name), name, PROBE)
    service.service.until(lambda: client_of("probe-1").get(f"/blocklist/nodes/{PROBE}").status_code == 200)


def blocked_nodes(client: httpx.Client) -> list[str]:
    return sorted(current_list(client)[1])


class TestOneToken:
    """All registrations of one token are one application."""

    @pytest.mark.parametrize("claimed", ["invented-{}", "n{}"], ids=["invented nodes", "real nodes"])
    def test_one_token_cannot_block_the_cluster(
        self, client_of: Client, claimed: str, service: SecuredInProcess
    ) -> None:
        nodes = [f"n{number}" for number in range(1000)]
        application(client_of("yarn"), "yarn", [], role=RM)
        heartbeat(client_of("yarn"), "yarn", nodes=nodes)
        attacker = client_of("attacker")
        refused = attacker.put("/listeners/invented-manager", json=registration_body(role=RM))
        assert "requires the role manager; yours is listener" in problem_of(refused, 403)["detail"]
        application(attacker, "inventor", [])
        heartbeat(attacker, "inventor", nodes=[f"invented-{number}" for number in range(10_000)])
        for number in range(4):
            application(attacker, f"job-{number}", [claimed.format(node) for node in range(3_000)])
        for number in range(4):
            report_evidence(attacker, f"job-{number}", *nodes[number % 2 * 500 :][:500])
        wait_until_evaluated(client_of, service)
        assert blocked_nodes(attacker) == [PROBE]

    def test_two_tokens_of_one_name_are_one_application(self, service: SecuredInProcess, client_of: Client) -> None:
        again = service.make_token(Role.LISTENER, "team")["token"]
        with service.client(again) as second:
            for client, name in ((client_of("team"), "app-1"), (second, "app-2")):
                application(client, name, CLUSTER)
                report_evidence(client, name, CLUSTER[0])
        wait_until_evaluated(client_of, service)
        assert blocked_nodes(client_of("team")) == [PROBE]


class TestOtherTokens:
    """What a listener reports is its own token's, and nobody else's."""

    def test_a_heartbeat_with_another_token_is_refused(self, client_of: Client) -> None:
        application(client_of("honest"), "job", CLUSTER)
        forged = post_heartbeat(client_of("attacker"), "job", evidence={CLUSTER[0]: EXCLUDED}, ackedRevision=0)
        assert problem_of(forged, 404)["detail"] == "Listener job was not registered with this token: register again."
        assert (evidence(client_of("honest")), heartbeat(client_of("honest"), "job")["revision"]) == ([], 0)

    def test_the_secret_is_not_given_to_another_token(self, client_of: Client) -> None:
        application(client_of("honest"), "job", [])
        problem_of(client_of("attacker").post("/listeners/job/secret", json={"sessionId": "s1"}), 404)
        assert client_of("honest").post("/listeners/job/secret", json={"sessionId": "s1"}).status_code == 200

    def test_another_token_cannot_take_the_place_of_a_job(self, client_of: Client, service: SecuredInProcess) -> None:
        """Not even when its lease has ended: its tasks may run on, and the other one would say that none do."""
        application(client_of("honest"), "job", CLUSTER)
        refused = client_of("attacker").put("/listeners/job", json=registration_body("s2"))
        assert "job is registered with another token" in problem_of(refused, 409)["detail"]
        assert heartbeat(client_of("honest"), "job")["revision"] == 0
        service.clock.advance(120)
        # Connections that were idle for so long are closed.
        with service.client(service.make_token(Role.LISTENER, "another")["token"]) as another:
            refused = another.put("/listeners/job", json=registration_body("s2"))
        assert "job is registered with another token" in problem_of(refused, 409)["detail"]

    def test_an_operator_may_and_it_starts_anew(self, client_of: Client, service: SecuredInProcess) -> None:
        application(client_of("honest"), "job", CLUSTER)
        report_evidence(client_of("honest"), "job", CLUSTER[0])
        assert summary(client_of("honest")) == [(CLUSTER[0], "job", True)]
        with service.client(service.tokens[Role.OPERATOR]) as operator:
            assert operator.put("/listeners/job", json=registration_body()).status_code == 200
        assert (summary(client_of("honest")), get_listener(client_of("honest"), "job")["usableNodes"]) == ([], None)
        problem_of(post_heartbeat(client_of("honest"), "job"), 404)

    def test_a_token_may_register_the_ids_that_it_names(self, service: SecuredInProcess) -> None:
        text = service.make_token(Role.LISTENER, "nightly", listeners=["etl-*", "report"])["token"]
        with service.client(text) as client:
            for name, status in {"etl-7": 201, "report": 201, "report-2": 403, "other": 403}.items():
                assert client.put(f"/listeners/{name}", json=registration_body()).status_code == status
            refused = client.put("/listeners/other", json=registration_body())
        assert problem_of(refused, 403)["detail"].startswith("Your token may register etl-*, report only, not other: ")

    def test_a_token_that_travels_with_jobs_can_be_such_a_job_and_nothing_else(self, service: SecuredInProcess) -> None:
        """As on YARN, where every container of a job has its token."""
        text = service.make_token(Role.LISTENER, "team-a", listeners=["application_*"])["token"]
        other = service.make_token(Role.LISTENER, "team-b", listeners=["application_*"])["token"]
        with service.client(text) as client, service.client(other) as others:
            others.put("/listeners/application_1_1", json=registration_body()).raise_for_status()
            refused = [
                client.put("/blocklist/nodes/n1", json=block()),
                client.delete("/blocklist/nodes/n1"),
                client.put("/listeners/modes", json={"pattern": "*", "mode": "off"}),
                client.post("/tokens", json={"name": "more", "role": "listener"}),
                client.put("/listeners/application_1_2", json=registration_body() | {"role": RM}),
                client.put("/listeners/etl", json=registration_body()),
            ]
            assert [answer.status_code for answer in refused] == [403] * len(refused)
            taken = client.put("/listeners/application_1_1", json=registration_body("s2"))
            assert "is registered with another token" in problem_of(taken, 409)["detail"]
            problem_of(post_heartbeat(client, "application_1_1"), 404)
            problem_of(client.delete("/listeners/application_1_1"), 404)

    @pytest.mark.parametrize(
        ("restriction", "sentence"),
        [
            ({"access": Role.LISTENER}, "requires the role manager"),
            ({"listeners": ["other-*"]}, "may register other-*"),
        ],
    )
    def test_a_token_of_the_managers_name_with_less_rights_cannot_act_for_it(
        self, client_of: Client, service: SecuredInProcess, restriction: dict[str, Any], sentence: str
    ) -> None:
        """Tokens of one name are one principal, also where an admin has given them other rights."""
        application(client_of("manager"), "rm", [], role=RM)
        text = service.make_token(**{"access": Role.MANAGER, "name": "manager", **restriction})["token"]
        with service.client(text) as less:
            answers = [
                post_heartbeat(less, "rm", nodes=["n1"]),
                less.post("/listeners/rm/secret", json={"sessionId": "s1"}),
                less.put("/listeners/rm", json=registration_body()),
                less.delete("/listeners/rm"),
            ]
        for answer in answers:
            assert sentence in problem_of(answer, 403)["detail"]
        assert get_listener(client_of("manager"), "rm")["role"] == RM

    def test_a_job_cannot_rename_what_a_manager_describes(self, client_of: Client, service: SecuredInProcess) -> None:
        """Whatever it says to run there: a block of another machine would be one of this."""
        application(client_of("manager"), "rm", [], role=RM)
        heartbeat(client_of("manager"), "rm", nodes=[{"id": "k1", "addresses": ["10.0.0.1"]}, "idle-3"])
        register(client_of("attacker"), "job")
        renamed = {"id": "k1", "names": ["idle-3", "idle-4"], "addresses": ["10.0.0.3"]}
        heartbeat(client_of("attacker"), "job", nodes=[renamed], taskManagers={"tm": "k1"})
        with service.client(service.admin) as admin:
            put(admin, "k1")
            assert admin.get("/blocklist/nodes/10.0.0.1").status_code == 200
            for name in ("idle-3", "idle-4", "10.0.0.3"):
                assert admin.get(f"/blocklist/nodes/{name}").status_code == 404

    def test_a_successor_of_the_same_name_continues_a_registration(
        self, service: SecuredInProcess, client_of: Client
    ) -> None:
        application(client_of("job"), "job", CLUSTER)
        report_evidence(client_of("job"), "job", CLUSTER[0])
        with service.client(service.make_token(Role.LISTENER, "job")["token"]) as successor:
            heartbeat(successor, "job")
            register(successor, "job")
            assert summary(successor) == [(CLUSTER[0], "job", True)]

    def test_a_session_of_the_page_cannot_register(self, service: SecuredInProcess) -> None:
        with service.client() as browser:
            browser.headers["Origin"] = service.url
            assert log_in(browser, service.tokens[Role.OPERATOR]).status_code == 303
            headers = {"X-CSRF-Token": csrf_of(browser)}
            answer = browser.put("/listeners/job", json=registration_body(), headers=headers)
            assert "a session of the page cannot register" in problem_of(answer, 403)["detail"]


class TestLimit:
    """Evidence blocks at most a tenth of the nodes that two tokens name."""

    def test_evidence_blocks_at_most_a_tenth_of_the_confirmed_nodes(
        self, client_of: Client, service: SecuredInProcess
    ) -> None:
        for name in ("x", "y"):
            application(client_of(name), name, CLUSTER)
            # What one token alone names is not confirmed.
            application(client_of(name), f"{name}-2", [f"{name}-{number}" for number in range(1000)])
        for name in ("x", "y"):
            report_evidence(client_of(name), name, *CLUSTER[:20])
        service.service.until(lambda: blocked_nodes(client_of("x")) == CLUSTER[:4])
        line = 'blocklist_refused_by_limit_total{source="evidence"}'
        service.service.until(lambda: metric(client_of("x"), line) == 16)
        assert blocked_nodes(client_of("x")) == CLUSTER[:4]


@pytest.mark.databases("postgresql")
def test_replicas_agree_on_the_principals(folder: Path, databases: Databases) -> None:
    """What a replica receives counts for the token that registered the listener at another one."""
    with ExitStack() as stack:
        first, second = (stack.enter_context(secured_service(folder, databases)) for _ in range(2))
        client_of = stack.enter_context(clients_of_listeners(first))

        def at_second(name: str) -> httpx.Client:
            client = stack.enter_context(second.process.client())
            client.headers.update(client_of(name).headers)
            return client

        clients = [client_of("team"), at_second("team")]
        for client, name in zip(clients, ("app-1", "app-2"), strict=True):
            application(client, name, CLUSTER)
            report_evidence(client, name, CLUSTER[0])
        for client in clients:
            wait_until(lambda client=client: [entry["believed"] for entry in evidence(client)] == [True, True])  # type: ignore[misc]
        problem_of(post_heartbeat(at_second("other"), "app-1"), 404)
        application(client_of("other"), "app-3", CLUSTER)
        report_evidence(client_of("other"), "app-3", CLUSTER[0])
        for client in clients:
            wait_until(lambda client=client: blocked_nodes(client) == [CLUSTER[0]])  # type: ignore[misc]
            wait_until(lambda client=client: [entry["believed"] for entry in evidence(client)] == [True] * 3)  # type: ignore[misc]


class TestTaskManagers:
    """A principal cannot take a TaskManager from the listener of another one by reporting it, too."""

    @pytest.fixture
    def reported(self, client_of: Client) -> None:
        for name, node in (("etl", "n1"), ("thief", "n2")):
            register(client_of(name), name)
            heartbeat(client_of(name), name, taskManagers={"tm": node}, runningTasks={"tm": 3})

    @pytest.mark.usefixtures("reported")
    def test_it_stays_where_its_own_listener_reports_it(self, client_of: Client, service: SecuredInProcess) -> None:
        running = {"id": "tm", "listener": "etl", "runningTasks": 3}
        assert client_of("etl").get("/nodes/n1").json()["taskManagers"] == [running]

    @pytest.mark.usefixtures("reported")
    def test_two_nodes_of_one_task_manager_are_ambiguous(self, client_of: Client) -> None:
        problem = problem_of(client_of("etl").get("/taskmanagers/tm"), 409)
        assert "n1, n2" in problem["detail"]

    @pytest.mark.usefixtures("reported")
    def test_it_is_known_again_when_the_other_listener_ends(self, client_of: Client) -> None:
        assert client_of("thief").delete("/listeners/thief").status_code == 204
        assert client_of("etl").get("/taskmanagers/tm").json() == {"nodeId": "n1", "blocked": False}

    @pytest.mark.usefixtures("reported")
    def test_the_newer_report_wins_with_one_token(self, client_of: Client) -> None:
        register(client_of("etl"), "etl-2")
        heartbeat(client_of("etl"), "etl-2", taskManagers={"tm": "n3"})
        client_of("thief").delete("/listeners/thief")
        assert client_of("etl").get("/taskmanagers/tm").json()["nodeId"] == "n3"
