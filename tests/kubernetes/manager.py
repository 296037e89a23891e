"""A Kubernetes manager of the tests, with the rights of two files in deploy/kubernetes/ and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.integration.manager_process import ManagerProcess
from tests.integration.process import ROOT, ServiceProcess
from tests.kubernetes.cluster import RBAC, Cluster, Json

RULES: Final = "\n---\n".join(
    (ROOT / "deploy" / "kubernetes" / name).read_text() for name in ("manager-rbac.yaml", "manager-eviction.yaml")
)
"""With eviction."""
NAMESPACE: Final = "managers"
"""Not the one that the rules name: tests of the chart and of the files for kubectl delete that."""
ACCOUNT: Final = "blocklist-manager"
KEY: Final = "blocklist/blocked"
_BINDINGS: Final = ("blocklist-manager", "blocklist-manager-eviction")
"""The ClusterRoleBindings of the two files."""


def manager_token(cluster: Cluster) -> str:
    """A token with these rights; the rules are applied first, unless they are there."""
    if not _has_rules(cluster):
        rules = RULES.replace("namespace: blocklist", f"namespace: {NAMESPACE}")
        cluster.kubectl("apply", "--filename", "-", stdin=rules)
    return cluster.service_account_token(NAMESPACE, ACCOUNT)


def _has_rules(cluster: Cluster) -> bool:
    """Tests of the chart and of the files for kubectl make and delete objects of these names, too."""
    with cluster.api() as api:
        if api.get(f"/api/v1/namespaces/{NAMESPACE}").status_code == 404:
            cluster.make_namespace(NAMESPACE)
        found = [api.get(f"{RBAC}/clusterrolebindings/{name}") for name in _BINDINGS]
    return all(
        each.status_code == 200 and [subject["namespace"] for subject in each.json()["subjects"]] == [NAMESPACE]
        for each in found
    )


def manager_process(
    folder: Path,
    cluster: Cluster,
    service: ServiceProcess,
    *options: str,
    log: str = "kubernetes",
    kind: type[ManagerProcess] = ManagerProcess,
) -> ManagerProcess:
    """It is not started yet; its listener is `kubernetes`."""
    folder = folder / log
    folder.mkdir(exist_ok=True)
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(cluster.kubeconfig(manager_token(cluster)))
    return kind(folder, service.url, "kubernetes", "--kubeconfig", str(kubeconfig), *options)


def taint_values(node: Json, key: str = KEY) -> list[str]:
    """The values of the taints with this key that keep new pods off."""
    taints = node["spec"].get("taints") or []
    return [each.get("value", "") for each in taints if each["key"] == key and each["effect"] == "NoSchedule"]


def is_blocked(node: Json) -> bool:
    """Whether it carries the manager's taint and annotation."""
    return taint_values(node) == ["kubernetes"] and KEY in node["metadata"].get("annotations", {})


def is_free(node: Json) -> bool:
    """Whether it carries neither."""
    return taint_values(node) == [] and KEY not in node["metadata"].get("annotations", {})
