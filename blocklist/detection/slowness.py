"""Which hosts are slower than their peers, by how much, and since when. Pure.

docs/evidence/detection.md has the statistics.

The unit is a host in one application: its stages share executors, data and placement, so they are one observation. Each
host's last two, last three and all applications are tested, so that a healthy past hides no new fault.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from itertools import takewhile
from math import erfc, exp, log, log1p, sqrt
from statistics import fmean, median
from typing import Final

from blocklist.detection.node_summary import ApplicationFailures, Comparison, FailureClass, Metric, NodeSummary

MAX_BIAS: Final = log(1.1)
"""Logarithm of the slowdown that healthy hosts may have for good; the host must exceed it for certain."""
MIN_EFFECT: Final = log(1.2)
"""Logarithm of the slowdown from which a host is slow in an application: less harms nobody."""
MIN_SCALE: Final = 0.05
"""Minimum standard deviation of the logarithm between healthy hosts: few hosts can agree by chance."""
NEAR_MISS: Final = 0.01
"""p-value up to which a host that is not blamed is reported as a near miss."""
MAX_SLOW_PEERS: Final = 0.15
"""Share of the peers' observations that may be half as slow: if there are more, being slow is common, not a fault."""
MIN_SLOW_SHARE: Final = 0.5
"""Minimum share of the stages in which the host must be slow."""
ALIKE: Final = 2.0
"""Maximum ratio of two hosts' excess that may have the same design as its reason."""
WINDOWS: Final = (2, 3, None)
"""Numbers of latest applications that are tested; None: all."""


