"""Limits of settings and minimums of listeners, against a running service."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import httpx
import httpx2
import pytest
from fastapi.testclient import TestClient

from app.engine.background import RETRY_MS
from app.main import create_app
from app.settings import Settings
from blocklist import BlocklistClient
from blocklist.client.session import ListenerSession
from blocklist.model.claims import Role
from blocklist.model.errors import LimitError
from blocklist.model.evidence import BLOCK_MS
from blocklist.model.listener import ListenerRole, Registration, Report
from tests.integration.bodies import all_changes, block, current_list, later, revision_of
from tests.integration.conftest import Start, StartInProcess
from tests.integration.databases import ON_BOTH, Databases
from tests.integration.in_process import InProcessService, ManualClock
from tests.integration.listeners import (
    JM,
    RM,
    get_listener,
    heartbeat,
    put,
    register,
    unblock,
    wait_until_lapsed,
)
from tests.integration.problems import problem_of
from tests.integration.process import ServiceProcess, url_of, wait_until
from tests.integration.raw_http import request, send_request
from tests.integration.receiver import Receiver
from tests.integration.secured import secured_in_process

LIMIT: Final = "urn:blocklist:problem:limit"
DAY: Final = 86_400


def limit_detail(answer: httpx.Response) -> str:
    """The message of the limit that rejected it."""
    problem = problem_of(answer, 409)
    assert problem["type"] == LIMIT
    assert "blockedNode" not in problem
    return str(problem["detail"])


def put_block(client: httpx.Client, node_id: str, **fields: object) -> httpx.Response:
    params = {name: str(fields.pop(name)) for name in ("force",) if name in fields}
    return client.put(f"/blocklist/nodes/{node_id}", json=block(**fields), params=params)


def put_blocks(client: httpx.Client, *ids: str, **fields: object) -> httpx.Response:
    return client.put("/blocklist/nodes", json={node_id: block(**fields) for node_id in ids})


def rejections(client: httpx.Client | httpx2.Client, source: str) -> float:
    line = f'blocklist_refused_by_limit_total{{source="{source}"}} '
    return next(
        float(found.removeprefix(line)) for found in client.get("/metrics").text.splitlines() if found.startswith(line)
    )


class TestMaxBlocked:
    """BLOCKLIST_MAX_BLOCKED."""

    @pytest.fixture
    def client(self, start_in_process: StartInProcess) -> httpx.Client:
        return start_in_process(max_blocked="3").client()

    def test_one_node_too_many_is_rejected(self, client: httpx.Client) -> None:
        for node_id in "abc":
            put(client, node_id)
        before = current_list(client)
        answer = put_block(client, "d")
        assert limit_detail(answer) == (
            "This would block 4 nodes; at most 3 may be blocked at once (BLOCKLIST_MAX_BLOCKED): no more is possible."
        )
        assert (current_list(client), revision_of(answer)) == (before, 3)
        assert rejections(client, "request") == 1

    @ON_BOTH
    def test_64_concurrent_requests_cannot_exceed_it(self, start: Start) -> None:
        """On the fast path and on the ordinary route."""
        with start(max_blocked="10").client() as client, ThreadPoolExecutor(64) as pool:
            paths = {
                f"n-{number}": f"/blocklist/nodes/n-{number}{'?dryRun=false' * (number % 2)}" for number in range(64)
            }
            answers = list(pool.map(lambda path: client.put(path, json=block()), paths.values()))
            assert sorted(answer.status_code for answer in answers) == [201] * 10 + [409] * 54
            passed = [node_id for node_id, answer in zip(paths, answers, strict=True) if answer.status_code == 201]
            assert sorted(current_list(client)[1]) == sorted(passed)
            assert len(all_changes(client)) == 10
            assert rejections(client, "request") == 54

    @ON_BOTH
    def test_concurrent_bulk_and_single_requests_cannot_exceed_it(self, start: Start) -> None:
        with start(max_blocked="10").client() as client, ThreadPoolExecutor(16) as pool:

            def turn(number: int) -> int:
                if number % 3 == 0:
                    return put_blocks(client, *(f"m-{number}-{n}" for n in range(4))).status_code
                status = put_block(client, f"n-{number}").status_code
                if status == 201 and number % 3 == 1:
                    assert client.delete(f"/blocklist/nodes/n-{number}").status_code == 200
                return status

            statuses = list(pool.map(turn, range(90)))
            assert set(statuses) <= {200, 201, 409}
            count = 0
            for change in all_changes(client):
                count += 1 if change["type"] == "blocked" else -1
                assert count <= 10

    def test_the_fast_path_has_the_same_response(self, start_in_process: StartInProcess) -> None:
        process = start_in_process(max_blocked="1")
        body = json.dumps(block()).encode()
        assert send_request(process.port, request("/blocklist/nodes/a", method="PUT", body=body)).status == 201
        plain = send_request(process.port, request("/blocklist/nodes/b", method="PUT", body=body))
        other = send_request(process.port, request("/blocklist/nodes/b?dryRun=false", method="PUT", body=body))
        assert (plain.status, plain.body) == (409, other.body)

    def test_the_client_raises_a_limit_error(self, start_in_process: StartInProcess) -> None:
        with BlocklistClient(start_in_process(max_blocked="1").url) as client:
            client.block("a", "disk")
            with pytest.raises(LimitError, match="no more is possible"):
                client.block("b", "disk")


def test_a_share_of_the_nodes_of_live_listeners(start_in_process: StartInProcess) -> None:
    service = start_in_process(max_blocked_share="0.5")
    with service.client() as client:
        put(client, "free-for-all")
        register(client, "rm", role=RM, leaseSeconds=5)
        register(client, "jm", role=JM)
        heartbeat(client, "rm", nodes=["a", "b", "c.example.com"])
        heartbeat(client, "jm", nodes=["A", "d"])
        put(client, "a")
        put(client, "elsewhere")
        put(client, "c")
        assert limit_detail(put_block(client, "B")) == (
            "This would block 3 of the 4 known nodes; at most 2 may be blocked at once"
            " (BLOCKLIST_MAX_BLOCKED_SHARE is 0.5): no more is possible."
        )
        # When the lease has expired, A and d are known, of which one is blocked.
        service.until(lambda: put_block(client, "b").status_code == 201)
        assert "2 of the 2 known nodes" in limit_detail(put_block(client, "d"))


def test_a_machine_that_listeners_know_by_several_names_is_one_of_the_known_nodes(
    start_in_process: StartInProcess,
) -> None:
    with start_in_process(max_blocked_share="0.3").client() as client:
        register(client, "jm", role=JM)
        heartbeat(client, "jm", nodes=["a", "b", "10.0.0.1", "10.0.0.2", "10.0.0.3"])
        register(client, "rm", role=RM)
        heartbeat(client, "rm", nodes=[{"id": "a", "addresses": ["10.0.0.1"]}, {"id": "b", "addresses": ["10.0.0.2"]}])
        put(client, "10.0.0.1")
        assert "2 of the 3 known nodes; at most 1 may" in limit_detail(put_block(client, "b"))
        # Without the manager, an address and a name are two machines.
        client.delete("/listeners/rm").raise_for_status()
        put(client, "b")
        assert "3 of the 5 known nodes; at most 2 may" in limit_detail(put_block(client, "a"))


class TestAuthors:
    """With tokens: name and role of the token count."""

    @pytest.fixture
    def process(self, start: Start, tmp_path: Path) -> ServiceProcess:
        self.file = tmp_path / "admin.token"
        return start(
            auth="tokens",
            admin_token_file=str(self.file),
            max_blocked_by_author="2",
            longest_block_operator="1h",
        )

    def client(self, process: ServiceProcess, token: str) -> httpx.Client:
        client = process.client()
        client.headers["Authorization"] = f"Bearer {token}"
        return client

    def operator(self, process: ServiceProcess, name: str) -> httpx.Client:
        with self.client(process, self.file.read_text().strip()) as admin:
            made = admin.post("/tokens", json={"name": name, "role": "operator"})
            assert made.status_code == 201, made.text
        return self.client(process, made.json()["token"])

    @ON_BOTH
    def test_each_author_has_a_maximum_even_after_a_restart(self, process: ServiceProcess) -> None:
        soon = later(1800)
        with self.operator(process, "ops") as ops, self.operator(process, "night") as night:
            put(ops, "a", endTimestamp=soon)
            put(ops, "b", endTimestamp=soon)
            sentence = "This would be 3 nodes blocked by ops; one author may block at most 2"
            assert sentence in limit_detail(put_block(ops, "c", endTimestamp=soon))
            put(night, "c", endTimestamp=soon)
            process.kill()
            process.start()
            assert sentence in limit_detail(put_block(ops, "d", endTimestamp=soon))
            put(night, "d", endTimestamp=soon)
            unblock(night, "a")
            put(ops, "e", endTimestamp=soon)

    def test_an_operator_cannot_exceed_the_longest_block_nor_force(self, process: ServiceProcess) -> None:
        with self.operator(process, "ops") as ops:
            sentence = limit_detail(put_block(ops, "a"))
            assert sentence.startswith("An operator may block for at most 1h: end it by ")
            assert sentence.endswith(" at the latest, or ask an admin.")
            problem = problem_of(put_block(ops, "a", force="a fire"), 403)
            assert "admin" in problem["detail"]
            params = {"force": "a fire", "dryRun": "true"}
            problem_of(ops.put("/blocklist/nodes", json={"a": block()}, params=params), 403)
            assert put_block(ops, "a", endTimestamp=later(1800)).status_code == 201

    def test_an_admin_may_force_and_the_log_records_the_reason(self, process: ServiceProcess) -> None:
        with self.client(process, self.file.read_text().strip()) as admin:
            for node_id in "ab":
                put(admin, node_id)
            limit_detail(put_block(admin, "c"))
            assert put_block(admin, "c", force="a fire, in row 3").status_code == 201
            made = admin.put("/blocklist/nodes", json={"d": block()}, params={"force": "the same"})
            assert made.status_code == 200
            changes = all_changes(admin)
            assert [change.get("forced") for change in changes] == [None, None, "a fire, in row 3", "the same"]
            assert {change["createdBy"] for change in changes} == {"admin"}


@pytest.mark.parametrize("reason", ["", "x" * 1025, "two\nlines", "\x00", "\x7f"])
def test_an_invalid_reason_is_rejected(client: httpx.Client, node: str, reason: str) -> None:
    problem_of(client.put(node, json=block(), params={"force": reason}), 400)
    assert client.get(node).status_code == 404


def test_a_reason_may_be_long_and_in_any_script(client: httpx.Client, node_id: str) -> None:
    reason = "ö" * 1024
    assert put_block(client, node_id, force=reason).status_code == 201
    assert [change["forced"] for change in all_changes(client, node=node_id)] == [reason]


class TestMinimum:
    """The minimum number of nodes in a registration."""

    def test_a_block_below_the_minimum_is_rejected(self, listener_client: httpx.Client) -> None:
        register(listener_client, "jm", minNodes=2)
        heartbeat(listener_client, "jm", nodes=["a", "b.example.com", "c"])
        put(listener_client, "a")
        assert limit_detail(put_block(listener_client, "B")) == (
            "Listener jm would be left with 1 usable node and needs 2: no more is possible among its nodes."
        )
        put(listener_client, "elsewhere")
        assert put_block(listener_client, "b", force="a fire").status_code == 201
        put(listener_client, "b", action="MARK_BLOCKED_AND_EVACUATE_TASKS")
        limit_detail(put_block(listener_client, "c"))

    def test_without_nodes_those_of_its_task_managers_count(self, listener_client: httpx.Client) -> None:
        register(listener_client, "jm", minNodes=1)
        put(listener_client, "a")
        heartbeat(listener_client, "jm", taskManagers={"t-1": "a", "t-2": "b", "t-3": "b"})
        assert (
            get_listener(listener_client, "jm")["minNodes"],
            get_listener(listener_client, "jm")["usableNodes"],
        ) == (1, 1)
        limit_detail(put_block(listener_client, "b"))
        heartbeat(listener_client, "jm", taskManagers={"t-1": "a", "t-2": "b", "t-3": "c"})
        put(listener_client, "b")

    def test_removed_lapsed_and_undemanding_listeners_have_no_minimum(self, timed: InProcessService) -> None:
        client = timed.client()
        for name in ("jm", "rm"):
            register(client, name, minNodes=1, leaseSeconds=1)
            heartbeat(client, name, nodes=[name])
            limit_detail(put_block(client, name))
        client.delete("/listeners/jm")
        put(client, "jm")
        wait_until_lapsed(client, "rm", until=timed.until)
        put(client, "rm")
        register(client, "jm", minNodes=1)
        heartbeat(client, "jm", nodes=["x"])
        register(client, "jm")
        put(client, "x")

    def test_both_numbers_are_shown(self, listener_client: httpx.Client) -> None:
        body = register(listener_client, "jm")
        assert (body["minNodes"], body["usableNodes"]) == (0, None)
        body = register(listener_client, "jm", minNodes=1)
        assert (body["minNodes"], body["usableNodes"]) == (1, None)
        heartbeat(listener_client, "jm", nodes=[])
        assert get_listener(listener_client, "jm")["usableNodes"] == 0
        heartbeat(listener_client, "jm", nodes=["a", "A", "b"])
        assert get_listener(listener_client, "jm")["usableNodes"] == 2
        put(listener_client, "a.example.com")
        (listed,) = listener_client.get("/listeners").json()["listeners"]
        assert (listed["minNodes"], listed["usableNodes"]) == (1, 1)
        heartbeat(listener_client, "jm")
        assert get_listener(listener_client, "jm")["usableNodes"] == 1
        assert register(listener_client, "jm", "s2", minNodes=1)["usableNodes"] is None

    def test_the_answer_to_a_push_may_carry_nodes(self, listener_client: httpx.Client, receiver: Receiver) -> None:
        receiver.report = {"nodes": ["a", "b"]}
        receiver.register(listener_client, "jm", minNodes=2)
        put(listener_client, "elsewhere")
        wait_until(lambda: get_listener(listener_client, "jm")["usableNodes"] == 2)
        limit_detail(put_block(listener_client, "a"))

    def test_10_000_nodes_are_accepted(self, listener_client: httpx.Client) -> None:
        register(listener_client, "jm", minNodes=9_999)
        heartbeat(listener_client, "jm", nodes=[f"n-{number}.example.com" for number in range(10_000)])
        put(listener_client, "n-77")
        limit_detail(put_block(listener_client, "n-78"))

    @ON_BOTH
    def test_a_restart_keeps_the_minimum_and_nodes_are_reported_again(self, fresh: ServiceProcess) -> None:
        with fresh.client() as client:
            register(client, "jm", minNodes=2)
            heartbeat(client, "jm", nodes=["a", "b"])
            fresh.kill()
            fresh.start()
            assert (get_listener(client, "jm")["minNodes"], get_listener(client, "jm")["usableNodes"]) == (2, None)
            heartbeat(client, "jm", nodes=["a", "b"])
            limit_detail(put_block(client, "a"))

    def test_a_listener_session_sends_minimum_and_nodes(
        self, listener_client: httpx.Client, listener_service: ServiceProcess
    ) -> None:
        membership = ListenerSession(
            listener_service.url, Registration(id="jm", role=ListenerRole.JOB_MASTER, session="s1", min_nodes=1)
        )
        try:
            membership.report(Report(nodes=("a",)))
            wait_until(lambda: {entry["id"]: entry for entry in listener_client.get("/listeners").json()["listeners"]}
                       .get("jm", {}).get("usableNodes") == 1)  # fmt: skip
            limit_detail(put_block(listener_client, "a"))
        finally:
            membership.close()


class TestEvidence:
    """Limits apply to blocks by evidence, too."""

    FOUND: Final[dict[str, Any]] = {"kind": "excluded", "reason": "Spark excluded the host."}

    def report(self, client: Any, *nodes: str) -> None:
        """Two applications, on nine nodes each."""
        for name in ("x", "y"):
            body = {"role": JM, "sessionId": "s1", "leaseSeconds": 3600}
            assert client.put(f"/listeners/{name}", json=body).status_code in {200, 201}
            task_managers = {f"{name}:{n}": f"w-{n}" for n in range(9)}
            body = {"sessionId": "s1", "taskManagers": task_managers, "evidence": dict.fromkeys(nodes, self.FOUND)}
            assert client.post(f"/listeners/{name}/heartbeat", json=body).status_code == 200

    def test_a_block_rejected_by_a_limit_is_logged_and_counted(self, start: Start) -> None:
        process = start(max_blocked="1")
        with process.client() as client:
            put(client, "a")
            self.report(client, "w-1")
            wait_until(lambda: rejections(client, "evidence") == 1)
            assert list(current_list(client)[1]) == ["a"]
            assert rejections(client, "request") == 0
            (line,) = [line for line in process.log().splitlines() if "w-1" in line]
            assert "node not blocked despite evidence: a limit forbids it" in line
            assert "no more is possible" in line

    def test_it_is_retried_after_a_pause(self, tmp_path: Path, migrated: Path) -> None:
        database, clock = tmp_path / "blocklist.db", ManualClock()
        shutil.copy(migrated, database)
        settings = Settings(database_url=url_of(database), max_blocked=2, evidence_max_share=1)
        with TestClient(create_app(settings, clock=clock), base_url="http://localhost") as client:
            assert client.put("/blocklist/nodes/a", json=block()).status_code == 201
            self.report(client, "w-1", "w-2")
            wait_until(lambda: rejections(client, "evidence") == 1)
            assert list(current_list(client)[1]) == ["a", "w-1"]
            assert client.delete("/blocklist/nodes/w-1").status_code == 200
            clock.now += 1
            self.report(client, "w-2", "w-3")
            # There is room for one, and the one that was refused waits.
            wait_until(lambda: list(current_list(client)[1]) == ["a", "w-3"])
            assert client.delete("/blocklist/nodes/a").status_code == 200
            clock.now += RETRY_MS
            wait_until(lambda: list(current_list(client)[1]) == ["w-2", "w-3"])
            assert rejections(client, "evidence") == 1

    def test_the_limit_on_evidence_allows_renewals(self, tmp_path: Path, migrated: Path) -> None:
        database, clock = tmp_path / "blocklist.db", ManualClock()
        shutil.copy(migrated, database)
        app = create_app(Settings(database_url=url_of(database)), clock=clock)
        with TestClient(app, base_url="http://localhost") as client:
            self.report(client, "w-2", "w-3")
            wait_until(lambda: list(current_list(client)[1]) == ["w-2", "w-3"])
            clock.now += BLOCK_MS // 2
            self.report(client, "w-1", "w-2", "w-3")
            end = str(clock.now + BLOCK_MS)
            wait_until(lambda: {node["endTimestamp"] for node in current_list(client)[1].values()} == {end})
            assert list(current_list(client)[1]) == ["w-2", "w-3"]
            assert client.put("/blocklist/nodes/w-4", json=block()).status_code == 201, "the limit is for evidence only"


def test_with_authentication_half_of_the_nodes_and_thirty_days_are_the_limit(
    tmp_path: Path, databases: Databases
) -> None:
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("id\nw1\nw2\nw3\n")
    with (
        secured_in_process(tmp_path, databases, nodes_file=str(nodes)) as secured,
        secured.client(secured.tokens[Role.OPERATOR]) as operator,
    ):
        too_long = put_block(operator, "w1", endTimestamp=later(300 * 86_400))
        assert limit_detail(too_long).startswith("An operator may block for at most 30d: ")
        assert put_block(operator, "w1", endTimestamp=later(29 * 86_400)).status_code == 201
        assert put_block(operator, "w2").status_code == 201, "for ever may be said"
        assert "3 of the 3 known nodes; at most 2 may" in limit_detail(put_block(operator, "w3"))
