"""The pod template of `blocklist spark conf` on a real scheduler."""

from __future__ import annotations

import yaml  # type: ignore[import-untyped]

from blocklist.spark.submit_conf import pod_template
from tests.integration.process import wait_until
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.kubelets import Kubelets
from tests.kubernetes.pods import make_pod, pod_phase


def test_the_pod_template_for_submissions_keeps_pods_off_nodes(
    cluster: Cluster, kubelets: Kubelets, namespace: str
) -> None:
    template = yaml.safe_load(pod_template(["AFFINE-19", "2001:db8::1", "other_VM"]))
    with kubelets.nodes("affine-19", "affine-20"), cluster.api() as api:
        make_pod(api, namespace, "off", "true", node="affine-19", **template["spec"])
        make_pod(api, namespace, "on", "true", node="affine-20", **template["spec"])
        wait_until(lambda: pod_phase(api, namespace, "on") == "Succeeded", seconds=120)
        assert pod_phase(api, namespace, "off") == "Pending"
