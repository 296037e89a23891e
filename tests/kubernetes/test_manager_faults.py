"""The Kubernetes manager while parts fail: killed processes, a node that cannot be changed, several managers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from blocklist import BlocklistClient
from tests.integration.manager_process import ManagerProcess, acked_revision, pending_reason
from tests.integration.process import ServiceProcess, wait_until
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.kubelets import Kubelets
from tests.kubernetes.manager import NAMESPACE, is_blocked, is_free, manager_process, manager_token

pytestmark = pytest.mark.timeout(600)


def test_blocks_stay_right_while_the_manager_or_the_service_is_killed(
    tmp_path: Path, cluster: Cluster, kubelets: Kubelets, fresh: ServiceProcess
) -> None:
    with (
        kubelets.nodes("killed-61", "killed-62", "killed-63"),
        BlocklistClient(fresh.url) as client,
        manager_process(tmp_path, cluster, fresh) as manager,
    ):
        client.block("killed-61", "Hot machine")
        client.block("killed-62", "Hot machine")
        wait_until(lambda: acked_revision(fresh, "kubernetes") == 2, seconds=120)
        manager.kill()
        client.unblock("killed-61")
        end = time.time_ns() // 1_000_000 + 10_000
        client.block("killed-63", "Disk errors", end=end)
        assert is_blocked(kubelets.node("killed-61"))
        manager.start()
        wait_until(lambda: is_free(kubelets.node("killed-61")), seconds=120)
        wait_until(lambda: is_blocked(kubelets.node("killed-63")) or time.time_ns() // 1_000_000 > end, seconds=120)
        fresh.kill()
        wait_until(lambda: is_free(kubelets.node("killed-63")), seconds=120)
        assert is_blocked(kubelets.node("killed-62"))
        fresh.start()
        client.unblock("killed-62")
        wait_until(lambda: is_free(kubelets.node("killed-62")), seconds=120)


def test_a_node_that_cannot_be_changed_withholds_nothing_from_the_others(
    tmp_path: Path, cluster: Cluster, kubelets: Kubelets, fresh: ServiceProcess, client: BlocklistClient
) -> None:
    with (
        kubelets.nodes("refusing-68", "willing-69"),
        manager_process(tmp_path, cluster, fresh, "--every", "1"),
    ):
        wait_until(lambda: acked_revision(fresh, "kubernetes") == 0, seconds=120)
        with failing_webhook(cluster, "refusing-68"):
            client.block("refusing-68", "Hot machine")
            client.block("willing-69", "Hot machine")
            wait_until(lambda: acked_revision(fresh, "kubernetes") == 2, seconds=120)
            assert is_blocked(kubelets.node("willing-69"))
            assert "Node refusing-68 cannot be changed" in pending_reason(fresh, "refusing-68")
            assert not pending_reason(fresh, "willing-69")
        wait_until(lambda: is_blocked(kubelets.node("refusing-68")), seconds=120)
        wait_until(lambda: not pending_reason(fresh, "refusing-68"), seconds=120)
        with failing_webhook(cluster, "refusing-68"):
            client.unblock("refusing-68")
            wait_until(lambda: "although its block has ended" in unschedulable(client, "refusing-68"), seconds=120)
        wait_until(lambda: unschedulable(client, "refusing-68") == "", seconds=120)


@contextmanager
def failing_webhook(cluster: Cluster, node: str) -> Iterator[None]:
    """An admission webhook for one node, whose server is away: the API server then refuses with HTTP 500."""
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    webhook = {
        "name": "away.example.com",
        "rules": [{"operations": ["UPDATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["nodes"]}],
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "matchConditions": [{"name": "node", "expression": f"object.metadata.name == '{node}'"}],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    with cluster.api() as api:
        api.post(path, json={"metadata": {"name": "away"}, "webhooks": [webhook]}).raise_for_status()
        # The API server learns of it by a watch.
        body = {"metadata": {"annotations": {"probed": "yes"}}}
        headers = {"Content-Type": "application/merge-patch+json"}
        probe = f"/api/v1/nodes/{node}?dryRun=All"
        wait_until(lambda: api.patch(probe, json=body, headers=headers).status_code == 500, seconds=120)
        try:
            yield
        finally:
            api.delete(f"{path}/away").raise_for_status()


def unschedulable(client: BlocklistClient, node: str) -> str:
    drift = client.drift().drift
    return next((each.reason for each in drift if each.node == node and each.kind == "unschedulable"), "")


def test_of_two_managers_one_acts_until_it_is_killed(
    tmp_path: Path, cluster: Cluster, kubelets: Kubelets, fresh: ServiceProcess, client: BlocklistClient
) -> None:
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/blocklist-manager"
    options = ("--lease", f"{NAMESPACE}/blocklist-manager")
    with ExitStack() as stack:
        stack.enter_context(kubelets.nodes("leased-71", "leased-72"))
        api = stack.enter_context(cluster.api())
        managers = [
            stack.enter_context(manager_process(tmp_path, cluster, fresh, *options, log=f"manager-{n}")) for n in (1, 2)
        ]

        def holders() -> list[ManagerProcess]:
            return [manager for manager in managers if "holds the lease" in manager.log()]

        wait_until(lambda: acked_revision(fresh, "kubernetes") == 0, seconds=120)
        (first,) = holders()
        client.block("leased-71", "Hot machine")
        wait_until(lambda: is_blocked(kubelets.node("leased-71")), seconds=120)
        first.kill()
        client.block("leased-72", "Hot machine")
        wait_until(lambda: is_blocked(kubelets.node("leased-72")), seconds=120)
        assert len(holders()) == 2
        (second,) = [manager for manager in managers if manager is not first]
        # It hands over at once: the next one need not wait for the end of the lease.
        second.stop()
        assert api.get(lease).json()["spec"]["holderIdentity"] == ""
        first.start()
        client.unblock("leased-71")
        wait_until(lambda: is_free(kubelets.node("leased-71")), seconds=120)


def test_in_a_pod_the_manager_uses_its_service_account_and_reads_a_new_token(
    tmp_path: Path, cluster: Cluster, kubelets: Kubelets, fresh: ServiceProcess, client: BlocklistClient
) -> None:
    account = tmp_path / "serviceaccount"
    account.mkdir()
    (account / "ca.crt").write_text(cluster.ca.read_text())
    (account / "namespace").write_text(NAMESPACE)
    (account / "token").write_text("has-expired")
    token = manager_token(cluster)
    host, _, port = cluster.url.removeprefix("https://").partition(":")
    pod = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, "KUBECONFIG": ""}
    manager = ManagerProcess(tmp_path, fresh.url, "kubernetes", "--service-account", str(account), **pod)
    with kubelets.nodes("in-pod-75"), manager:
        client.block("in-pod-75", "Hot machine")
        wait_until(lambda: "HTTP 401" in manager.log(), seconds=120)
        (account / "token").write_text(token)
        wait_until(lambda: is_blocked(kubelets.node("in-pod-75")), seconds=120)
