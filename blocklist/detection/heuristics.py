"""Which nodes are to be blocked, and why: NodeSummary -> Verdict. Pure.

Two questions for each node. Is it slower than its peers: in so many stages, and of so many applications, that chance
cannot have done it? Do failures that a machine causes gather on it? docs/detection.md has the statistics.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from blocklist.detection.binomial import binomial_tail
from blocklist.detection.node_summary import (
    CHARGED_TO_NODE,
    COUNTED_BY_TASK,
    SLOWDOWN_THRESHOLD,
    FailureClass,
    NodeSummary,
)
from blocklist.model.node import BlockAction

SEVERE_SLOWDOWN: Final = 3.0
"""From so many times on running tasks are evacuated, too."""
HOUR_MS: Final = 3_600_000
"""Milliseconds."""


_TESTS_PER_NODE: Final = 1 + len(CHARGED_TO_NODE)


class Severity(IntEnum):
    """How bad it is. The worse is blocked first."""

    SLOW = 1
    FAILING = 2
    SEVERE = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What a verdict takes.

    `alarm_rate`: the probability that a run over healthy nodes blames any of them is at most this, as far as the null
    hypothesis holds. `length` is that of a first block in milliseconds; each earlier block doubles it, up to
    `longest`. At most `share` of the nodes are blocked in one run, but one may always be.
    """

    alarm_rate: float = 0.01
    min_applications: int = 2
    min_stages: int = 3
    min_slow_share: float = 0.5
    block_ms: int = HOUR_MS
    max_block_ms: int = 7 * 24 * HOUR_MS
    max_share: float = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeVerdict:
    """A proposed block; the same logs give the same verdict.

    `cause` is the evidence in one sentence, `last_evidence` the time of the latest of it and `end` the end of the
    block, both in Unix ms. `p_value` is the probability of at least this evidence on a healthy node.
    """

    host: str
    severity: Severity
    action: BlockAction
    cause: str
    last_evidence: int
    end: int
    p_value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Anomaly:
    severity: Severity
    sentence: str
    p_value: float
    last_evidence: int


def judge(summaries: Sequence[NodeSummary], rules: Rules) -> tuple[list[NodeVerdict], dict[str, str]]:
    """The verdicts, the worst first, and for each node that was found bad but is left open the sentence why."""
    limit = rules.alarm_rate / max(1, _TESTS_PER_NODE * len(summaries))
    found = {
        node.host: anomalies
        for node in summaries
        if (anomalies := list(_find_anomalies(node, summaries, rules, limit)))
    }
    verdicts = [_verdict(host, anomalies, rules) for host, anomalies in found.items()]
    verdicts.sort(key=lambda node: (-node.severity, node.p_value, node.host))
    room = max(1, math.floor(rules.max_share * len(summaries)))
    left_open = {
        node.host: f"Node {node.host} is left open ({node.cause}): one run blocks at most {room} of {len(summaries)}."
        for node in verdicts[room:]
    }
    return verdicts[:room], left_open


def _find_anomalies(node: NodeSummary, peers: Sequence[NodeSummary], rules: Rules, limit: float) -> Iterable[_Anomaly]:
    if len(peers) < 3:
        return  # of two nodes nobody can say which one is the slow one
    if anomaly := _find_slowness(node, rules, limit):
        yield anomaly
    for kind in CHARGED_TO_NODE:
        if kind in node.failures and (anomaly := _find_failures(node, kind, peers, rules, limit)):
            yield anomaly


def _find_slowness(node: NodeSummary, rules: Rules, limit: float) -> _Anomaly | None:
    if node.slow_applications < rules.min_applications or node.slow_stages < rules.min_stages:
        return None
    if node.slowdown < SLOWDOWN_THRESHOLD or node.slow_stages < rules.min_slow_share * node.stages:
        return None
    p_value = binomial_tail(node.slow_stages, node.stages, node.expected / node.stages)
    if p_value > limit:
        return None
    sentence = (
        f"{node.slowdown:.1f}x slower than its peers in {node.slow_stages} of {node.stages} stages"
        f" of {node.slow_applications} applications"
    )
    severity = Severity.SEVERE if node.slowdown >= SEVERE_SLOWDOWN else Severity.SLOW
    return _Anomaly(severity=severity, sentence=sentence, p_value=p_value, last_evidence=node.slow_last)


def _find_failures(
    node: NodeSummary, kind: FailureClass, peers: Sequence[NodeSummary], rules: Rules, limit: float
) -> _Anomaly | None:
    failures = node.failures[kind]
    unit = "tasks" if kind in COUNTED_BY_TASK else "stages"
    count, everywhere = (
        (failures.tasks, failures.all_tasks) if kind in COUNTED_BY_TASK else (failures.stages, failures.all_stages)
    )
    if failures.applications < rules.min_applications or count < rules.min_stages:
        return None
    p_value = binomial_tail(count, everywhere, max(1 / len(peers), node.share))
    if p_value > limit:
        return None
    sentence = (
        f"{kind} in {count} {unit} of {failures.applications} applications"
        f" and in {everywhere - count} on all other nodes together"
    )
    severe = kind in COUNTED_BY_TASK
    severity = Severity.SEVERE if severe else Severity.FAILING
    return _Anomaly(severity=severity, sentence=sentence, p_value=p_value, last_evidence=failures.last)


def extend_for_repeats(verdict: NodeVerdict, rules: Rules, earlier: int) -> NodeVerdict:
    """The verdict on a node that was blocked so many times before: each doubles the length."""
    return replace(verdict, end=verdict.last_evidence + min(rules.max_block_ms, rules.block_ms * 2 ** min(earlier, 20)))


def _verdict(host: str, anomalies: Sequence[_Anomaly], rules: Rules) -> NodeVerdict:
    severity = max(anomaly.severity for anomaly in anomalies)
    evacuate = severity is Severity.SEVERE
    last_evidence = max(anomaly.last_evidence for anomaly in anomalies)
    return NodeVerdict(
        host=host,
        severity=severity,
        action=BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS if evacuate else BlockAction.MARK_BLOCKED,
        # A comma would part it in two causes when it is merged.
        cause="; ".join(anomaly.sentence for anomaly in anomalies),
        last_evidence=last_evidence,
        end=last_evidence + rules.block_ms,
        p_value=min(anomaly.p_value for anomaly in anomalies),
    )
