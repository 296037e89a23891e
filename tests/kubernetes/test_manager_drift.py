"""Others change the nodes that the Kubernetes manager watches: taints, cordons, and both at the same time."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import httpx
import pytest

from blocklist import BlocklistClient
from tests.integration.manager_process import acked_revision, refused_reason, run_module
from tests.integration.process import ServiceProcess, wait_until
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.kubelets import Kubelets
from tests.kubernetes.manager import KEY, is_blocked, is_free, manager_process, taint_values
from tests.length import longer

pytestmark = pytest.mark.timeout(600)

ROUNDS = longer(15)
"""How often others' writes meet the manager's."""


def drift(client: BlocklistClient, node: str) -> list[tuple[str, str]]:
    return [(each.kind, each.reason) for each in client.drift().drift if each.node == node]


def test_a_taint_that_somebody_removes_or_changes_is_restored_and_reported(
    tmp_path: Path, cluster: Cluster, kubelets: Kubelets, fresh: ServiceProcess, client: BlocklistClient
) -> None:
    with kubelets.nodes("restored-81"), manager_process(tmp_path, cluster, fresh) as manager:
        cluster.kubectl("taint", "node", "restored-81", "other=1:NoSchedule")
        client.block("restored-81", "Hot machine")
        wait_until(lambda: acked_revision(fresh, "kubernetes") == 1, seconds=120)
        assert is_blocked(kubelets.node("restored-81"))
        cluster.kubectl("taint", "node", "restored-81", f"{KEY}-")
        wait_until(lambda: is_blocked(kubelets.node("restored-81")), seconds=120)
        wait_until(lambda: bool(drift(client, "restored-81")), seconds=120)
        ((kind, reason),) = drift(client, "restored-81")
        assert kind == "schedulable"
        assert "was removed by kubectl-taint at " in reason
        assert reason.endswith("It was restored.")
        wait_until(lambda: drift(client, "restored-81") == [], seconds=120)
        cluster.kubectl("taint", "node", "restored-81", "--overwrite", f"{KEY}=mine:NoSchedule")
        wait_until(lambda: is_blocked(kubelets.node("restored-81")), seconds=120)
        wait_until(lambda: "TaintRestored" in cluster.kubectl("describe", "node", "restored-81"), seconds=120)
        assert taint_values(kubelets.node("restored-81"), "other") == ["1"]
        assert "was changed to the value 'mine' by kubectl-taint" in manager.log()


def test_on_request_drift_is_only_reported_and_another_managers_taint_is_left_alone(
    tmp_path: Path, cluster: Cluster, kubelets: Kubelets, fresh: ServiceProcess, client: BlocklistClient
) -> None:
    options = ("--on-drift", "report")
    with kubelets.nodes("reported-83", "foreign-84"), manager_process(tmp_path, cluster, fresh, *options):
        cluster.kubectl("taint", "node", "foreign-84", f"{KEY}=other-cluster:NoSchedule")
        client.block("reported-83", "Hot machine")
        client.block("foreign-84", "Hot machine")
        wait_until(lambda: is_blocked(kubelets.node("reported-83")), seconds=120)
        wait_until(lambda: "is not this manager's" in (refused_reason(fresh, "foreign-84") or ""), seconds=120)
        cluster.kubectl("taint", "node", "reported-83", f"{KEY}-")
        wait_until(lambda: "(--on-drift report)" in (refused_reason(fresh, "reported-83") or ""), seconds=120)
        wait_until(lambda: [kind for kind, _ in drift(client, "reported-83")] == ["schedulable"], seconds=120)
        assert taint_values(kubelets.node("reported-83")) == []
        client.unblock("reported-83")
        client.unblock("foreign-84")
        wait_until(lambda: is_free(kubelets.node("reported-83")), seconds=120)
        wait_until(lambda: acked_revision(fresh, "kubernetes") == 4, seconds=120)
        assert taint_values(kubelets.node("foreign-84")) == ["other-cluster"]


def test_a_cordon_is_drift_and_on_request_a_claim_that_goes_with_the_uncordon(
    tmp_path: Path, cluster: Cluster, kubelets: Kubelets, fresh: ServiceProcess, client: BlocklistClient
) -> None:
    with kubelets.nodes("cordoned-85"):
        with manager_process(tmp_path, cluster, fresh):
            cluster.kubectl("cordon", "cordoned-85")
            wait_until(lambda: bool(drift(client, "cordoned-85")), seconds=120)
            ((kind, reason),) = drift(client, "cordoned-85")
            assert kind == "unschedulable"
            assert reason.startswith("cordoned by kubectl")
        with manager_process(tmp_path, cluster, fresh, "--mirror-cordons") as manager:
            wait_until(lambda: "cordoned-85" in client.snapshot().nodes, seconds=120)
            (claim,) = client.claims("cordoned-85")
            assert claim.owner == "kubernetes"
            assert claim.block.cause.startswith("Cordoned in kubernetes by kubectl")
            wait_until(lambda: is_blocked(kubelets.node("cordoned-85")), seconds=120)
            client.unblock("cordoned-85")
            manager.kill()
            manager.start()
            wait_until(lambda: "Node cordoned-85 is cordoned, and stays unblocked" in manager.log(), seconds=120)
            assert "cordoned-85" not in client.snapshot().nodes
            cluster.kubectl("uncordon", "cordoned-85")
            cluster.kubectl("cordon", "cordoned-85")
            wait_until(lambda: "cordoned-85" in client.snapshot().nodes, seconds=120)
            client.put_claim("cordoned-85", "kernel-upgrade", "Kernel upgrade")
            cluster.kubectl("uncordon", "cordoned-85")
            wait_until(lambda: [each.owner for each in client.claims("cordoned-85")] == ["kernel-upgrade"], seconds=120)
            assert is_blocked(kubelets.node("cordoned-85"))
            client.unblock("cordoned-85")
            wait_until(lambda: is_free(kubelets.node("cordoned-85")), seconds=120)
            assert manager.log().count("Node cordoned-85 is claimed for kubernetes") == 2
            assert manager.log().count("the claim of kubernetes is removed") == 1


def test_runs_with_once_leave_a_node_free_that_was_unblocked_by_hand(
    tmp_path: Path, cluster: Cluster, kubelets: Kubelets, fresh: ServiceProcess, client: BlocklistClient
) -> None:
    manager_process(tmp_path, cluster, fresh)
    kubeconfig = str(tmp_path / "kubernetes" / "kubeconfig")
    command = ("kubernetes", "--url", fresh.url, "--kubeconfig", kubeconfig, "--mirror-cordons", "--once")
    with kubelets.nodes("once-87"):
        cluster.kubectl("cordon", "once-87")
        cordoned = time.time()
        # The first claims the node, the second taints it.
        for _ in range(2):
            assert run_module("blocklist.managers", *command).returncode == 0
        assert is_blocked(kubelets.node("once-87"))
        wait_until(lambda: time.time() > cordoned + 1)
        client.unblock("once-87")
        done = run_module("blocklist.managers", *command)
        assert "Node once-87 is cordoned, and stays unblocked" in done.stderr
        assert "claimed" not in done.stdout
        assert is_free(kubelets.node("once-87"))
        assert client.snapshot().nodes == {}


def test_nobody_loses_a_taint_while_all_write_the_same_node(
    tmp_path: Path, cluster: Cluster, kubelets: Kubelets, fresh: ServiceProcess, client: BlocklistClient
) -> None:
    with kubelets.nodes("contended-86"), manager_process(tmp_path, cluster, fresh):
        wait_until(lambda: acked_revision(fresh, "kubernetes") == 0, seconds=120)
        stop = threading.Event()
        lost: list[str] = []
        writers = [
            threading.Thread(target=write_taints, args=(cluster, kubelets, name, stop, lost)) for name in ("a", "b")
        ]
        kubectl = threading.Thread(target=cordon_again_and_again, args=(cluster, stop))
        for thread in (*writers, kubectl):
            thread.start()
        try:
            for _ in range(ROUNDS):
                client.block("contended-86", "Hot machine")
                wait_until(lambda: is_blocked(kubelets.node("contended-86")), seconds=120)
                client.unblock("contended-86")
                wait_until(lambda: taint_values(kubelets.node("contended-86")) == [], seconds=120)
            client.block("contended-86", "Hot machine")
        finally:
            stop.set()
            for thread in (*writers, kubectl):
                thread.join()
        wait_until(lambda: is_blocked(kubelets.node("contended-86")), seconds=120)
        wait_until(lambda: acked_revision(fresh, "kubernetes") == 2 * ROUNDS + 1, seconds=120)
        assert lost == []


def write_taints(cluster: Cluster, kubelets: Kubelets, name: str, stop: threading.Event, lost: list[str]) -> None:
    """Add and remove a taint as a careful controller does: the whole list, with its resourceVersion."""
    with cluster.api() as api:
        for number in range(10_000):
            if stop.is_set():
                return
            added = number % 2 == 0
            replace_taint(api, kubelets, f"test/{name}", add=added)
            if (taint_values(kubelets.node("contended-86"), f"test/{name}") == ["1"]) != added:
                lost.append(f"{name} {number}")


def replace_taint(api: httpx.Client, kubelets: Kubelets, key: str, *, add: bool) -> None:
    for _ in range(1000):
        node = kubelets.node("contended-86")
        others = [taint for taint in node["spec"].get("taints") or [] if taint["key"] != key]
        taints = [*others, {"key": key, "value": "1", "effect": "NoSchedule"}] if add else others
        body = {"metadata": {"resourceVersion": node["metadata"]["resourceVersion"]}, "spec": {"taints": taints}}
        headers = {"Content-Type": "application/merge-patch+json"}
        answer = api.patch("/api/v1/nodes/contended-86", json=body, headers=headers)
        if answer.status_code != 409:
            answer.raise_for_status()
            return
    raise AssertionError("only conflicts")


def cordon_again_and_again(cluster: Cluster, stop: threading.Event) -> None:
    while not stop.is_set():
        cluster.kubectl("cordon", "contended-86")
        cluster.kubectl("uncordon", "contended-86")
