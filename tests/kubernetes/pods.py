"""Pods of tests."""

from __future__ import annotations

from collections.abc import Mapping

import httpx

from tests.kubernetes.cluster import Json


def pod_object(
    name: str, *words: str, node: str | None = None, labels: Mapping[str, str] | None = None, **spec: object
) -> Json:
    """A pod that runs these words on the node, or on any; `spec` is added to its spec."""
    pinned = {} if node is None else {"nodeSelector": {"kubernetes.io/hostname": node}}
    container = {"name": "main", "image": "any", "args": list(words)}
    return {
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": {"containers": [container], "restartPolicy": "Never", **pinned, **spec},
    }


def make_pod(
    api: httpx.Client,
    namespace: str,
    name: str,
    *words: str,
    node: str | None = None,
    labels: Mapping[str, str] | None = None,
    **spec: object,
) -> str:
    """Make it and return its uid."""
    body = pod_object(name, *words, node=node, labels=labels, **spec)
    answer = api.post(f"/api/v1/namespaces/{namespace}/pods", json=body)
    return str(answer.raise_for_status().json()["metadata"]["uid"])


def pod_phase(api: httpx.Client, namespace: str, name: str) -> str | None:
    """Its phase; None if there is no such pod."""
    answer = api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
    return None if answer.status_code == 404 else str(answer.raise_for_status().json()["status"]["phase"])


def waits_for_taint(api: httpx.Client, namespace: str, name: str) -> bool:
    """Whether the scheduler has found no node for the pod, one because of its taints."""
    status = api.get(f"/api/v1/namespaces/{namespace}/pods/{name}").raise_for_status().json()["status"]
    return any("untolerated taint" in each.get("message", "") for each in status.get("conditions", ()))
