"""Spark properties and pod templates for spark-submit."""

from __future__ import annotations

from blocklist.spark.submit_conf import confs, exclude_nodes, not_label_values, pod_template

LONG = "a" * 64


def test_the_template_excludes_the_nodes_and_quotes_their_names() -> None:
    assert pod_template(["n7", "10.0.0.7", "off", "2001:db8::1", LONG, "n-", ".n"]) == (
        """apiVersion: v1
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
                  - "n7"
                  - "off"
"""
    )


def test_invalid_label_values_are_returned() -> None:
    assert not_label_values(["n7", "2001:db8::1", LONG, "n-", "A_b.c"]) == ["2001:db8::1", LONG, "n-"]


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
