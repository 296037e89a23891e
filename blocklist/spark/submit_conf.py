"""Spark properties and a pod template that keep a new application's executors off blocked nodes. Pure.

They hold the list at submit time. Later blocks reach the running application through the agent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from typing import Final

EXCLUDE_NODES: Final = "spark.yarn.exclude.nodes"
POD_TEMPLATES: Final = ("spark.kubernetes.driver.podTemplateFile", "spark.kubernetes.executor.podTemplateFile")
HOSTNAME: Final = "kubernetes.io/hostname"
# The syntax of a Kubernetes label value, which every node name has.
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)


def exclude_nodes(ids: Iterable[str]) -> str:
    """Return the value of `spark.yarn.exclude.nodes`; empty if there is no node."""
    return ",".join(sorted(ids))


def pod_template(ids: Iterable[str]) -> str:
    """Return a pod template in YAML whose node affinity excludes these nodes; without nodes its spec is empty.

    Ids that are not valid label values are omitted; see `not_label_values`.
    """
    lines = ["apiVersion: v1", "kind: Pod"]
    if not (values := sorted(node_id for node_id in ids if _LABEL_VALUE.fullmatch(node_id))):
        # Kubernetes rejects a NotIn without values.
        return "\n".join([*lines, "spec: {}", ""])
    lines += [
        "spec:",
        "  affinity:",
        "    nodeAffinity:",
        "      requiredDuringSchedulingIgnoredDuringExecution:",
        "        nodeSelectorTerms:",
        "          - matchExpressions:",
        f"              - key: {HOSTNAME}",
        "                operator: NotIn",
        "                values:",
        *(
            f"                  - {json.dumps(value)}" for value in values
        ),  # quoted, as YAML reads 10 and off as other types
    ]
    return "\n".join([*lines, ""])


def not_label_values(ids: Collection[str]) -> list[str]:
    """Return the ids that are not valid label values, sorted."""
    return sorted(node_id for node_id in ids if not _LABEL_VALUE.fullmatch(node_id))


def confs(ids: Collection[str], template: str | None) -> dict[str, str]:
    """Return the Spark properties for these ids. `template` is the path of the pod template; None: not Kubernetes."""
    result = {EXCLUDE_NODES: exclude_nodes(ids)} if ids else {}
    return result if template is None else result | dict.fromkeys(POD_TEMPLATES, template)