SEVERE_SLOWDOWN: Final = 3.0
"""Minimum slowdown at which running tasks are evacuated too."""
HOUR_MS: Final = 3_600_000
"""Milliseconds."""
MAX_NAMED: Final = 3
"""Maximum number of applications that a cause names."""
MAX_NAME: Final = 60
"""Maximum length of their names in a cause."""


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
    maximum share of the nodes that one run blocks; one node is always allowed. `canary`: whether one executor of each
    application stays on a node that is only slow.
    """

    alarm_rate: float = 0.01
    min_applications: int = 2
    min_stages: int = 3
    min_span_ms: int = 6 * 60_000
    block_ms: int = HOUR_MS
    max_block_ms: int = 7 * 24 * HOUR_MS
    max_share: float = 0.1
    canary: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class HurtApplication:
    """An application that a node has cost task time (`lost_ms`), from `first` on (Unix ms).

    A task occupies one core, so an hour of it is a core-hour.
    """

    app: str
    first: int
    lost_ms: int


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeFinding:
    """That a node is slow by a metric, or fails in one way (`subject`), with the `effect` in one sentence.

    `applications` are those that were tested, `hurt` those that the node has cost task time, from the first one on in
    which it differed. `p_value` is the probability of at least this evidence on a healthy node. `first_evidence` and
    `last_evidence` are Unix ms. `strangers` are hosts of other kinds of machine, which are no peers. `excuse`: why the
    node is not blamed for it; None if it is.
    """

    host: str
    subject: Metric | FailureClass
    severity: Severity
    effect: str
    p_value: float
    first_evidence: int
    last_evidence: int
    applications: tuple[str, ...]
    hurt: tuple[HurtApplication, ...]
    strangers: frozenset[str] = frozenset()
    excuse: str | None = None

    @property
    def sentence(self) -> str:
        """The effect, since when, and at whose expense."""
        return f"{self.effect}{_since(self.hurt)}"

    @property
    def near_miss(self) -> str:
        """That and why the node is not blamed."""
        return f"Node {self.host} is not blamed ({self.sentence}): {self.excuse}."


BY_METRIC: Final = {
    Metric.COMPUTE: "",
    Metric.NETWORK: " to fetch shuffle blocks",
    Metric.DISK: " to write shuffle blocks",
    Metric.START: " to fetch the code of a stage",
}
"""What a node is slower at."""


def _since(hurt: Sequence[HurtApplication]) -> str:
    """Since when, and at whose expense: the three applications that lost most. No comma."""
    if not hurt:
        return ""
    first = min(hurt, key=lambda it: (it.first, it.app))
    most = sorted(hurt, key=lambda it: (-it.lost_ms, it.app))
    shares = [f"{it.lost_ms / HOUR_MS:.2f} of {_short(it.app)}" for it in most[:MAX_NAMED]]
    others = [f"{len(most) - MAX_NAMED} more"] if len(most) > MAX_NAMED else []
    began = f"{datetime.fromtimestamp(first.first / 1000, UTC):%Y-%m-%d %H:%M}"
    total = sum(it.lost_ms for it in hurt) / HOUR_MS
    return f" since {began} ({_short(first.app)}); {total:.2f} core-hours lost ({' + '.join([*shares, *others])})"


def _short(app: str) -> str:
    """The application as a cause may name it: a log without an App ID is named by its file."""
    name = "".join(char if char.isprintable() and char != "," else "_" for char in app)
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"


def hurt_applications(found: Iterable[Comparison | ApplicationFailures]) -> tuple[HurtApplication, ...]:
    return tuple(HurtApplication(app=it.app, first=it.first, lost_ms=it.lost_ms) for it in found)


def find_slowness(summaries: Sequence[NodeSummary], rules: Rules, groups: Mapping[str, str]) -> Iterator[NodeFinding]:
    """Yield the slow hosts, and near misses with their excuse. `groups`: the kind of machine of each host, if known."""
    tables = [_Table(summaries, metric, groups, rules) for metric in Metric]
    tests = sum(len(table.windows(host)) for table in tables for host in table.hosts)
    for table in tables:
        for host in table.hosts:
            if found := table.worst(host, rules.alarm_rate / 2 / max(1, tests)):
                yield found


class _Table:
    """The hosts by applications, by one metric."""

    def __init__(
        self, summaries: Sequence[NodeSummary], metric: Metric, groups: Mapping[str, str], rules: Rules
    ) -> None:
        self._metric = metric
        self._rules = rules
        self._own = {node.host: node.comparisons_by(metric) for node in summaries}
        effects = {host: {it.app: log(it.slowdown) for it in own} for host, own in self._own.items() if own}
        self._slower = frozenset[str]() if groups else slower_by_design(effects, rules.min_applications)
        self._kinds = kinds = {host: groups.get(host, "slower" if host in self._slower else "") for host in effects}
        self._excess = _beyond_peers(effects, kinds)
        self._compared = {
            host: [it for it in own if it.app in self._excess.get(host, {})] for host, own in self._own.items()
        }
        self._by_application: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for host, own in self._excess.items():
            for app, excess in own.items():
                self._by_application[app][host] = excess

    @property
    def hosts(self) -> Sequence[str]:
        return sorted(self._own)

    def windows(self, host: str) -> Sequence[Sequence[Comparison]]:
        """The host's latest applications that are tested together. The same ones are tested once."""
        compared = self._compared[host]
        lengths = {min(length or len(compared), len(compared)) for length in WINDOWS}
        return [compared[-length:] for length in sorted(lengths) if length]

    def worst(self, host: str, limit: float) -> NodeFinding | None:
        """The window with the strongest evidence: one that is sufficient, if there is one; None: nothing to report.

        `limit`: maximum p-value of one test.
        """
        tested = [self._test(host, window, limit) for window in self.windows(host)]
        found = [it for it in tested if it is not None]
        return min(found, key=lambda it: (it.excuse is not None, it.p_value), default=self._alike(host))

    def _test(self, host: str, window: Sequence[Comparison], limit: float) -> NodeFinding | None:
        """One-sample t-test that the mean excess is above MAX_BIAS, with the robust deviation of the peers."""
        excess = [self._excess[host][it.app] for it in window]
        peers = [value for it in window for peer, value in self._by_application[it.app].items() if peer != host]
        error = max(MIN_SCALE, robust_deviation(peers)) / sqrt(len(excess))
        freedom, mean = max(1, len(peers) - 1), fmean(excess)
        p_value = student_tail((mean - MAX_BIAS) / error, freedom)
        if p_value > NEAR_MISS:
            return None
        margin = error * student_quantile(0.025, freedom)
        excuse = (
            self._excuse(window, excess)
            or chance(p_value, limit)
            or _of_few(excess, error * student_quantile(limit, freedom), self._rules.min_applications)
            or _common(peers, mean, len(window))
            or self._like_another(host, window, mean)
        )
        interval = (exp(mean), exp(mean - margin), exp(mean + margin))
        return self._finding(host, window, [*self._before(host, window[0]), *window], interval, p_value, excuse)

    def _finding(
        self,
        host: str,
        window: Sequence[Comparison],
        differing: Sequence[Comparison],
        interval: tuple[float, float, float],
        p_value: float,
        excuse: str | None,
    ) -> NodeFinding:
        """`differing`: all applications of an uninterrupted slowness, of which `window` are the latest.

        `interval`: the slowdown, and the ends of its 95 % confidence interval. No comma: a merge splits causes there.
        """
        slowdown, low, high = interval
        severe = self._metric is Metric.COMPUTE and slowdown >= SEVERE_SLOWDOWN
        return NodeFinding(
            host=host,
            subject=self._metric,
            severity=Severity.SEVERE if severe else Severity.SLOW,
            effect=f"{slowdown:.1f}x slower than its peers{BY_METRIC[self._metric]} in"
            f" {sum(it.slow_stages for it in window)} of {sum(it.stages for it in window)} stages"
            f" of {len(window)} applications (95 %: {low:.1f}x to {high:.1f}x)",
            p_value=p_value,
            first_evidence=min(it.first for it in differing),
            last_evidence=max(it.last for it in window),
            applications=tuple(it.app for it in window),
            hurt=hurt_applications(differing),
            strangers=frozenset(other for other, kind in self._kinds.items() if kind != self._kinds[host]),
            excuse=excuse,
        )

    def _before(self, host: str, first: Comparison) -> Sequence[Comparison]:
        """The last applications before this one, as long as the host was slow in each."""
        compared = self._compared[host]
        earlier = compared[: compared.index(first)]
        slow = takewhile(lambda it: self._excess[host][it.app] >= MIN_EFFECT, reversed(earlier))
        return list(slow)[::-1]

    def _excuse(self, window: Sequence[Comparison], excess: Sequence[float]) -> str | None:
        rules = self._rules
        if len(window) < rules.min_applications:
            return f"only {len(window)} of at least {rules.min_applications} applications"
        if min(excess) < MIN_EFFECT:
            return "not in each of these applications"
        stages, slow = sum(it.stages for it in window), sum(it.slow_stages for it in window)
        if slow < max(rules.min_stages, MIN_SLOW_SHARE * stages):
            return f"slow in only {slow} of {stages} stages"
        if max(it.last for it in window) - min(it.first for it in window) < rules.min_span_ms:
            return f"all within {rules.min_span_ms // 60_000} minutes: it may have passed"
        return None

    def _like_another(self, host: str, compared: Sequence[Comparison], excess: float) -> str | None:
        """The excuse that another host is as slow and neither was ever faster: their design may be the reason."""
        window = [it.app for it in compared]
        alike = [
            peer
            for peer, own in self._excess.items()
            if peer != host
            and all(app in own for app in window)
            and excess / ALIKE <= fmean(own[app] for app in window) <= excess * ALIKE
        ]
        always = [it for it in (host, *alike) if not self._had_healthy_past(it, window, excess)]
        if not alike or len(always) < 2 or host not in always:
            return None
        return f"{', '.join(always[1:])} is as slow, and neither was ever faster: perhaps slower by design"

    def _had_healthy_past(self, host: str, window: Sequence[str], excess: float) -> bool:
        """Whether it was far less slow in two applications or more before the window."""
        past = [value for app, value in self._excess[host].items() if app not in window]
        return len(past) >= 2 and median(past) < excess / 2

    def _alike(self, host: str) -> NodeFinding | None:
        """A host that is slower by design."""
        own = self._own[host]
        if host not in self._slower:
            return None
        slowdown = exp(median(log(it.slowdown) for it in own))
        excuse = f"{len(self._slower)} hosts are alike ({slowdown:.1f}x): slower by design"
        return self._finding(host, own, own, (slowdown, slowdown, slowdown), 1.0, excuse)


