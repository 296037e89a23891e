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
from blocklist.detection.node_summary import BY_TASK, CHARGED, MULTIPLIER, Failure, NodeSummary
from blocklist.model.node import BlockAction

SEVERE: Final = 3.0
"""From so many times on running tasks are evacuated, too."""
HOUR: Final = 3_600_000
"""Milliseconds."""


_TESTS: Final = 1 + len(CHARGED)


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
    applications: int = 2
    stages: int = 3
    majority: float = 0.5
    length: int = HOUR
    longest: int = 7 * 24 * HOUR
    share: float = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What is proposed. `cause` is the evidence in one sentence, `seen` its last moment, and `end` the block's.

    Both are in Unix ms. `chance` is the probability of as much evidence on a healthy node. The same logs lead to the
    same verdict.
    """

    host: str
    severity: Severity
    action: BlockAction
    cause: str
    seen: int
    end: int
    chance: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Finding:
    severity: Severity
    sentence: str
    chance: float
    seen: int


def judge(summaries: Sequence[NodeSummary], rules: Rules) -> tuple[list[Verdict], dict[str, str]]:
    """The verdicts, the worst first, and for each node that was found bad but is left open the sentence why."""
    limit = rules.alarm_rate / max(1, _TESTS * len(summaries))
    found = {own.host: findings for own in summaries if (findings := list(_findings(own, summaries, rules, limit)))}
    verdicts = [_verdict(host, findings, rules) for host, findings in found.items()]
    verdicts.sort(key=lambda own: (-own.severity, own.chance, own.host))
    room = max(1, math.floor(rules.share * len(summaries)))
    left = {
        own.host: f"Node {own.host} is left open ({own.cause}): one run blocks at most {room} of {len(summaries)}."
        for own in verdicts[room:]
    }
    return verdicts[:room], left


def _findings(own: NodeSummary, peers: Sequence[NodeSummary], rules: Rules, limit: float) -> Iterable[_Finding]:
    if len(peers) < 3:
        return  # of two nodes nobody can say which one is the slow one
    if finding := _slow(own, rules, limit):
        yield finding
    for kind in CHARGED:
        if kind in own.failures and (finding := _failing(own, kind, peers, rules, limit)):
            yield finding


def _slow(own: NodeSummary, rules: Rules, limit: float) -> _Finding | None:
    if own.slow_applications < rules.applications or own.slow_stages < rules.stages:
        return None
    if own.slowdown < MULTIPLIER or own.slow_stages < rules.majority * own.stages:
        return None
    chance = binomial_tail(own.slow_stages, own.stages, own.expected / own.stages)
    if chance > limit:
        return None
    sentence = (
        f"{own.slowdown:.1f}x slower than its peers in {own.slow_stages} of {own.stages} stages"
        f" of {own.slow_applications} applications"
    )
    severity = Severity.SEVERE if own.slowdown >= SEVERE else Severity.SLOW
    return _Finding(severity=severity, sentence=sentence, chance=chance, seen=own.slow_last)


def _failing(
    own: NodeSummary, kind: Failure, peers: Sequence[NodeSummary], rules: Rules, limit: float
) -> _Finding | None:
    mine = own.failures[kind]
    unit = "tasks" if kind in BY_TASK else "stages"
    count, everywhere = (mine.tasks, mine.all_tasks) if kind in BY_TASK else (mine.stages, mine.all_stages)
    if mine.applications < rules.applications or count < rules.stages:
        return None
    chance = binomial_tail(count, everywhere, max(1 / len(peers), own.share))
    if chance > limit:
        return None
    sentence = (
        f"{kind} in {count} {unit} of {mine.applications} applications"
        f" and in {everywhere - count} on all other nodes together"
    )
    severe = kind in BY_TASK
    severity = Severity.SEVERE if severe else Severity.FAILING
    return _Finding(severity=severity, sentence=sentence, chance=chance, seen=mine.last)


def longer(verdict: Verdict, rules: Rules, earlier: int) -> Verdict:
    """The verdict on a node that was blocked so many times before: each doubles the length."""
    return replace(verdict, end=verdict.seen + min(rules.longest, rules.length * 2 ** min(earlier, 20)))


def _verdict(host: str, findings: Sequence[_Finding], rules: Rules) -> Verdict:
    severity = max(finding.severity for finding in findings)
    evacuate = severity is Severity.SEVERE
    seen = max(finding.seen for finding in findings)
    return Verdict(
        host=host,
        severity=severity,
        action=BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS if evacuate else BlockAction.MARK_BLOCKED,
        # A comma would part it in two causes when it is merged.
        cause="; ".join(finding.sentence for finding in findings),
        seen=seen,
        end=seen + rules.length,
        chance=min(finding.chance for finding in findings),
    )
