"""The rights in deploy/kubernetes/manager-rbac.yaml and manager-eviction.yaml: what is needed, and nothing else."""

from __future__ import annotations

from itertools import product

import httpx
import pytest

from tests.kubernetes.cluster import Cluster
from tests.kubernetes.manager import NAMESPACE, manager_token

pytestmark = pytest.mark.timeout(600)

Right = tuple[str, str, str]
"""Verb, resource with its group, and the name to which it is limited."""

CLUSTER_WIDE: set[Right] = {
    ("get", "nodes", ""),
    ("list", "nodes", ""),
    ("watch", "nodes", ""),
    ("patch", "nodes", ""),
    ("list", "pods", ""),
    ("create", "pods/eviction", ""),
}
IN_NAMESPACE: dict[str, set[Right]] = {
    "default": {("create", "events", "")},
    NAMESPACE: {
        ("create", "leases.coordination.k8s.io", ""),
        ("get", "leases.coordination.k8s.io", "blocklist-manager"),
        ("update", "leases.coordination.k8s.io", "blocklist-manager"),
    },
}
ABOUT_ITSELF = {
    "selfsubjectaccessreviews.authorization.k8s.io",
    "selfsubjectrulesreviews.authorization.k8s.io",
    "selfsubjectreviews.authentication.k8s.io",
}
"""What every user may ask."""


def test_the_manager_has_these_rights_and_no_others(cluster: Cluster) -> None:
    with cluster.api() as admin, cluster.api(manager_token(cluster)) as manager:
        listed = admin.get("/api/v1/namespaces").raise_for_status().json()["items"]
        for namespace in (each["metadata"]["name"] for each in listed):
            assert rights(manager, namespace) == CLUSTER_WIDE | IN_NAMESPACE.get(namespace, set()), namespace


def rights(api: httpx.Client, namespace: str) -> set[Right]:
    """What the owner of the token may do in a namespace, and everywhere."""
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    status = api.post(path, json={"spec": {"namespace": namespace}}).raise_for_status().json()["status"]
    assert not status["incomplete"]
    found = set[Right]()
    for rule in status["resourceRules"]:
        names = rule.get("resourceNames") or [""]
        for verb, group, resource, name in product(rule["verbs"], rule["apiGroups"], rule["resources"], names):
            found.add((verb, f"{resource}.{group}" if group else resource, name))
    return {right for right in found if right[1] not in ABOUT_ITSELF}
