"""Decide which nodes to block and why: NodeSummary -> NodeVerdict. Pure. docs/detection.md has the statistics.

Two tests per node: is it slower than its peers in more stages and applications than chance explains? Do failures that
machines cause concentrate on it?
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from math import exp, floor, lgamma, log, log1p
from typing import Final

from blocklist.detection.node_summary import (
    CHARGED_TO_NODE,
    COUNTED_BY_TASK,
    SLOWDOWN_THRESHOLD,
    FailureClass,
    NodeSummary,
)
from blocklist.model.node import BlockAction

SEVERE_SLOWDOWN: Final = 3.0
"""Minimum slowdown at which running tasks are evacuated too."""
HOUR_MS: Final = 3_600_000
"""Milliseconds."""


_TESTS_PER_NODE: Final = 1 + len(CHARGED_TO_NODE)


class Severity(IntEnum):
    """The most severe verdicts are applied first."""

    SLOW = 1
    FAILING = 2
    SEVERE = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """Thresholds for a verdict.

    `alarm_rate`: maximum probability that a run over healthy nodes blames any of them, as far as the null hypothesis
    holds. `block_ms`: length of a first block; each earlier block doubles it, up to `max_block_ms`. `max_share`:
    maximum share of the nodes that one run blocks; one node is always allowed.
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
    """Return the verdicts, most severe first, and for each node left open because of `max_share` a sentence."""
    limit = rules.alarm_rate / max(1, _TESTS_PER_NODE * len(summaries))
    found = {
        node.host: anomalies
        for node in summaries
        if (anomalies := list(_find_anomalies(node, summaries, rules, limit)))
    }
    verdicts = [_verdict(host, anomalies, rules) for host, anomalies in found.items()]
    verdicts.sort(key=lambda verdict: (-verdict.severity, verdict.p_value, verdict.host))
    total = len(summaries)
    max_blocks = max(1, floor(rules.max_share * total))
    limit_text = f"one run blocks at most {max_blocks} of {total} nodes"
    left_open = {
        verdict.host: f"Node {verdict.host} is not blocked ({verdict.cause}): {limit_text}."
        for verdict in verdicts[max_blocks:]
    }
    return verdicts[:max_blocks], left_open


def _find_anomalies(node: NodeSummary, peers: Sequence[NodeSummary], rules: Rules, limit: float) -> Iterable[_Anomaly]:
    if len(peers) < 3:
        return  # of two nodes it cannot be known which one is slow
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
    """Double the length of the block for each earlier block of the node, up to `max_block_ms`."""
    return replace(verdict, end=verdict.last_evidence + min(rules.max_block_ms, rules.block_ms * 2 ** min(earlier, 20)))


def _verdict(host: str, anomalies: Sequence[_Anomaly], rules: Rules) -> NodeVerdict:
    severity = max(anomaly.severity for anomaly in anomalies)
    evacuate = severity is Severity.SEVERE
    last_evidence = max(anomaly.last_evidence for anomaly in anomalies)
    return NodeVerdict(
        host=host,
        severity=severity,
        action=BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS if evacuate else BlockAction.MARK_BLOCKED,
        # Not a comma: a merge splits causes at commas.
        cause="; ".join(anomaly.sentence for anomaly in anomalies),
        last_evidence=last_evidence,
        end=last_evidence + rules.block_ms,
        p_value=min(anomaly.p_value for anomaly in anomalies),
    )


def binomial_tail(successes: int, trials: int, probability: float) -> float:
    """Return the probability of at least `successes` in `trials` independent trials.

    If the trials have different probabilities with this mean, it is an upper bound, provided that `successes` exceeds
    the expected number by at least one (Hoeffding 1956, On the distribution of the number of successes in independent
    trials).
    """
    if successes <= 0 or (probability >= 1 and successes <= trials):
        return 1.0
    if successes > trials or probability <= 0:
        return 0.0
    terms = (exp(_log_probability(count, trials, probability)) for count in range(successes, trials + 1))
    return min(1.0, sum(terms))


def _log_probability(count: int, trials: int, probability: float) -> float:
    combinations = lgamma(trials + 1) - lgamma(count + 1) - lgamma(trials - count + 1)
    return combinations + count * log(probability) + (trials - count) * log1p(-probability)
