"""Which hosts each detector blames after each application of each run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.detection_quality import baselines
from benchmarks.detection_quality.direct import CollectedEvidence, collect_evidence
from benchmarks.detection_quality.facts import facts_table, host_name
from benchmarks.detection_quality.runs import SyntheticRun
from blocklist.detection.heuristics import judge
from blocklist.detection.node_summary import ApplicationFailures, Comparison, FailureClass, Metric, NodeSummary, tally
from blocklist.detection.slowness import Rules

OURS: Final = "blocklist.detection"
HEALTH_TRACKER: Final = "HealthTracker"
Z_SCORE: Final = "robust z-score"
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEvidence:
    """The rows of one run; `app` is the number of the application."""

    run: SyntheticRun
    host_applications: Rows
    failures: Rows
    tasks: Rows


@dataclass(frozen=True, kw_only=True, slots=True)
class QualityOutcome:
    """The hosts that a detector blamed after each application, from the first on."""

    kind: str
    seed: int
    past: int
    faulty: frozenset[int]
    blamed: Sequence[frozenset[int]]

    def found_after(self, applications: int) -> bool:
        """Whether all faulty hosts were blamed at most this number of applications after the fault began."""
        return self.faulty <= frozenset().union(*self.blamed[: self.past + applications])

    @property
    def false_blames(self) -> int:
        return len(frozenset().union(*self.blamed) - self.faulty)


def run_evidence(runs: Sequence[SyntheticRun]) -> list[RunEvidence]:
    """Collect the evidence of some runs at once."""
    found = collect_evidence(facts_table(runs))
    frames = {name: _by_run(getattr(found, name)) for name in CollectedEvidence.__slots__}
    return [RunEvidence(run=run, **{name: frame[run.name] for name, frame in frames.items()}) for run in runs]


def _by_run(frame: Any) -> dict[str, list[dict[str, Any]]]:
    rows: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in frame.to_dict("records"):
        name, _, number = row["app"].partition("/")
        rows[name].append(row | {"app": int(number)})
    return rows


def summaries(evidence: RunEvidence, applications: int) -> list[NodeSummary]:
    """What the first applications show about each node, as Analysis.summaries has it."""
    until = {name: [row for row in getattr(evidence, name) if row["app"] < applications] for name in _FRAMES}
    tasks: defaultdict[str, int] = defaultdict(int)
    for row in until["tasks"]:
        tasks[row["host"]] += int(row["tasks"])
    failures = tally({host: list(_failures(rows)) for host, rows in _by_host(until["failures"]).items()})
    compared = _by_host(until["host_applications"])
    return [
        NodeSummary(
            host=host,
            tasks=count,
            share=count / sum(tasks.values()),
            failures=failures.get(host, {}),
            comparisons=[_comparison(row) for row in compared[host]],
        )
        for host, count in sorted(tasks.items())
    ]


_FRAMES: Final = ("tasks", "failures", "host_applications")


def _by_host(rows: Rows) -> Mapping[str, list[Mapping[str, Any]]]:
    found: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        found[row["host"]].append(row)
    return found


def _comparison(row: Mapping[str, Any]) -> Comparison:
    numbers = {name: int(row[name]) for name in ("stages", "slow_stages", "lost_ms", "first", "last")}
    return Comparison(app=f"{row['app']:04d}", metric=Metric(row["metric"]), slowdown=float(row["slowdown"]), **numbers)


def _failures(rows: Rows) -> Iterable[ApplicationFailures]:
    """Those of one host."""
    grouped: defaultdict[tuple[str, int], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        grouped[row["failure"], row["app"]].append(row)
    for (failure, app), own in grouped.items():
        yield ApplicationFailures(
            app=f"{app:04d}",
            failure=FailureClass(failure),
            stages=len({row["stage"] for row in own}),
            tasks=int(sum(row["tasks"] for row in own)),
            lost_ms=int(sum(row["lost_ms"] for row in own)),
            first=int(min(row["last"] for row in own)),
            last=int(max(row["last"] for row in own)),
            partitions=frozenset(int(it) for row in own for it in row["partitions"]),
        )


def _blamed_by_ours(run: SyntheticRun, nodes: Sequence[NodeSummary]) -> Iterable[str]:
    """The hosts that the heuristics name: verdicts, and what the limit on their number leaves open."""
    groups = {host_name(run, host): group for host, group in run.conditions.groups.items()}
    judged = judge(nodes, Rules(), groups=groups)
    return [*(verdict.host for verdict in judged.verdicts), *judged.left_open]


def evaluate(evidence: RunEvidence) -> dict[str, QualityOutcome]:
    """Return the outcome of each detector."""
    run = evidence.run
    number = {host_name(run, host): host for host in range(run.hosts)}
    counts = range(1, len(run.applications) + 1)
    nodes = [summaries(evidence, count) for count in counts]
    blamed: dict[str, Sequence[Collection[int]]] = {
        OURS: [{number[host] for host in _blamed_by_ours(run, seen)} for seen in nodes],
        HEALTH_TRACKER: [baselines.excluded(run.applications[:count]) for count in counts],
        Z_SCORE: [baselines.robust_outliers(run.applications[:count]) for count in counts],
    }
    return {
        name: QualityOutcome(
            kind=run.kind,
            seed=run.seed,
            past=run.conditions.past,
            faulty=run.conditions.faulty,
            blamed=[frozenset(hosts) for hosts in found],
        )
        for name, found in blamed.items()
    }
