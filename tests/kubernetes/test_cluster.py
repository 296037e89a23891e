"""The cluster of these tests behaves as a real one where they rely on it."""

from __future__ import annotations

import yaml  # type: ignore[import-untyped]

from blocklist.spark.submit_conf import pod_template
from tests.integration.process import wait_until
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.kubelets import Kubelets
from tests.kubernetes.pods import make_pod, pod_phase, waits_for_taint


def test_a_pod_runs_as_a_process_on_its_node_until_it_is_deleted(
    cluster: Cluster, kubelets: Kubelets, namespace: str
) -> None:
    with kubelets.nodes("pods-17"):
        with cluster.api() as api:
            uid = make_pod(api, namespace, "sleeper", "sleep", "600", node="pods-17")
            wait_until(lambda: pod_phase(api, namespace, "sleeper") == "Running", seconds=120)
            assert kubelets.pods_on("pods-17") == ["sleeper"]
            process = kubelets.process(uid)
            assert process.poll() is None
            api.delete(f"/api/v1/namespaces/{namespace}/pods/sleeper").raise_for_status()
            wait_until(lambda: pod_phase(api, namespace, "sleeper") is None, seconds=120)
        assert process.poll() is not None


def test_a_taint_keeps_pods_off_a_node(cluster: Cluster, kubelets: Kubelets, namespace: str) -> None:
    with kubelets.nodes("pods-18"), cluster.api() as api:
        cluster.kubectl("taint", "node", "pods-18", "test=1:NoSchedule")
        uid = make_pod(api, namespace, "waits", "echo", "it ran", node="pods-18")
        wait_until(lambda: waits_for_taint(api, namespace, "waits"))
        cluster.kubectl("taint", "node", "pods-18", "test-")
        wait_until(lambda: pod_phase(api, namespace, "waits") == "Succeeded", seconds=120)
        assert kubelets.log(uid) == "it ran\n"


def test_a_service_account_may_only_do_what_its_rules_allow(cluster: Cluster, namespace: str) -> None:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    with cluster.api(cluster.make_service_account(namespace, "reader", rules)) as api:
        assert api.get(f"/api/v1/namespaces/{namespace}/pods").status_code == 200
        assert api.get("/api/v1/nodes").status_code == 403


def test_the_pod_template_for_submissions_keeps_pods_off_nodes(
    cluster: Cluster, kubelets: Kubelets, namespace: str
) -> None:
    template = yaml.safe_load(pod_template(["AFFINE-19", "2001:db8::1", "other_VM"]))
    with kubelets.nodes("affine-19", "affine-20"), cluster.api() as api:
        make_pod(api, namespace, "off", "true", node="affine-19", **template["spec"])
        make_pod(api, namespace, "on", "true", node="affine-20", **template["spec"])
        wait_until(lambda: pod_phase(api, namespace, "on") == "Succeeded", seconds=120)
        assert pod_phase(api, namespace, "off") == "Pending"
