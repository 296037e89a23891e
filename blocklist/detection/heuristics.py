"""Decide which nodes to block and why: NodeSummary -> NodeVerdict. Pure. docs/evidence/detection.md has the statistics.

Two questions per node: is it slower than its peers in more applications than chance explains (slowness.py)? Do failures
that machines cause concentrate on it?
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import exp, lgamma, log, log1p
from typing import Final

from blocklist.detection.node_summary import (
    CHARGED_TO_NODE,
    COUNTED_BY_PARTITION,
    COUNTED_BY_TASK,
    MIN_HOSTS,
    FailureClass,
    FailureCounts,
    NodeSummary,
)
from blocklist.detection.slowness import (
    NEAR_MISS,
    HurtApplication,
    NodeFinding,
    Rules,
    Severity,
    chance,
    find_slowness,
    hurt_applications,
)
from blocklist.model.limits import share_of
from blocklist.model.node import MAX_CAUSE_LENGTH, BlockAction

_PASSING: Final = (FailureClass.LOST_EXECUTOR, FailureClass.FETCH, FailureClass.SLOW_SERVER)
"""Failures that a restart or a neighbour may cause for a few minutes."""


_MANY_TASKS: Final = (FailureClass.SLOW_SERVER, FailureClass.ALL_THERE)
"""Failures by which a node gets more tasks than others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeVerdict:
    """A proposed block; the same logs give the same verdict.

    `cause` is the evidence in one sentence, `first_evidence` and `last_evidence` the times of the earliest and the
    latest of it, and `end` the end of the block, all in Unix ms. `p_value` is the probability of at least this evidence
    on a healthy node. `hurt` are the applications that the node has cost task time, from the first one on in which it
    differed. `findings` are what it rests on. `canary`: whether the block leaves one executor of each application.
    """

    host: str
    severity: Severity
    action: BlockAction
    cause: str
    first_evidence: int
    last_evidence: int
    end: int
    p_value: float
    hurt: tuple[HurtApplication, ...] = ()
    findings: tuple[NodeFinding, ...] = ()
    canary: bool = False

    @property
    def since(self) -> HurtApplication | None:
        """The first application in which the node differed."""
        return min(self.hurt, key=lambda it: (it.first, it.app), default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """The verdicts, most severe first, and a sentence for each node that is not blocked although it looks slow.

    `left_open`: because of `max_share`. `near_misses`: because the evidence is not sufficient. Both by host.
    """

    verdicts: Sequence[NodeVerdict]
    left_open: Mapping[str, str]
    near_misses: Mapping[str, str]
    left_open_verdicts: Sequence[NodeVerdict] = ()
    near_miss_findings: Sequence[NodeFinding] = ()
    limit_text: str = ""


def judge(
    summaries: Sequence[NodeSummary],
    rules: Rules,
    is_stale: Callable[[NodeVerdict], bool] = lambda _: False,
    groups: Mapping[str, str] | None = None,
    confirmed: int | None = None,
) -> Judgement:
    """Judge all nodes. `groups`: the kind of machine of each node; nodes of other kinds are no peers.

    Verdicts that are stale block nothing any more, so they do not count in `max_share`. It is a share of the
    `confirmed` nodes, because a log may name any; None: of all.
    """
    anomalies, doubtful = _find_anomalies(summaries, rules, groups or {})
    verdicts = [_verdict(host, found, rules) for host, found in anomalies.items()]
    near_misses = [finding for host, finding in doubtful.items() if host not in anomalies]
    verdicts.sort(key=lambda verdict: (-verdict.severity, verdict.p_value, verdict.host))
    total = len(summaries) if confirmed is None else confirmed
    max_blocks = share_of(rules.max_share, total)
    limit_text = f"one run blocks at most {max_blocks} of {total} nodes"
    if confirmed is not None:
        limit_text += " that the service's inventory or logs of two file owners name"
    effective = [verdict for verdict in verdicts if not is_stale(verdict)]
    left_open = {
        verdict.host: f"Node {verdict.host} is not blocked ({_evidence(verdict.findings)}): {limit_text}."
        for verdict in effective[max_blocks:]
    }
    return Judgement(
        verdicts=[verdict for verdict in verdicts if verdict.host not in left_open],
        left_open=left_open,
        near_misses={finding.host: finding.near_miss for finding in near_misses},
        left_open_verdicts=effective[max_blocks:],
        near_miss_findings=near_misses,
        limit_text=limit_text,
    )


def _find_anomalies(
    summaries: Sequence[NodeSummary], rules: Rules, groups: Mapping[str, str]
) -> tuple[Mapping[str, Sequence[NodeFinding]], Mapping[str, NodeFinding]]:
    """What is wrong with each node, and the near miss of each."""
    found: defaultdict[str, list[NodeFinding]] = defaultdict(list)
    near_misses: dict[str, NodeFinding] = {}
    if len(summaries) < MIN_HOSTS:
        return found, near_misses  # of two nodes it cannot be known which one is slow
    # Half of the alarm rate is for slowness and half for failures.
    limit = _failure_limit(summaries, rules.alarm_rate / 2)
    slow = find_slowness(summaries, rules, groups)
    failing = (
        finding
        for node in summaries
        for kind in CHARGED_TO_NODE
        if kind in node.failures and (finding := _find_failures(node, kind, summaries, rules, limit)) is not None
    )
    for finding in chain(slow, failing):
        if finding.excuse is None:
            found[finding.host].append(finding)
        else:
            near_misses.setdefault(finding.host, finding)
    return found, near_misses


def _find_failures(
    node: NodeSummary, kind: FailureClass, peers: Sequence[NodeSummary], rules: Rules, limit: float
) -> NodeFinding | None:
    """The anomaly or near miss; None if chance may explain the failures."""
    failures = node.failures[kind]
    unit, count, everywhere = _counted(failures, kind)
    p_value = binomial_tail(count, everywhere, _share(node, kind, peers))
    excuse = _excuse(failures, kind, rules) or chance(p_value, limit)
    if excuse and (p_value > NEAR_MISS or count < 2):
        return None
    severe = kind in {FailureClass.DISK_FULL, FailureClass.IO_ERROR}
    return NodeFinding(
        host=node.host,
        subject=kind,
        severity=Severity.SEVERE if severe else Severity.FAILING,
        effect=f"{kind} in {count} {unit} of {failures.applications} applications"
        f" and in {everywhere - count} on all other nodes together",
        p_value=p_value,
        first_evidence=failures.first,
        last_evidence=failures.last,
        applications=tuple(it.app for it in failures.by_application),
        hurt=hurt_applications(failures.by_application),
        excuse=excuse,
    )


def _share(node: NodeSummary, kind: FailureClass, peers: Sequence[NodeSummary]) -> float:
    """The probability that a failure hits this node by chance: where most tasks run, most of them fail.

    A slow server is not slow because it has many tasks: it has many because the others wait for it. A node on which
    every task fails in a second has many because it is free again at once.
    """
    equal = 1 / len(peers)
    return equal if kind in _MANY_TASKS else max(equal, node.share)


def _failure_limit(summaries: Sequence[NodeSummary], alarm_rate: float) -> float:
    """The maximum p-value of one node's failures of one class, so that the alarm rate holds for all together.

    Tarone (1990), A modified Bonferroni method for discrete data: a node and a class count as a test only if they could
    be below the limit at all, with all failures of the class on this node.
    """
    everywhere = {kind: _counted(found, kind)[2] for node in summaries for kind, found in node.failures.items()}
    least = sorted(
        binomial_tail(total, total, _share(node, kind, summaries))
        for kind, total in everywhere.items()
        if kind in CHARGED_TO_NODE
        for node in summaries
    )
    tests = next(number for number in range(1, len(least) + 2) if bisect_right(least, alarm_rate / number) <= number)
    return alarm_rate / tests


def _counted(failures: FailureCounts, kind: FailureClass) -> tuple[str, int, int]:
    """What is counted, on this node and on all."""
    if kind in COUNTED_BY_PARTITION:
        return "partitions", failures.partitions, failures.all_partitions
    if kind in COUNTED_BY_TASK:
        return "tasks", failures.tasks, failures.all_tasks
    return "stages", failures.stages, failures.all_stages


def _excuse(failures: FailureCounts, kind: FailureClass, rules: Rules) -> str | None:
    """Why these failures are not sufficient, however improbable they are."""
    unit, count, _ = _counted(failures, kind)
    if failures.applications < rules.min_applications:
        return f"only {failures.applications} of at least {rules.min_applications} applications"
    if count < rules.min_stages:
        return f"only {count} of at least {rules.min_stages} {unit}"
    if kind is FailureClass.ONLY_THERE and failures.stages < rules.min_stages:
        return f"only {failures.stages} of at least {rules.min_stages} stages"
    if kind in _PASSING and failures.last - failures.first < rules.min_span_ms:
        return f"all within {rules.min_span_ms // 60_000} minutes: it may have passed"
    return None


def extend_for_repeats(verdict: NodeVerdict, rules: Rules, earlier: int) -> NodeVerdict:
    """Double the length of the block for each earlier block of the node, up to `max_block_ms`."""
    return replace(verdict, end=verdict.last_evidence + min(rules.max_block_ms, rules.block_ms * 2 ** min(earlier, 20)))


def _verdict(host: str, anomalies: Sequence[NodeFinding], rules: Rules) -> NodeVerdict:
    severity = max(anomaly.severity for anomaly in anomalies)
    evacuate = severity is Severity.SEVERE
    last_evidence = max(anomaly.last_evidence for anomaly in anomalies)
    return NodeVerdict(
        host=host,
        severity=severity,
        action=BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS if evacuate else BlockAction.MARK_BLOCKED,
        cause=_cause(anomalies, rules),
        first_evidence=min(anomaly.first_evidence for anomaly in anomalies),
        last_evidence=last_evidence,
        end=last_evidence + rules.block_ms,
        p_value=min(anomaly.p_value for anomaly in anomalies),
        hurt=_without_repetition(it for anomaly in anomalies for it in anomaly.hurt),
        findings=tuple(anomalies),
        canary=rules.canary and severity is Severity.SLOW,
    )


def _cause(anomalies: Sequence[NodeFinding], rules: Rules) -> str:
    """The evidence, as far as it fits, and what would end the block. Not a comma: a merge splits causes at commas."""
    end = f"; {_early_end(rules)}"
    evidence, room = _evidence(anomalies), MAX_CAUSE_LENGTH - len(end)
    return f"{evidence if len(evidence) <= room else f'{evidence[: room - 1]}…'}{end}"


def _evidence(anomalies: Sequence[NodeFinding]) -> str:
    return "; ".join(anomaly.sentence for anomaly in anomalies)


def _early_end(rules: Rules) -> str:
    """What ends the block before its end, as proposals.release has it."""
    count, minutes = rules.min_applications, rules.min_span_ms // 60_000
    span = f" over {minutes} minutes" if minutes else ""
    found = f"1 application{span} finds" if count == 1 else f"{count} applications{span} find"
    return f"ends early once {found} it as good as its peers"


def _without_repetition(hurt: Iterable[HurtApplication]) -> tuple[HurtApplication, ...]:
    """One entry for each application, in the order of time: it lost what the worst anomaly cost it."""
    by_app: defaultdict[str, list[HurtApplication]] = defaultdict(list)
    for it in hurt:
        by_app[it.app].append(it)
    merged = (
        HurtApplication(app=app, first=min(it.first for it in own), lost_ms=max(it.lost_ms for it in own))
        for app, own in by_app.items()
    )
    return tuple(sorted(merged, key=lambda it: (it.first, it.app)))


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
