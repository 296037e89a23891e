"""Decide which nodes to block and why: NodeSummary -> NodeVerdict. Pure. docs/detection.md has the statistics.

Two questions per node: is it slower than its peers in more applications than chance explains (slowness.py)? Do failures
that machines cause concentrate on it?
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from math import exp, floor, lgamma, log, log1p
from typing import Final

from blocklist.detection.node_summary import (
    CHARGED_TO_NODE,
    COUNTED_BY_TASK,
    FailureClass,
    Metric,
    NodeSummary,
)
from blocklist.detection.slowness import TESTS, Slowness, SlownessLimits, find_slowness
from blocklist.model.node import BlockAction

SEVERE_SLOWDOWN: Final = 3.0
"""Minimum slowdown at which running tasks are evacuated too."""
HOUR_MS: Final = 3_600_000
"""Milliseconds."""


_PASSING: Final = (FailureClass.LOST_EXECUTOR, FailureClass.FETCH, FailureClass.SLOW_SERVER)
"""Failures that a restart or a neighbour may cause for a few minutes."""


class Severity(IntEnum):
    """The most severe verdicts are applied first."""

    SLOW = 1
    FAILING = 2
    SEVERE = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """Thresholds for a verdict.

    `alarm_rate`: maximum probability that a run over healthy nodes blames any of them, as far as the null hypothesis
    holds. `min_span_ms`: minimum time from the first to the last evidence; what ends sooner was a neighbour or a
    restart. `block_ms`: length of a first block; each earlier block doubles it, up to `max_block_ms`. `max_share`:
    maximum share of the nodes that one run blocks; one node is always allowed.
    """

    alarm_rate: float = 0.01
    min_applications: int = 2
    min_stages: int = 3
    min_span_ms: int = 6 * 60_000
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """The verdicts, most severe first, and a sentence for each node that is not blocked although it looks slow.

    `left_open`: because of `max_share`. `near_misses`: because the evidence is not sufficient. Both by host.
    """

    verdicts: Sequence[NodeVerdict]
    left_open: Mapping[str, str]
    near_misses: Mapping[str, str]


def judge(
    summaries: Sequence[NodeSummary],
    rules: Rules,
    is_stale: Callable[[NodeVerdict], bool] = lambda _: False,
    groups: Mapping[str, str] | None = None,
) -> Judgement:
    """Judge all nodes. `groups`: the kind of machine of each node; nodes of other kinds are no peers.

    Verdicts that are stale block nothing any more, so they do not count in `max_share`.
    """
    anomalies, near_misses = _find_anomalies(summaries, rules, groups or {})
    verdicts = [_verdict(host, found, rules) for host, found in anomalies.items()]
    verdicts.sort(key=lambda verdict: (-verdict.severity, verdict.p_value, verdict.host))
    total = len(summaries)
    max_blocks = max(1, floor(rules.max_share * total))
    limit_text = f"one run blocks at most {max_blocks} of {total} nodes"
    effective = [verdict for verdict in verdicts if not is_stale(verdict)]
    left_open = {
        verdict.host: f"Node {verdict.host} is not blocked ({verdict.cause}): {limit_text}."
        for verdict in effective[max_blocks:]
    }
    return Judgement(
        verdicts=[verdict for verdict in verdicts if verdict.host not in left_open],
        left_open=left_open,
        near_misses={host: text for host, text in near_misses.items() if host not in anomalies},
    )


def _find_anomalies(
    summaries: Sequence[NodeSummary], rules: Rules, groups: Mapping[str, str]
) -> tuple[Mapping[str, Sequence[_Anomaly]], Mapping[str, str]]:
    """What is wrong with each node, and near misses."""
    found: defaultdict[str, list[_Anomaly]] = defaultdict(list)
    near_misses: dict[str, str] = {}
    if len(summaries) < 3:
        return found, near_misses  # of two nodes it cannot be known which one is slow
    # Bonferroni, half of the alarm rate for slowness and half for failures.
    each = rules.alarm_rate / 2 / len(summaries)
    limit = each / len(CHARGED_TO_NODE)
    limits = SlownessLimits(
        p_value=each / TESTS,
        min_applications=rules.min_applications,
        min_stages=rules.min_stages,
        min_span_ms=rules.min_span_ms,
    )
    for slowness in find_slowness(summaries, limits, groups):
        if slowness.excuse is None:
            found[slowness.host].append(_slow(slowness))
        else:
            near_misses.setdefault(
                slowness.host, f"Node {slowness.host} is not blamed ({describe(slowness)}): {slowness.excuse}."
            )
    for node in summaries:
        kinds = (kind for kind in CHARGED_TO_NODE if kind in node.failures)
        failing = (_find_failures(node, kind, summaries, rules, limit) for kind in kinds)
        if anomalies := [anomaly for anomaly in failing if anomaly]:
            found[node.host] += anomalies
    return found, near_misses


def _slow(slowness: Slowness) -> _Anomaly:
    severe = slowness.metric is Metric.COMPUTE and slowness.slowdown >= SEVERE_SLOWDOWN
    return _Anomaly(
        severity=Severity.SEVERE if severe else Severity.SLOW,
        sentence=describe(slowness),
        p_value=slowness.p_value,
        last_evidence=slowness.last,
    )


_BY_METRIC: Final = {
    Metric.COMPUTE: "",
    Metric.NETWORK: " to fetch shuffle blocks",
    Metric.DISK: " to write shuffle blocks",
}


def describe(slowness: Slowness) -> str:
    """Return the evidence in one sentence, with its 95 % interval. No comma: a merge splits causes at commas."""
    stages = sum(it.stages for it in slowness.comparisons)
    slow = sum(it.slow_stages for it in slowness.comparisons)
    return (
        f"{slowness.slowdown:.1f}x slower than its peers{_BY_METRIC[slowness.metric]} in {slow} of {stages} stages"
        f" of {len(slowness.comparisons)} applications"
        f" (95 %: {slowness.low:.1f}x to {slowness.high:.1f}x; {slowness.lost_ms / HOUR_MS:.2f} task hours lost)"
    )


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
    if kind is FailureClass.ONLY_THERE and failures.stages < rules.min_stages:
        return None
    if kind in _PASSING and failures.last - failures.first < rules.min_span_ms:
        return None
    p_value = binomial_tail(count, everywhere, max(1 / len(peers), node.share))
    if p_value > limit:
        return None
    sentence = (
        f"{kind} in {count} {unit} of {failures.applications} applications"
        f" and in {everywhere - count} on all other nodes together"
    )
    severe = kind in {FailureClass.DISK_FULL, FailureClass.IO_ERROR}
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
