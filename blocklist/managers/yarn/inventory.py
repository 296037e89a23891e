"""The hosts of YARN as the inventory describes them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from blocklist.managers.yarn.cluster_state import YarnNode
from blocklist.managers.yarn.mark import MarkLabels
from blocklist.model.node_facts import NodeFacts, make_label_value


def describe(nodes: Iterable[YarnNode], marks: MarkLabels) -> list[NodeFacts]:
    """Each host with its rack, its own node label, its memory and its vcores as labels.

    Of several NodeManagers on a host a live one counts.
    """
    chosen: dict[str, YarnNode] = {}
    for node in nodes:
        if node.host not in chosen or (node.live and not chosen[node.host].live):
            chosen[node.host] = node
    return [NodeFacts(id=node.host, labels=_labels(node, marks)) for node in chosen.values()]


def _labels(node: YarnNode, marks: MarkLabels) -> list[tuple[str, str]]:
    mark = marks.mark(node.label)
    own = node.label if mark is None else mark.own
    capacity = node.capacity if mark is None or mark.capacity is None else mark.capacity
    rack = make_label_value(node.rack)
    labels = [("rack", rack)] if rack else []
    if own:
        labels.append((f"label.yarn/{make_label_value(own)}", ""))
    if node.live and not capacity.is_zero:
        labels += [("capacity.yarn/memory-mb", str(capacity.megabytes)), ("capacity.yarn/vcores", str(capacity.vcores))]
    return labels
