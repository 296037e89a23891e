"""BLOCKLIST_MAX_BLOCKED_PER in a running service: whoever blocks, and at every replica."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.integration.bodies import block, current_list
from tests.integration.conftest import Start, StartInProcess, StartReplicas
from tests.integration.databases import ON_SQLITE
from tests.integration.labels import report_labels
from tests.integration.listeners import RM, heartbeat, put, register, unblock
from tests.integration.problems import problem_of
from tests.integration.process import wait_until

RACK: Any = {f"n{number}": {"rack": "r1"} for number in range(10)}


def refusal(answer: httpx.Response) -> str:
    problem = problem_of(answer, 409)
    assert problem["type"] == "urn:blocklist:problem:limit"
    return str(problem["detail"])


def put_node(client: httpx.Client, node: str, **params: str) -> httpx.Response:
    return client.put(f"/blocklist/nodes/{node}", json=block(allowMerge=True), params=params)


@ON_SQLITE
def test_a_refusal_names_the_domain_and_who_blocked_the_others(start: Start) -> None:
    service = start(max_blocked_per="rack=1,pool=50%", trusted_proxies="127.0.0.1/32")
    with service.client() as client, service.client() as ada:
        ada.headers["X-Forwarded-User"] = "ada"
        report_labels(client)
        put(ada, "N2")
        expected = (
            "This would block 2 of the 2 nodes with rack=r1; at most 1 may be blocked at once"
            " (BLOCKLIST_MAX_BLOCKED_PER has rack=1): no more is possible. Blocked there: n2 by ada."
        )
        assert refusal(put_node(client, "n1")) == expected
        assert put_node(client, "n1", dryRun="true").json()["refused"] == expected
        assert put_node(client, "n2").status_code == 202
        assert put_node(client, "n3").status_code == 201
        assert put_node(client, "elsewhere").status_code == 201
        assert put_node(client, "n1", force="agreed").status_code == 201
        assert list(current_list(client)[1]) == ["N2", "elsewhere", "n1", "n3"]


@ON_SQLITE
def test_each_cluster_has_a_limit_of_its_own(start_in_process: StartInProcess) -> None:
    with start_in_process(max_blocked_per="cluster=10%").client() as client:
        for cluster in ("k8s-a", "yarn"):
            register(client, cluster, role=RM, cluster=cluster)
            heartbeat(client, cluster, nodes=[f"{cluster}-{number}" for number in range(10)])
        assert put_node(client, "k8s-a-1").status_code == 201
        assert put_node(client, "yarn-1").status_code == 201
        assert "2 of the 10 nodes with cluster=yarn" in refusal(put_node(client, "yarn-2"))
        unblock(client, "yarn-1")
        assert put_node(client, "yarn-2").status_code == 201


@ON_SQLITE
def test_several_nodes_are_refused_together(start_in_process: StartInProcess) -> None:
    with start_in_process(max_blocked_per="rack=1").client() as client:
        report_labels(client)
        many = client.put("/blocklist/nodes", json={"n1": block(), "n2": block()})
        assert "2 of the 2 nodes with rack=r1" in refusal(many)
        assert "2 of the 2 nodes with rack=r1" in refusal(
            client.put("/blocklist/nodes", params={"selector": "rack"}, json=block())
        )
        assert current_list(client) == (0, {})


@ON_SQLITE
def test_requests_at_the_same_time_cannot_exceed_a_domain_together(start: Start) -> None:
    service = start(max_blocked_per="rack=3")
    with service.client() as client, ThreadPoolExecutor(8) as pool:
        report_labels(client, RACK)
        statuses = list(pool.map(lambda node: put_node(client, node).status_code, RACK))
        assert sorted(statuses) == [201] * 3 + [409] * 7
        assert len(current_list(client)[1]) == 3


@ON_SQLITE
def test_evidence_is_refused_too(start_in_process: StartInProcess) -> None:
    service = start_in_process(max_blocked_per="rack=1", evidence_max_share="1")
    with service.client() as client:
        report_labels(client)
        put(client, "n2")
        for application in ("app-1", "app-2"):
            register(client, application)
            task_managers = {f"{application}:{node}": node for node in ("n1", "n2", "n3", "n4", "n5")}
            evidence = {node: {"kind": "excluded", "reason": "It failed."} for node in ("n1", "n3")}
            heartbeat(client, application, taskManagers=task_managers, evidence=evidence)
        service.until(lambda: list(current_list(client)[1]) == ["n2", "n3"])


@pytest.mark.databases("postgresql")
def test_replicas_cannot_exceed_a_domain_together(start_replicas: StartReplicas) -> None:
    clients = start_replicas(max_blocked_per="rack=3").clients
    report_labels(clients[0], RACK)
    params = {"selector": "rack=r1"}
    wait_until(lambda: all("warning" not in each.get("/blocklist", params=params).headers for each in clients))
    with ThreadPoolExecutor(8) as pool:
        put_at = [(clients[number % 2], node) for number, node in enumerate(RACK)]
        statuses = list(pool.map(lambda each: put_node(*each).status_code, put_at))
    assert sorted(statuses) == [201] * 3 + [409] * 7
    assert len(current_list(clients[0])[1]) == 3
