"""Evidence against nodes from what Flink itself notices. Pure.

Two things count: Flink's speculative execution blocked the node as slow, or tasks of the job failed there again and
again. What this bridge causes, blocks and evacuations, is not evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from blocklist.flink.state import OWN_REASON, FlinkJob
from blocklist.model.evidence import Finding, FindingKind
from blocklist.model.node import is_node_id

FAILURE_WINDOW: Final = 600_000
"""Milliseconds for which a failure counts."""
MIN_FAILURES: Final = 3
"""Number of failures within the window that are evidence."""


def job_evidence(
    job: FlinkJob, slow_nodes: Collection[str], node_of: Callable[[str], str], now: int
) -> dict[str, Finding]:
    """Node id to finding. `slow_nodes` are those that Flink blocked by itself; `now` is in Unix milliseconds."""
    used = {node_of(task_manager) for task_manager in job.running()}
    found = {
        node: Finding(kind=FindingKind.SLOW, reason="Flink's speculative execution blocked the node as slow.")
        for node in used & set(slow_nodes)
    }
    counts: dict[str, int] = {}
    for failure in job.failures:
        if failure.task_manager is not None and now - failure.at < FAILURE_WINDOW and OWN_REASON not in failure.text:
            node = node_of(failure.task_manager)
            counts[node] = counts.get(node, 0) + 1
    for node, failures in counts.items():
        if failures >= MIN_FAILURES:
            reason = f"Tasks of the job failed {failures} times on the node within 10 minutes."
            found[node] = Finding(kind=FindingKind.EXCLUDED, reason=reason)
    return {node: finding for node, finding in found.items() if is_node_id(node)}
