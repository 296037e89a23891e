"""Which hosts are slower than their peers, by how much, and since when. Pure.

docs/evidence/detection.md has the statistics.

The unit is a host in one application: its stages share executors, data and placement, so they are one observation. Each
host's last two, last three and all applications are tested, so that a healthy past hides no new fault.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from math import erfc, exp, log, log1p, sqrt
from statistics import fmean, median
from typing import Final

from blocklist.detection.node_summary import Comparison, Metric, NodeSummary

MIN_EFFECT: Final = log(1.2)
"""Logarithm of the slowdown that the host must exceed for certain, and in each application: less harms nobody."""
MIN_SCALE: Final = 0.05
"""Minimum standard deviation of the logarithm between healthy hosts: few hosts can agree by chance."""
NEAR_MISS: Final = 0.01
"""p-value up to which a host that is not blamed is reported as a near miss."""
MAX_SLOW_PEERS: Final = 0.15
"""Share of the peers' observations that may be half as slow: if there are more, being slow is common, not a fault."""
MIN_SLOW_SHARE: Final = 0.4
"""Minimum share of the stages in which the host must be slow (FLIP-168): a median may come from few."""
ALIKE: Final = 2.0
"""Maximum ratio of two hosts' excess that may have the same design as its reason."""
WINDOWS: Final = (2, 3, None)
"""Numbers of latest applications that are tested; None: all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slowness:
    """A host that is slow by one metric in its latest applications.

    `slowdown` has the 95 % confidence interval from `low` to `high`. `first` and `last` (Unix ms) are the start and the
    end of the evidence. `differing` are all applications in which it has been slow without interruption, the first one
    included; `comparisons` are the latest of them. `strangers` are hosts of other kinds. `excuse`: why it is not
    blamed; None if it is.
    """

    host: str
    metric: Metric
    slowdown: float
    low: float
    high: float
    p_value: float
    comparisons: Sequence[Comparison]
    differing: Sequence[Comparison]
    strangers: frozenset[str]
    excuse: str | None = None

    @property
    def first(self) -> int:
        return min(it.first for it in self.comparisons)

    @property
    def last(self) -> int:
        return max(it.last for it in self.comparisons)


@dataclass(frozen=True, kw_only=True, slots=True)
class SlownessLimits:
    """When a host is slow. `alarm_rate`: maximum probability that a run over healthy hosts finds any of them slow."""

    alarm_rate: float
    min_applications: int
    min_stages: int
    min_span_ms: int


def find_slowness(
    summaries: Sequence[NodeSummary], limits: SlownessLimits, groups: Mapping[str, str]
) -> Iterator[Slowness]:
    """Yield the slow hosts, and near misses with their excuse. `groups`: the kind of machine of each host, if known."""
    tables = [_Table(summaries, metric, groups, limits) for metric in Metric]
    tests = sum(len(table.windows(host)) for table in tables for host in table.hosts)
    for table in tables:
        for host in table.hosts:
            if found := table.worst(host, limits.alarm_rate / max(1, tests)):
                yield found


class _Table:
    """The hosts by applications, by one metric."""

    def __init__(
        self, summaries: Sequence[NodeSummary], metric: Metric, groups: Mapping[str, str], limits: SlownessLimits
    ) -> None:
        self._metric = metric
        self._limits = limits
        self._own = {node.host: node.comparisons_by(metric) for node in summaries}
        effects = {host: {it.app: log(it.slowdown) for it in own} for host, own in self._own.items() if own}
        self._slower = frozenset[str]() if groups else slower_by_design(effects, limits.min_applications)
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

    def worst(self, host: str, limit: float) -> Slowness | None:
        """The window with the strongest evidence: one that is sufficient, if there is one; None: nothing to report.

        `limit`: maximum p-value of one test.
        """
        tested = [self._test(host, window, limit) for window in self.windows(host)]
        found = [it for it in tested if it is not None]
        return min(found, key=lambda it: (it.excuse is not None, it.p_value), default=self._alike(host))

    def _test(self, host: str, window: Sequence[Comparison], limit: float) -> Slowness | None:
        """One-sample t-test that the mean excess is above MIN_EFFECT, with the robust scale of the peers."""
        excess = [self._excess[host][it.app] for it in window]
        peers = [value for it in window for peer, value in self._by_application[it.app].items() if peer != host]
        error = max(MIN_SCALE, scale(peers)) / sqrt(len(excess))
        freedom, mean = max(1, len(peers) - 1), fmean(excess)
        p_value = student_tail((mean - MIN_EFFECT) / error, freedom)
        if p_value > NEAR_MISS:
            return None
        margin = error * student_quantile(0.025, freedom)
        found = Slowness(
            host=host,
            metric=self._metric,
            slowdown=exp(mean),
            low=exp(mean - margin),
            high=exp(mean + margin),
            p_value=p_value,
            comparisons=window,
            differing=[*self._before(host, window[0]), *window],
            strangers=self._strangers(host),
        )
        excuse = (
            self._excuse(found, excess, limit) or _common(peers, mean, len(window)) or self._like_another(found, mean)
        )
        return replace(found, excuse=excuse)

    def _before(self, host: str, first: Comparison) -> Sequence[Comparison]:
        """The last applications before this one, as long as the host was slow in each."""
        compared = self._compared[host]
        earlier = compared[: compared.index(first)]
        slow = takewhile(lambda it: self._excess[host][it.app] >= MIN_EFFECT, reversed(earlier))
        return list(slow)[::-1]

    def _excuse(self, found: Slowness, excess: Sequence[float], limit: float) -> str | None:
        limits, window = self._limits, found.comparisons
        if len(window) < limits.min_applications:
            return f"only {len(window)} of at least {limits.min_applications} applications"
        if min(excess) < MIN_EFFECT:
            return "not in each of these applications"
        with_slow_stages = sum(it.slow_stages > 0 for it in window)
        if with_slow_stages < limits.min_applications:  # The evidence could be that of one application.
            return f"slow stages in only {with_slow_stages} of at least {limits.min_applications} applications"
        stages, slow = sum(it.stages for it in window), sum(it.slow_stages for it in window)
        if slow < max(limits.min_stages, MIN_SLOW_SHARE * stages):
            return f"slow in only {slow} of {stages} stages"
        if found.last - found.first < limits.min_span_ms:
            return f"all within {limits.min_span_ms // 60_000} minutes: it may have passed"
        return chance(found.p_value, limit)

    def _like_another(self, found: Slowness, excess: float) -> str | None:
        """The excuse that another host is as slow and neither was ever faster: their design may be the reason."""
        window = [it.app for it in found.comparisons]
        alike = [
            peer
            for peer, own in self._excess.items()
            if peer != found.host
            and all(app in own for app in window)
            and excess / ALIKE <= fmean(own[app] for app in window) <= excess * ALIKE
        ]
        always = [host for host in (found.host, *alike) if not self._had_healthy_past(host, window, excess)]
        if not alike or len(always) < 2 or found.host not in always:
            return None
        return f"{', '.join(always[1:])} is as slow, and neither was ever faster: perhaps slower by design"

    def _had_healthy_past(self, host: str, window: Sequence[str], excess: float) -> bool:
        """Whether it was far less slow in two applications or more before the window."""
        past = [value for app, value in self._excess[host].items() if app not in window]
        return len(past) >= 2 and median(past) < excess / 2

    def _alike(self, host: str) -> Slowness | None:
        """A host that is slower by design."""
        own = self._own[host]
        if host not in self._slower:
            return None
        slowdown = exp(median(log(it.slowdown) for it in own))
        excuse = f"{len(self._slower)} hosts are alike ({slowdown:.1f}x): slower by design"
        return Slowness(
            host=host,
            metric=self._metric,
            slowdown=slowdown,
            low=slowdown,
            high=slowdown,
            p_value=1.0,
            comparisons=own,
            differing=own,
            strangers=self._strangers(host),
            excuse=excuse,
        )

    def _strangers(self, host: str) -> frozenset[str]:
        return frozenset(other for other, kind in self._kinds.items() if kind != self._kinds[host])


def chance(p_value: float, limit: float) -> str | None:
    """The excuse that healthy hosts may look like this by chance."""
    return f"chance could explain it (p = {p_value:.0e}, limit {limit:.0e})" if p_value > limit else None


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
