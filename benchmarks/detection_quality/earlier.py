"""The heuristics before applications became the unit of evidence, for comparison: slow stages against chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor
from typing import Final

from blocklist.detection.heuristics import binomial_tail
from blocklist.detection.node_summary import CHARGED_TO_NODE, COUNTED_BY_TASK, FailureClass, NodeSummary

_ALARM_RATE: Final = 0.01
_LIMIT_SHARE: Final = 0.1


def blamed_by_stages(summaries: Sequence[NodeSummary]) -> frozenset[str]:
    """Hosts that were slow in at least half of their stages, or failed, more often than chance explains."""
    limit = _ALARM_RATE / (7 * len(summaries))
    chances = {node.host: _p_value(node, len(summaries), limit) for node in summaries}
    found: Mapping[str, float] = {host: value for host, value in chances.items() if value is not None}
    most = max(1, floor(_LIMIT_SHARE * len(summaries)))
    return frozenset(sorted(found, key=lambda host: (found[host], host))[:most])


def _p_value(node: NodeSummary, nodes: int, limit: float) -> float | None:
    values = [_slowness(node), *(_failures(node, kind, nodes) for kind in CHARGED_TO_NODE if kind in node.failures)]
    return min((value for value in values if value is not None and value <= limit), default=None)


def _slowness(node: NodeSummary) -> float | None:
    if node.slow_applications < 2 or node.slow_stages < 3 or node.slow_stages < 0.5 * node.stages:
        return None
    return binomial_tail(node.slow_stages, node.stages, node.expected / node.stages) if node.slowdown >= 1.5 else None


def _failures(node: NodeSummary, kind: FailureClass, nodes: int) -> float | None:
    failures = node.failures[kind]
    by_task = kind in {*COUNTED_BY_TASK, FailureClass.ONLY_THERE}
    count, everywhere = (failures.tasks, failures.all_tasks) if by_task else (failures.stages, failures.all_stages)
    if failures.applications < 2 or count < 3:
        return None
    return binomial_tail(count, everywhere, max(1 / nodes, node.share))