def chance(p_value: float, limit: float) -> str | None:
    """The excuse that healthy hosts may look like this by chance."""
    return f"chance could explain it (p = {p_value:.0e}, limit {limit:.0e})" if p_value > limit else None


def _of_few(excess: Sequence[float], needed: float, min_applications: int) -> str | None:
    """The excuse that fewer than `min_applications` have most of the evidence. `needed`: mean excess beyond MAX_BIAS.

    Of two applications, each must have half of what both need: another host may be slow in each by chance.
    """
    others = sorted(it - MAX_BIAS for it in excess)[: len(excess) - min_applications + 1]
    if sum(others) < needed * len(excess) / min_applications:
        return f"most of the evidence is of fewer than {min_applications} applications"
    return None


def _common(peers: Sequence[float], excess: float, applications: int) -> str | None:
    """The excuse that others are as often slow. One other host is always allowed: of two faults, each is one."""
    slow = sum(value >= excess / 2 for value in peers)
    if slow > applications and slow > MAX_SLOW_PEERS * len(peers):
        return f"other hosts are as slow in {slow} of {len(peers)} comparisons"
    return None


def _beyond_peers(effects: Mapping[str, Mapping[str, float]], kinds: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """By how much each host exceeds the median of the others of its kind, in applications with two others or more."""
    by_kind: defaultdict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for host, own in effects.items():
        for app, effect in own.items():
            by_kind[app, kinds[host]][host] = effect
    excess: dict[str, dict[str, float]] = {host: {} for host in effects}
    for (app, _), hosts in by_kind.items():
        for host in hosts if len(hosts) > 2 else ():
            excess[host][app] = hosts[host] - median(value for peer, value in hosts.items() if peer != host)
    return excess


# Robust statistics. Pure.

_NORMAL: Final = 1.4826
"""Standard deviations of a normal distribution per median absolute deviation."""


def scale(values: Sequence[float]) -> float:
    """Return the median absolute deviation as a standard deviation (Hampel 1974): half of the values may be wild."""
    centre = median(values)
    return _NORMAL * median(abs(value - centre) for value in values)


def robust_deviation(values: Sequence[float]) -> float:
    """Return the standard deviation around the median; what is further away than three times `scale` counts as that.

    The median absolute deviation alone varies more by chance: of few peers, it is often far too low or too high.
    """
    centre, furthest = median(values), 3 * scale(values)
    return sqrt(fmean(min(abs(value - centre), furthest) ** 2 for value in values))


def student_tail(t: float, freedom: float) -> float:
    """Return the probability that Student's t with these degrees of freedom is at least `t`.

    Wallace (1959), Bounds on normal approximations to Student's and the chi-square distributions: within 5 % of the
    probability down to 1e-5 from five degrees of freedom on.
    """
    z = (8 * freedom + 1) / (8 * freedom + 3) * sqrt(freedom * log1p(t * t / freedom))
    tail = erfc(z / sqrt(2)) / 2
    return tail if t >= 0 else 1 - tail


def student_quantile(probability: float, freedom: float) -> float:
    """Return the t that is exceeded with this probability, at most a half. By bisection."""
    low, high = 0.0, 1e6
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if student_tail(middle, freedom) > probability else (low, middle)
    return high


# Hosts that are slower by design: groups by labels, or by the gap between two kinds of machines. Pure.

Effects = Mapping[str, Mapping[str, float]]
"""The logarithm of the slowdown by host and application; the applications of a host are in the order of time."""
MIN_GAP: Final = log(1.15)
"""Minimum logarithm of the ratio between two kinds of machines."""
MIN_ALIKE: Final = 2
"""Minimum number of hosts of a kind: a single slow host is a fault unless a label says otherwise."""


def slower_by_design(effects: Effects, min_applications: int) -> frozenset[str]:
    """Return the hosts that are slower than the others, all by the same factor, and always were. Empty: no such kind.

    Two clusters in one dimension: the widest gap between the hosts' medians divides them, if the slower ones lie within
    half of that gap (single linkage). Faults rarely begin with the logs and rarely are alike.
    """
    usual = {host: median(own.values()) for host, own in effects.items() if len(own) >= min_applications}
    ordered = sorted(usual, key=lambda host: (usual[host], host))
    splits = range(MIN_ALIKE, len(ordered) - MIN_ALIKE + 1)
    if not splits:
        return frozenset()
    values = [usual[host] for host in ordered]
    split = max(splits, key=lambda place: values[place] - values[place - 1])
    gap, spread = values[split] - values[split - 1], values[-1] - values[split]
    if gap < MIN_GAP or spread > gap / 2:
        return frozenset()
    slower, middle = ordered[split:], values[split] - gap / 2
    lasting = all(_always(list(effects[host].values()), middle) for host in slower)
    return frozenset(slower) if lasting else frozenset()


def _always(values: Sequence[float], least: float) -> bool:
    """Whether a host was slow from the first two applications on, and in three quarters of all."""
    slow = [value > least for value in values]
    return any(slow[:2]) and sum(slow) >= 0.75 * len(slow)
