"""Spark properties and pod templates for spark-submit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from blocklist.spark.submit_conf import blocked_names, confs, exclude_nodes, not_node_names, pod_template
from blocklist.wire.listeners import KnownNodeBody

LONG = "a" * 64


def test_the_template_excludes_the_nodes_and_quotes_their_names() -> None:
    assert pod_template(["n7", "10.0.0.7", "off", "2001:db8::1", LONG, "n-", ".n", "VM_1", "vmss00000Q"]) == (
        f"""apiVersion: v1
kind: Pod
spec:
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
          - matchExpressions:
              - key: kubernetes.io/hostname
                operator: NotIn
                values:
                  - "10.0.0.7"
                  - "VM_1"
                  - "n7"
                  - "off"
                  - "vmss00000Q"
            matchFields:
              - {{key: metadata.name, operator: NotIn, values: ["10.0.0.7"]}}
              - {{key: metadata.name, operator: NotIn, values: ["{LONG}"]}}
              - {{key: metadata.name, operator: NotIn, values: ["n7"]}}
              - {{key: metadata.name, operator: NotIn, values: ["off"]}}
              - {{key: metadata.name, operator: NotIn, values: ["vmss00000q"]}}
"""
    )
    assert "matchExpressions" not in pod_template([LONG])
    assert "  - matchFields:" in pod_template([LONG])


def test_all_names_of_a_blocked_machine_are_excluded() -> None:
    """An id on the list may be a short name, an instance's id, or in another case than the name of the node."""
    inventory = [
        SimpleNamespace(id="ip-10-0-0-7.ec2.internal", names=["ip-10-0-0-7", "i-0abc"], blocked=True),
        SimpleNamespace(id="vmss00000q", names=[], blocked=True),
        SimpleNamespace(id="free", names=["f"], blocked=False),
    ]
    names = blocked_names(["i-0abc", "vmss00000Q", "n9"], cast("list[KnownNodeBody]", inventory))
    assert names == ["i-0abc", "ip-10-0-0-7", "ip-10-0-0-7.ec2.internal", "n9", "vmss00000Q", "vmss00000q"]


def test_names_that_no_node_can_have_are_returned() -> None:
    assert not_node_names(["n7", "2001:db8::1", LONG, "n-", "A_b.c"]) == ["2001:db8::1", "n-"]


def test_an_empty_list_has_no_effect() -> None:
    """Kubernetes rejects NotIn without values, and an affinity without terms."""
    assert pod_template([]) == "apiVersion: v1\nkind: Pod\nspec: {}\n"
    assert pod_template(["2001:db8::1"]) == pod_template([])
    assert confs([], None) == {}


def test_the_confs_name_the_nodes_and_the_template() -> None:
    assert exclude_nodes(["n2", "n1"]) == "n1,n2"
    assert confs(["n2", "n1"], "/tmp/pod.yaml") == {
        "spark.yarn.exclude.nodes": "n1,n2",
        "spark.kubernetes.driver.podTemplateFile": "/tmp/pod.yaml",
        "spark.kubernetes.executor.podTemplateFile": "/tmp/pod.yaml",
    }
    assert confs([], "/tmp/pod.yaml").keys() == {
        "spark.kubernetes.driver.podTemplateFile",
        "spark.kubernetes.executor.podTemplateFile",
    }
