"""The Kubernetes manager against a real API server: blocks begin, change, end, and nodes come and go."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
import yaml  # type: ignore[import-untyped]

from blocklist import BlockAction, BlocklistClient
from blocklist.spark.submit_conf import pod_template
from tests.integration.databases import Databases
from tests.integration.manager_process import (
    ManagerProcess,
    acked_revision,
    is_not_here,
    pending_reason,
    refused_reason,
)
from tests.integration.process import ServiceProcess, wait_until
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.kubelets import Kubelets
from tests.kubernetes.manager import KEY, is_blocked, is_free, manager_process
from tests.kubernetes.pods import make_pod, pod_phase, waits_for_taint

pytestmark = pytest.mark.timeout(600)

EVACUATE = BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[ServiceProcess]:
    """One for this file, as the manager is."""
    folder = tmp_path_factory.mktemp("service")
    with ServiceProcess(folder, **databases.settings(folder)) as service:
        yield service


@pytest.fixture(scope="module")
def running_manager(
    tmp_path_factory: pytest.TempPathFactory, cluster: Cluster, fresh: ServiceProcess
) -> Iterator[ManagerProcess]:
    with manager_process(tmp_path_factory.mktemp("manager"), cluster, fresh) as manager:
        wait_until(lambda: acked_revision(fresh, "kubernetes") == 0, seconds=120)
        yield manager


@pytest.fixture
def manager(running_manager: ManagerProcess, client: BlocklistClient) -> Iterator[ManagerProcess]:
    """The running manager, with an empty list."""
    yield running_manager
    for node in client.snapshot().nodes:
        client.unblock(node)


def await_acknowledged(service: ServiceProcess, client: BlocklistClient) -> None:
    revision = client.snapshot().revision
    wait_until(lambda: acked_revision(service, "kubernetes") == revision, seconds=120)


def await_known(client: BlocklistClient, *names: str) -> None:
    """Wait until the manager has reported these nodes."""
    wait_until(lambda: {node.id for node in client.known_nodes().nodes}.issuperset(names), seconds=120)


def applied(client: BlocklistClient, node: str) -> bool:
    """Whether the service says that the block is in force in the cluster."""
    (listener,) = client.status(node).listeners
    return listener.applied


def test_a_blocked_node_gets_no_new_pods_until_its_block_ends(
    manager: ManagerProcess,
    fresh: ServiceProcess,
    client: BlocklistClient,
    cluster: Cluster,
    kubelets: Kubelets,
    namespace: str,
) -> None:
    with kubelets.nodes("marked-31", "marked-32"), cluster.api() as api:
        await_known(client, "marked-31", "marked-32")
        make_pod(api, namespace, "before", "sleep", "600", node="marked-31")
        wait_until(lambda: pod_phase(api, namespace, "before") == "Running", seconds=120)
        cluster.kubectl("taint", "node", "marked-31", "other=1:PreferNoSchedule")
        # The name in the cloud's DNS, in other letters.
        client.block("MARKED-31.eu-1-a.example", "Hot machine")
        wait_until(lambda: applied(client, "MARKED-31.eu-1-a.example"), seconds=120)
        node = kubelets.node("marked-31")
        assert is_blocked(node)
        assert not node["spec"].get("unschedulable")
        mark = json.loads(node["metadata"]["annotations"][KEY])
        assert mark == {
            "blocked": "without end",
            "action": "mark",
            "cause": "Hot machine",
            "by": None,
            "machine": "example:///eu-1-a/i-00031",
            "manager": "kubernetes",
        }
        assert is_free(kubelets.node("marked-32"))
        make_pod(api, namespace, "after", "echo", "it ran", node="marked-31")
        wait_until(lambda: waits_for_taint(api, namespace, "after"))
        assert pod_phase(api, namespace, "before") == "Running"
        wait_until(lambda: "is blocked without end (Hot machine)" in cluster.kubectl("describe", "node", "marked-31"))
        # A merge changes the annotation.
        end = time.time_ns() // 1_000_000 + 4_000
        client.unblock("marked-31")
        client.block("marked-31", "Disk", end=end, action=EVACUATE)
        wait_until(lambda: "Disk" in kubelets.node("marked-31")["metadata"].get("annotations", {}).get(KEY, ""))
        wait_until(lambda: is_free(kubelets.node("marked-31")), seconds=120)
        assert time.time_ns() // 1_000_000 >= end
        wait_until(lambda: pod_phase(api, namespace, "after") == "Succeeded", seconds=120)
        assert [each["key"] for each in kubelets.node("marked-31")["spec"]["taints"]] == ["other"]
        described = cluster.kubectl("describe", "node", "marked-31")
        assert "BlockChanged" in described or described.count("Blocked") >= 2
        assert "Unblocked" in described


def test_with_all_nodes_blocked_a_pod_waits_for_the_first_that_is_free(
    manager: ManagerProcess,
    fresh: ServiceProcess,
    client: BlocklistClient,
    cluster: Cluster,
    kubelets: Kubelets,
    namespace: str,
) -> None:
    names = ["all-36", "all-37"]
    # Pods of other tests may want these nodes, and nodes of other tests may be there.
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": names}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    with kubelets.nodes(*names), cluster.api() as api:
        for name in names:
            client.block(name, "Power")
        await_acknowledged(fresh, client)
        wait_until(lambda: applied(client, "all-36") and applied(client, "all-37"), seconds=120)
        make_pod(api, namespace, "waits", "sleep", "600", affinity=affinity)
        wait_until(lambda: waits_for_taint(api, namespace, "waits"))
        client.unblock("all-37")
        wait_until(lambda: "waits" in kubelets.pods_on("all-37"), seconds=120)


def test_a_node_that_joins_or_registers_again_is_blocked_at_once(
    manager: ManagerProcess, fresh: ServiceProcess, client: BlocklistClient, kubelets: Kubelets
) -> None:
    client.block("joins-41", "Disk errors")
    await_acknowledged(fresh, client)
    # Without any node at all, it is not known; nodes of other tests may be there.
    wait_until(
        lambda: (
            "Kubernetes lists no nodes at all." in pending_reason(fresh, "joins-41") or is_not_here(fresh, "joins-41")
        ),
        seconds=120,
    )
    uids = set()
    for _ in range(2):
        with kubelets.nodes("joins-41"):
            wait_until(lambda: is_blocked(kubelets.node("joins-41")), seconds=120)
            wait_until(lambda: applied(client, "joins-41"), seconds=120)
            uids.add(kubelets.node("joins-41")["metadata"]["uid"])
        wait_until(lambda: not applied(client, "joins-41"), seconds=120)
    assert len(uids) == 2


def test_all_names_of_a_node_mean_it_and_a_name_of_several_means_none(
    manager: ManagerProcess, fresh: ServiceProcess, client: BlocklistClient, kubelets: Kubelets
) -> None:
    with kubelets.nodes("named-51", "named-52"):
        kubelets.add_node("named-51b", network=51)
        try:
            await_known(client, "named-51", "named-51b", "named-52")
            for name in ("i-00052", "203.0.113.52", "named-52.eu-1-a.example"):
                client.block(name, "Disk errors")
                wait_until(lambda name=name: applied(client, name), seconds=120)  # type: ignore[misc]
                assert is_blocked(kubelets.node("named-52"))
                client.unblock(name)
                wait_until(lambda: is_free(kubelets.node("named-52")), seconds=120)
            client.block("203.0.113.51", "Disk errors")
            wait_until(lambda: "203.0.113.51 means 2 nodes: named-51, named-51b." in reason(fresh), seconds=120)
            assert is_free(kubelets.node("named-51"))
        finally:
            kubelets.delete_node("named-51b")
        wait_until(lambda: applied(client, "203.0.113.51"), seconds=120)
        assert is_blocked(kubelets.node("named-51"))
        (known,) = [node for node in client.known_nodes().nodes if node.id == "named-52"]
        assert known.labels["zone"] == "eu-1-a"
        assert known.labels["instance-type"] == "m5.xlarge"
        assert known.labels["allocatable-memory"] == "8Gi"
        assert known.labels["provider-id"].endswith("i-00052")
        assert set(known.addresses) == {"203.0.113.52"}, "an address on loopback tells no machines apart"


def test_the_pod_template_for_submissions_keeps_pods_off_nodes(
    cluster: Cluster, kubelets: Kubelets, namespace: str
) -> None:
    """That of `blocklist spark conf`, for a cluster without a manager."""
    template = yaml.safe_load(pod_template(["AFFINE-19", "2001:db8::1", "other_VM"]))
    with kubelets.nodes("affine-19", "affine-20"), cluster.api() as api:
        make_pod(api, namespace, "off", "true", node="affine-19", **template["spec"])
        make_pod(api, namespace, "on", "true", node="affine-20", **template["spec"])
        wait_until(lambda: pod_phase(api, namespace, "on") == "Succeeded", seconds=120)
        assert pod_phase(api, namespace, "off") == "Pending"


def reason(service: ServiceProcess) -> str:
    return refused_reason(service, "203.0.113.51") or ""
