"""Which claims of detection are removed before they end: those on nodes that have recovered. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from blocklist.detection.heuristics import Rules
from blocklist.detection.node_summary import CHARGED_TO_NODE, Metric, NodeSummary
from blocklist.detection.proposals import own_claim
from blocklist.detection.slowness import MIN_EFFECT
from blocklist.model.changes import Change


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """A node whose claim may be removed, with the latest applications, in which it was as good as its peers."""

    host: str
    applications: Sequence[str]

    @property
    def reason(self) -> str:
        return (
            f"as good as its peers in its latest {len(self.applications)} applications: {', '.join(self.applications)}"
        )


def release(node: NodeSummary, rules: Rules) -> Release | None:
    """The release of a node; None if it was not compared in enough applications, or is not clean.

    `node` has only evidence from after the claim was last changed: of applications that still used the node. As many
    applications, stages and minutes are needed as for a verdict. In the latest of them the node must not be slower than
    its peers by any time, and no failure may be charged to it.
    """
    latest = node.comparisons_by(Metric.COMPUTE)[-rules.min_applications :]
    apps = [it.app for it in latest]
    enough = len(apps) == rules.min_applications and sum(it.stages for it in latest) >= rules.min_stages
    if not enough or latest[-1].last - min(it.first for it in latest) < rules.min_span_ms:
        return None
    slow = any(it.app in apps and log(it.slowdown) >= MIN_EFFECT for it in node.comparisons)
    charged = (node.failures[kind] for kind in CHARGED_TO_NODE if kind in node.failures)
    failed = any(it.last >= min(own.first for own in latest) for failures in charged for it in failures.by_application)
    return None if slow or failed else Release(host=node.host, applications=apps)


def claimed_at(history: Sequence[Change]) -> int | None:
    """When the claim of detection got its present form (Unix ms); None if there is no such claim."""
    found = own_claim(history)
    if found is None:
        return None
    at = history[-1].at
    for change in reversed(history):
        if own_claim([change]) != found:
            break
        at = change.at
    return at
