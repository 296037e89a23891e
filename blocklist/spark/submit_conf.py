"""Spark properties and a pod template that keep a new application's executors off blocked nodes. Pure.

They hold the list at submit time. Later blocks reach the running application through the agent. Kubernetes and YARN
compare names letter by letter, so all names of a blocked machine are there, as the inventory has them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from blocklist.wire.listeners import KnownNodeBody

EXCLUDE_NODES: Final = "spark.yarn.exclude.nodes"
POD_TEMPLATES: Final = ("spark.kubernetes.driver.podTemplateFile", "spark.kubernetes.executor.podTemplateFile")
HOSTNAME: Final = "kubernetes.io/hostname"
# The syntax of a Kubernetes label value.
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)
# The syntax of a node's name in Kubernetes.
_NODE_NAME: Final = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", re.ASCII
)


def blocked_names(ids: Iterable[str], inventory: Iterable[KnownNodeBody]) -> list[str]:
    """All names of the blocked machines: as they are on the list, and as the inventory has them, sorted."""
    names = set(ids)
    for node in inventory:
        if node.blocked:
            names |= {node.id, *node.names}
    return sorted(names)


def exclude_nodes(ids: Iterable[str]) -> str:
    """Return the value of `spark.yarn.exclude.nodes`; empty if there is no node."""
    return ",".join(sorted(ids))


def pod_template(names: Collection[str]) -> str:
    """Return a pod template in YAML whose node affinity excludes the nodes with these names; without any its spec is
    empty.

    Excluded are the names of nodes, which are in lower case, and the values of their label with the host name. A name
    that can be neither is omitted; see `not_node_names`.
    """
    lines = ["apiVersion: v1", "kind: Pod"]
    values = sorted({name for name in names if _LABEL_VALUE.fullmatch(name)})
    nodes = sorted({lower for name in names if _NODE_NAME.fullmatch(lower := name.lower())})
    if not (values or nodes):
        # Kubernetes rejects a NotIn without values.
        return "\n".join([*lines, "spec: {}", ""])
    lines += [
        "spec:",
        "  affinity:",
        "    nodeAffinity:",
        "      requiredDuringSchedulingIgnoredDuringExecution:",
        "        nodeSelectorTerms:",
    ]
    indent = "          - "
    if values:
        lines += [
            f"{indent}matchExpressions:",
            f"              - key: {HOSTNAME}",
            "                operator: NotIn",
            "                values:",
            # Quoted, as YAML reads 10 and off as other types.
            *(f"                  - {json.dumps(value)}" for value in values),
        ]
        indent = "            "
    if nodes:
        # Of the same term: all must hold. A field takes one value only.
        lines.append(f"{indent}matchFields:")
        lines += [
            f"              - {{key: metadata.name, operator: NotIn, values: [{json.dumps(it)}]}}" for it in nodes
        ]
    return "\n".join([*lines, ""])


def not_node_names(ids: Collection[str]) -> list[str]:
    """Return the ids that can neither be a node's name in Kubernetes nor the value of a label, sorted."""
    return sorted(it for it in ids if not (_LABEL_VALUE.fullmatch(it) or _NODE_NAME.fullmatch(it.lower())))


def confs(ids: Collection[str], template: str | None) -> dict[str, str]:
    """Return the Spark properties for these ids. `template` is the path of the pod template; None: not Kubernetes."""
    result = {EXCLUDE_NODES: exclude_nodes(ids)} if ids else {}
    return result if template is None else result | dict.fromkeys(POD_TEMPLATES, template)
