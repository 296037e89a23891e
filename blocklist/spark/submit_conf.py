"""What a Spark application is told at submit time, so that it gets no executors on blocked nodes. Pure.

It is the list of that moment: a later block reaches the running application by the agent, not by this.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from typing import Final

EXCLUDE_NODES: Final = "spark.yarn.exclude.nodes"
POD_TEMPLATES: Final = ("spark.kubernetes.driver.podTemplateFile", "spark.kubernetes.executor.podTemplateFile")
HOSTNAME: Final = "kubernetes.io/hostname"
# What the value of a Kubernetes label may be; no node can have any other.
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)


def exclude_nodes(ids: Iterable[str]) -> str:
    """The value of `spark.yarn.exclude.nodes`: names as YARN knows its nodes; empty for none."""
    return ",".join(sorted(ids))


def pod_template(ids: Iterable[str]) -> str:
    """A pod template in YAML that keeps pods off these nodes; without any it asks for nothing.

    Ids that no label of a node could be are left out: see `unfit`.
    """
    lines = ["apiVersion: v1", "kind: Pod"]
    if not (values := sorted(node_id for node_id in ids if _LABEL_VALUE.fullmatch(node_id))):
        # NotIn with no value at all is refused by Kubernetes.
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
        *(f"                  - {json.dumps(value)}" for value in values),  # in quotes: 10 and off are strings
    ]
    return "\n".join([*lines, ""])


def not_label_values(ids: Collection[str]) -> list[str]:
    """The ids that a pod template cannot name."""
    return sorted(node_id for node_id in ids if not _LABEL_VALUE.fullmatch(node_id))


def confs(ids: Collection[str], template: str | None) -> dict[str, str]:
    """Spark's confs for this list; `template` is where the pod template stands, None for no Kubernetes."""
    result = {EXCLUDE_NODES: exclude_nodes(ids)} if ids else {}
    return result if template is None else result | dict.fromkeys(POD_TEMPLATES, template)
