"""`--evict`: pods leave an evacuated node through the Eviction API, and nothing else does."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from blocklist import BlockAction, BlocklistClient
from tests.integration.manager_process import pending_reason
from tests.integration.process import ServiceProcess, wait_until
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.kubelets import Kubelets
from tests.kubernetes.manager import is_blocked, manager_process
from tests.kubernetes.pods import make_pod, pod_object

pytestmark = pytest.mark.timeout(600)

EVACUATE = BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS
NODE = "evicted-91"


def test_selected_pods_leave_as_far_as_budgets_allow_and_who_remains_is_reported(
    tmp_path: Path, cluster: Cluster, kubelets: Kubelets, fresh: ServiceProcess, client: BlocklistClient, namespace: str
) -> None:
    with kubelets.nodes(NODE), cluster.api() as api:
        make_budget(api, namespace, "web", min_available=1)
        make_daemon_set(api, namespace, "daemon")
        for name in ("web-1", "web-2"):
            make_pod(api, namespace, name, "sleep", "600", node=NODE, labels={"app": "web"})
        make_pod(api, namespace, "other", "sleep", "600", node=NODE, labels={"app": "other"})
        make_pod(api, namespace, "exec-1", "sleep", "600", node=NODE, labels={"app": "web", "spark-role": "executor"})
        wait_until(lambda: len(kubelets.pods_on(NODE)) == 5, seconds=120)
        wait_until(lambda: healthy(api, namespace, "web") == 3, seconds=120)
        daemon = next(name for name in kubelets.pods_on(NODE) if name.startswith("daemon-"))
        with manager_process(tmp_path, cluster, fresh, "--evict", "app in (web, daemon)"):
            client.block(NODE, "Hot machine")
            wait_until(lambda: is_blocked(kubelets.node(NODE)), seconds=120)
            assert len(kubelets.pods_on(NODE)) == 5, "a mark lets pods run"
            # The budget keeps one of three: web-1 and web-2 may go only while the executor runs.
            set_budget(api, namespace, "web", 2)
            client.block(NODE, "Hot machine", action=EVACUATE, allow_merge=True)
            wait_until(lambda: len(kubelets.pods_on(NODE)) == 4, seconds=120)
            wait_until(lambda: "1 pod remains" in pending_reason(fresh, NODE), seconds=120)
            reason = pending_reason(fresh, NODE)
            assert "The disruption budget web needs 2 healthy pods and has 2 currently" in reason
            set_budget(api, namespace, "web", 1)
            wait_until(lambda: kubelets.pods_on(NODE) == sorted([daemon, "exec-1", "other"]), seconds=120)
            wait_until(lambda: not pending_reason(fresh, NODE), seconds=120)
        for name in ("exec-1", "other"):
            api.delete(f"/api/v1/namespaces/{namespace}/pods/{name}")


def make_budget(api: httpx.Client, namespace: str, app: str, min_available: int) -> None:
    body = {
        "metadata": {"name": app},
        "spec": {"minAvailable": min_available, "selector": {"matchLabels": {"app": app}}},
    }
    api.post(f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets", json=body).raise_for_status()


def set_budget(api: httpx.Client, namespace: str, app: str, min_available: int) -> None:
    path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/{app}"
    headers = {"Content-Type": "application/merge-patch+json"}
    api.patch(path, json={"spec": {"minAvailable": min_available}}, headers=headers).raise_for_status()
    wait_until(lambda: observed(api, path), seconds=120)


def observed(api: httpx.Client, path: str) -> bool:
    budget = api.get(path).raise_for_status().json()
    return bool(budget["status"].get("observedGeneration") == budget["metadata"]["generation"])


def healthy(api: httpx.Client, namespace: str, app: str) -> int:
    path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/{app}"
    return int(api.get(path).raise_for_status().json().get("status", {}).get("currentHealthy", 0))


def make_daemon_set(api: httpx.Client, namespace: str, name: str) -> None:
    labels = {"app": name}
    pod = pod_object("template", "sleep", "600", node=NODE)
    pod["spec"].pop("restartPolicy")
    template = {"metadata": {"labels": labels}, "spec": pod["spec"]}
    body = {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": labels}, "template": template}}
    api.post(f"/apis/apps/v1/namespaces/{namespace}/daemonsets", json=body).raise_for_status()
