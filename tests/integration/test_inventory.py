"""GET /nodes: what listeners report about nodes, and that their names and addresses mean one machine everywhere."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.integration.bodies import block, current_list
from tests.integration.listeners import (
    RM,
    get_listener,
    heartbeat,
    post_heartbeat,
    register,
    registration_body,
)
from tests.integration.problems import problem_of
from tests.integration.process import wait_until

WORKER: dict[str, Any] = {
    "id": "worker-7",
    "names": ["worker-7.example.com"],
    "addresses": ["10.0.0.7"],
    "labels": {"rack": "r12", "zone": "z1"},
}


@pytest.fixture
def cluster(listener_client: httpx.Client) -> httpx.Client:
    """A manager describes worker-7 and names worker-8; a job runs on the address of worker-7."""
    register(listener_client, "rm", role=RM)
    heartbeat(listener_client, "rm", nodes=[WORKER, "worker-8"])
    register(listener_client, "jm")
    heartbeat(listener_client, "jm", taskManagers={"tm": "10.0.0.7"}, runningTasks={"tm": 3})
    return listener_client


def node(client: httpx.Client, name: str) -> dict[str, Any]:
    answer = client.get(f"/nodes/{name}")
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


class TestNodes:
    def test_a_node_has_what_is_known_about_it(self, cluster: httpx.Client) -> None:
        found = node(cluster, "10.0.0.7")
        assert {key: found[key] for key in WORKER} == WORKER
        assert [(each["id"], each["kind"]) for each in found["reportedBy"]] == [("rm", RM), ("jm", "JOB_MASTER")]
        assert found["taskManagers"] == [{"id": "tm", "listener": "jm", "runningTasks": 3}]
        assert (found["runningTasks"], found["unreportedTasks"], found["blocked"], found["blocks"]) == (3, 0, False, [])
        assert found["lastSeen"] == max(each["lastSeen"] for each in found["reportedBy"])

    def test_tasks_that_nobody_reports_are_unknown(self, cluster: httpx.Client) -> None:
        heartbeat(cluster, "jm", runningTasks={})
        found = node(cluster, "worker-7")
        assert (found["runningTasks"], found["unreportedTasks"]) == (None, 1)
        assert node(cluster, "worker-8")["runningTasks"] is None

    @pytest.mark.parametrize("path", ["/nodes", "/nodes/worker-7"])
    def test_the_tag_changes_with_the_nodes_but_not_with_heartbeats(self, cluster: httpx.Client, path: str) -> None:
        tag = cluster.get(path).headers["ETag"]
        heartbeat(cluster, "rm")
        answer = cluster.get(path, headers={"If-None-Match": tag})
        assert (answer.status_code, answer.content, answer.headers["ETag"]) == (304, b"", tag)
        cluster.put("/blocklist/nodes/worker-7", json=block())
        assert cluster.get(path, headers={"If-None-Match": tag}).status_code == 200

    def test_a_node_that_nobody_reports_is_not_found_and_a_similar_one_is_named(self, cluster: httpx.Client) -> None:
        problem = problem_of(cluster.get("/nodes/worker-9"), 404)
        assert "did you mean worker-" in problem["detail"]

    def test_a_listener_that_leaves_takes_its_nodes_along(self, cluster: httpx.Client) -> None:
        cluster.delete("/listeners/rm")
        assert [each["id"] for each in cluster.get("/nodes").json()["nodes"]] == ["10.0.0.7"]

    def test_an_address_that_two_nodes_claim_is_ambiguous(self, cluster: httpx.Client) -> None:
        heartbeat(cluster, "rm", nodes=[WORKER, {**WORKER, "id": "worker-8", "names": []}])
        heartbeat(cluster, "jm", taskManagers={})
        problem = problem_of(cluster.get("/nodes/10.0.0.7"), 409)
        assert problem["type"].endswith("ambiguous-node")
        assert node(cluster, "worker-8")["conflicts"] == {"10.0.0.7": ["worker-7"]}
        cluster.put("/blocklist/nodes/worker-7", json=block())
        problem_of(cluster.get("/blocklist/nodes/10.0.0.7"), 404)

    def test_the_nodes_of_a_manager_belong_to_its_cluster(self, cluster: httpx.Client) -> None:
        register(cluster, "rm", role=RM, cluster="k8s-a")
        heartbeat(cluster, "rm", nodes=[{**WORKER, "labels": {"rack": "r12", "cluster": "of-kubernetes"}}, "worker-8"])
        found = {each["id"]: each for each in cluster.get("/nodes?selector=cluster=k8s-a").json()["nodes"]}
        assert found["worker-7"]["labels"] == {"cluster": "k8s-a", "rack": "r12"}
        assert found["worker-8"]["labels"] == {"cluster": "k8s-a"}
        cluster.put("/blocklist/nodes/worker-8", json=block())
        assert '<span class="dim">k8s-a</span>' in cluster.get("/").text
        assert (found["worker-7"]["clusters"], found["worker-7"]["clusterConflict"]) == (["k8s-a"], False)
        assert get_listener(cluster, "jm")["cluster"] == "k8s-a", "that of the node where it runs"
        register(cluster, "jm", cluster="spark-1")
        assert get_listener(cluster, "jm")["cluster"] == "spark-1"
        register(cluster, "rm", role=RM, cluster="k8s-b")
        assert [each["id"] for each in cluster.get("/nodes?selector=cluster=k8s-b").json()["nodes"]] == [*found]

    @pytest.mark.parametrize(
        ("other", "conflict"),
        [
            ("worker-7", True),
            ({"id": "worker-7", "addresses": ["10.9.9.9"]}, True),
            ({"id": "worker-7", "addresses": ["10.0.0.7"]}, False),
            ({"id": "worker-7.example.com", "addresses": []}, False),
        ],
    )
    def test_two_clusters_with_one_name_for_perhaps_two_machines(
        self, cluster: httpx.Client, other: object, conflict: bool
    ) -> None:
        register(cluster, "rm", role=RM, cluster="k8s-a")
        register(cluster, "yarn", role=RM, cluster="yarn")
        heartbeat(cluster, "yarn", nodes=[other])
        found = node(cluster, "worker-7")
        assert (found["clusters"], found["clusterConflict"]) == (["k8s-a", "yarn"], conflict)
        assert ("perhaps not the same machine" in cluster.get("/page/nodes/worker-7").text) is conflict

    @pytest.mark.parametrize("cluster_name", ["", "a b", "-a", "x" * 64, 7])
    def test_the_name_of_a_cluster_is_the_value_of_a_label(self, cluster: httpx.Client, cluster_name: object) -> None:
        answer = cluster.put("/listeners/rm", json=registration_body(role=RM, cluster=cluster_name))
        assert problem_of(answer, 400)["detail"].startswith("cluster: ")

    @pytest.mark.parametrize(
        "faulty",
        [{"id": "n1", "labels": {"rack": "a b"}}, {"id": "n1", "addresses": ["n1"]}, {"id": "n1", "rack": "r1"}, {}, 7],
    )
    def test_a_faulty_node_is_refused_and_the_earlier_report_stays(self, cluster: httpx.Client, faulty: object) -> None:
        problem = problem_of(post_heartbeat(cluster, "rm", nodes=["n1", faulty]), 400)
        assert problem["detail"].startswith("nodes.1")
        assert node(cluster, "worker-7")["labels"] == WORKER["labels"]


class TestOneMachine:
    """A block under one name or address of a machine is a block of the machine."""

    def test_two_names_of_it_cannot_be_blocked_in_one_request(self, cluster: httpx.Client) -> None:
        answer = cluster.put("/blocklist/nodes", json={"worker-7": block(), "10.0.0.7": block()})
        assert "mean the same machine" in problem_of(answer, 400)["detail"]

    def test_blocks_that_exist_are_neither_merged_nor_split(self, listener_client: httpx.Client) -> None:
        for name in ("worker-7", "10.0.0.7"):
            listener_client.put(f"/blocklist/nodes/{name}", json=block(cause=name))
        before = current_list(listener_client)
        register(listener_client, "rm", role=RM)
        heartbeat(listener_client, "rm", nodes=[WORKER])
        assert current_list(listener_client) == before
        assert {name: listener_client.get(f"/blocklist/nodes/{name}").json()["cause"] for name in before[1]} == {
            "worker-7": "worker-7",
            "10.0.0.7": "10.0.0.7",
        }
        assert [each["id"] for each in node(listener_client, "worker-7")["blocks"]] == ["10.0.0.7", "worker-7"]
        assert listener_client.delete("/blocklist/nodes/worker-7").status_code == 200
        # The machine is still blocked, under its address.
        assert listener_client.get("/blocklist/nodes/worker-7").json()["id"] == "10.0.0.7"

    def test_a_node_is_known_and_its_tasks_are_shown_under_every_name(self, cluster: httpx.Client) -> None:
        answer = cluster.put("/blocklist/nodes/worker-7", params={"dryRun": "true"}, json=block())
        [found] = answer.json()["nodes"]
        assert (found["known"], found["taskManagers"]) == (
            True,
            [{"id": "tm", "listener": "jm", "runningTasks": 3}],
        )


@pytest.mark.databases("postgresql")
def test_replicas_know_the_same_nodes(client_a: httpx.Client, client_b: httpx.Client) -> None:
    register(client_a, "rm", role=RM)
    heartbeat(client_a, "rm", nodes=[WORKER, "worker-8"])
    wait_until(lambda: client_b.get("/nodes").json()["total"] == 2)
    assert node(client_b, "10.0.0.7")["labels"] == WORKER["labels"]
    assert client_b.put("/blocklist/nodes/10.0.0.7", json=block()).status_code == 201
    wait_until(lambda: node(client_a, "worker-7")["blocked"])
    heartbeat(client_b, "rm", nodes=["worker-8"])
    wait_until(lambda: client_a.get("/nodes").json()["total"] == 1)
