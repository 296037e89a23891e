"""A self-contained HTML report: the verdicts with what convinces, costs, near misses and what was left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from blocklist.detection.heuristics import Judgement, NodeVerdict
from blocklist.detection.host_comparison import KIND, STAGE, comparable
from blocklist.detection.node_summary import CHARGED_TO_NODE, FailureClass, HostInApplication, Metric, NodeSummary
from blocklist.detection.pipeline import Analysis
from blocklist.detection.proposals import History, Proposal, format_time, proposal_row, unblocked_at
from blocklist.detection.report_plots import (
    BINS,
    INTERVALS,
    MAX_STAGES,
    BlockHistory,
    CountsPicture,
    FailureBin,
    FindingKey,
    Runs,
    Spans,
    Spread,
    StageFailures,
    Stages,
    StageTimes,
    Timeline,
    TimesPicture,
    count_of,
    counts_picture,
    span_of,
    timeline,
    times_picture,
)
from blocklist.detection.slowness import HOUR_MS, NodeFinding
from blocklist.model.errors import InvalidError
from blocklist.model.node import PERMANENT

MAX_PICTURED: Final = 20
"""Maximum number of nodes with pictures: the first, which are the most severe."""
MAX_ROWS: Final = 500
"""Maximum number of rows of a table, and of notes."""
MAX_COSTS: Final = 50
"""Maximum number of applications in the table of costs: those that lost most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlamedNode:
    """A node with a verdict: what is done about it, and its history at the service; None if no service was asked.

    Evidence before `since` (Unix ms) does not count.
    """

    verdict: NodeVerdict
    status: str
    history: BlockHistory | None
    since: int = 0

    @property
    def host(self) -> str:
        return self.verdict.host

    @property
    def failure_classes(self) -> Sequence[FailureClass]:
        """Those that are looked at over time: of its findings if it fails, else all that are events of a machine."""
        found = [it.subject for it in self.verdict.findings if isinstance(it.subject, FailureClass)]
        return found or [it for it in CHARGED_TO_NODE if it is not FailureClass.SLOW_SERVER]


@dataclass(frozen=True, kw_only=True, slots=True)
class FindingView:
    """A finding with the stages that are shown, each with its picture; of `hidden` others, the node was slow in
    `hidden_slow`.
    """

    finding: NodeFinding
    stages: Sequence[tuple[StageTimes | StageFailures, TimesPicture | CountsPicture]] = ()
    hidden: int = 0
    hidden_slow: int = 0

    @property
    def is_failure(self) -> bool:
        return isinstance(self.finding.subject, FailureClass) and not self.is_server

    @property
    def is_server(self) -> bool:
        return self.finding.subject is FailureClass.SLOW_SERVER


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeView:
    """A node with a verdict, and its pictures; no timeline if there are too many nodes.

    `failures`: the classes that the timeline shows.
    """

    node: BlamedNode
    findings: Sequence[FindingView]
    failures: str = ""
    timeline: Timeline | None = None

    @property
    def lost_ms(self) -> int:
        return sum(it.lost_ms for it in self.node.verdict.hurt)


def blamed_nodes(
    proposals: Sequence[Proposal], judgement: Judgement, history: History | None, *, applied: bool
) -> list[BlamedNode]:
    """The nodes with verdicts: those that are proposed, and those that one run may not block. `history`: None without
    a service.
    """
    proposed = [(it.verdict, proposal_row(it, applied=applied)["what"]) for it in proposals]
    left_open = [(it, f"not blocked: {judgement.limit_text}") for it in judgement.left_open_verdicts]
    return [_blamed(verdict, status, history) for verdict, status in (*proposed, *left_open)]


def _blamed(verdict: NodeVerdict, status: str, history: History | None) -> BlamedNode:
    try:
        changes = () if history is None else history(verdict.host)
    except InvalidError:
        changes = ()  # what cannot be a node of the service was never blocked
    at = unblocked_at(changes)
    return BlamedNode(
        verdict=verdict,
        status=status,
        history=None if history is None else BlockHistory.of(changes),
        since=at if verdict.first_evidence >= at else 0,
    )


def render(
    analysis: Analysis,
    *,
    nodes: Sequence[BlamedNode],
    near_misses: Sequence[NodeFinding],
    summaries: Sequence[NodeSummary],
    releases: Sequence[str],
    notes: Sequence[str],
) -> str:
    """Return the page. `releases` and `notes` are sentences; `notes` name what was skipped."""
    views = _node_views(analysis, nodes)
    blamed = {it.host for it in nodes} | {it.host for it in near_misses}
    others = [node for node in summaries if node.host not in blamed]
    return _environment(application_totals(analysis, _applications(views, near_misses))).render(
        totals=log_totals(analysis),
        compared_stages=analysis.host_stages.select(*STAGE).distinct().count(),
        views=views,
        costs=_costs(nodes),
        near_misses=near_misses,
        summaries=summaries,
        releases=releases,
        notes=notes,
        others=sorted(others, key=lambda node: (-node.slowdown, node.host)),
        max_rows=MAX_ROWS,
        max_pictured=MAX_PICTURED,
        max_costs=MAX_COSTS,
    )


def _node_views(analysis: Analysis, nodes: Sequence[BlamedNode]) -> list[NodeView]:
    if not nodes:
        return []
    pictured, others = nodes[:MAX_PICTURED], nodes[MAX_PICTURED:]
    stages: Mapping[FindingKey, Stages[Any]] = {
        **slow_stages(analysis, pictured),
        **slow_server_stages(analysis, pictured),
        **failed_stages(analysis, pictured),
    }
    runs = runs_on(analysis, [it.host for it in pictured])
    spans = {it.host: span_of(runs[it.host], it.history) for it in pictured}
    failures = failures_over_time(analysis, pictured, spans)
    views = [
        NodeView(
            node=it,
            findings=[_finding_view(finding, stages) for finding in it.verdict.findings],
            failures=", ".join(it.failure_classes),
            timeline=timeline(it.verdict, runs[it.host], it.history, failures[it.host], it.since, spans[it.host]),
        )
        for it in pictured
    ]
    plain = (
        NodeView(node=it, findings=[FindingView(finding=finding) for finding in it.verdict.findings]) for it in others
    )
    return [*views, *plain]


def _finding_view(finding: NodeFinding, found: Mapping[FindingKey, Stages[Any]]) -> FindingView:
    subject = finding.subject
    stages = found.get((finding.host, subject.value), Stages(shown=[], total=0))
    shown = stages.shown
    most = max((max(it.own, it.peer_max) for it in shown if isinstance(it, StageFailures)), default=1)
    return FindingView(
        finding=finding,
        stages=[
            (it, counts_picture(it, subject, most) if isinstance(it, StageFailures) else times_picture(it, subject))
            for it in shown
        ],
        hidden=stages.total - len(shown),
        hidden_slow=stages.slow - sum(isinstance(it, StageTimes) and it.slow for it in shown),
    )


def _costs(nodes: Sequence[BlamedNode]) -> list[tuple[str, int, Sequence[tuple[str, int]]]]:
    """What the nodes have cost each application, in all and each (ms), the one that lost most first."""
    found: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    for it in nodes:
        for hurt in it.verdict.hurt:
            found[hurt.app].append((it.host, hurt.lost_ms))
    costs = [
        (app, sum(lost for _, lost in own), sorted(own, key=lambda it: (-it[1], it[0]))) for app, own in found.items()
    ]
    return sorted(costs, key=lambda it: (-it[1], it[0]))


def _applications(views: Sequence[NodeView], near_misses: Sequence[NodeFinding]) -> set[str]:
    """All that the page names."""
    findings = [*(it.finding for view in views for it in view.findings), *near_misses]
    runs = [row.run.app for view in views if view.timeline for row in view.timeline.runs]
    return {*(it.app for finding in findings for it in finding.hurt), *runs}


def _environment(applications: Mapping[str, Row]) -> Template:
    environment = Environment(
        loader=PackageLoader("blocklist.detection", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"utc": _utc, "core_hours": _core_hours, "count": count_of}
    environment.globals |= {"applications": applications}
    return environment.get_template("report.html.j2")


def _utc(millis: int) -> str:
    return "permanent" if millis == PERMANENT else format_time(millis)


def _core_hours(millis: float) -> str:
    """Two digits, or as many as show that it is not nothing."""
    hours = millis / HOUR_MS
    return f"{hours:,.2f}" if hours >= 0.1 or not hours else f"{hours:.2g}"


# FACTS, HOST_STAGES and FAILURES -> the numbers of the report (report_plots.py).
#
# Spark computes quantiles and sums of a bounded number of stages: no tasks are collected.

_FINDING: Final = ("suspect", "subject")
_FINDINGS: Final = "suspect string, subject string, app string, since bigint, strangers array<string>"
_CHOSEN: Final = "app string, stage bigint, attempt bigint, suspect string, subject string, strangers array<string>"


def log_totals(analysis: Analysis) -> Row:
    """What was read: the times of the first and the last event (Unix ms; None without events), and numbers."""
    (row,) = analysis.facts.agg(
        F.min("time").alias("begin"),
        F.max("time").alias("end"),
        F.countDistinct("app").alias("applications"),
        F.coalesce(F.sum(F.when(F.col("kind") == "task", F.col("duration"))), F.lit(0)).alias("time_ms"),
    ).collect()
    return row


def application_totals(analysis: Analysis, apps: Iterable[str]) -> dict[str, Row]:
    """The names of these applications, and the time of all their tasks."""
    facts = analysis.facts.where(F.col("app").isin(sorted(apps)))
    rows = facts.groupBy("app").agg(
        F.max(F.when(F.col("kind") == "application", F.col("detail"))).alias("name"),
        F.coalesce(F.sum(F.when(F.col("kind") == "task", F.col("duration"))), F.lit(0)).alias("time_ms"),
    )
    return {row["app"]: row for row in rows.collect()}


def runs_on(analysis: Analysis, hosts: Sequence[str]) -> Runs:
    """What each application shows about these hosts."""
    found: defaultdict[str, list[HostInApplication]] = defaultdict(list)
    for run in sorted(analysis.evidence(hosts), key=lambda it: (it.first, it.app)):
        found[run.host].append(run)
    return found


def failures_over_time(analysis: Analysis, suspects: Sequence[BlamedNode], spans: Spans) -> dict[str, list[FailureBin]]:
    """The failures of each of these hosts, and of all other nodes, over its span."""
    rows = [
        (it.host, failure.value, begin, max(1, -(-(end - begin + 1) // BINS)))
        for it in suspects
        for begin, end in [spans[it.host]]
        for failure in it.failure_classes
    ]
    wanted = _frame(analysis, rows, "suspect string, failure string, begin bigint, width bigint")
    is_own = F.col("host") == F.col("suspect")
    bins = (
        analysis.failures.join(F.broadcast(wanted), "failure")
        .withColumn("column", F.floor((F.col("last") - F.col("begin")) / F.col("width")))
        .where(F.col("column").between(0, BINS - 1))
        .groupBy("suspect", "column", "host")
        .agg(F.sum("tasks").alias("tasks"))
        .groupBy("suspect", "column")
        .agg(
            *(
                F.coalesce(value, F.lit(0)).alias(name)
                for name, value in {
                    "own": F.sum(F.when(is_own, F.col("tasks"))),
                    "others": F.sum(F.when(~is_own, F.col("tasks"))),
                    "peer_max": F.max(F.when(~is_own, F.col("tasks"))),
                }.items()
            )
        )
    )
    found: dict[str, list[FailureBin]] = {it.host: [] for it in suspects}
    for row in bins.orderBy("column").collect():
        values = row.asDict()
        found[values.pop("suspect")].append(FailureBin(**values))
    return found


def slow_stages(analysis: Analysis, suspects: Sequence[BlamedNode]) -> dict[FindingKey, Stages[StageTimes]]:
    """The task times of each slow host against those of its peers, in the stages in which it spent most time."""
    if (findings := _findings(analysis, suspects, [*Metric])) is None:
        return {}
    chosen = _most(
        analysis.host_stages.drop("by_partition")  # not to collect tasks
        .withColumnRenamed("metric", "subject")
        .join(findings, ["app", "subject"])
        .where((F.col("host") == F.col("suspect")) & (F.col("first") >= F.col("since"))),
        "time_ms",
        F.col("slow"),
    ).collect()
    if not chosen:
        return {}
    stages = _chosen(analysis, chosen)
    usual, spreads = _usual_slowdowns(analysis, stages), _spreads(_of_own_kinds(analysis, stages))
    return _stage_times(chosen, spreads, lambda row: row["slowdown"] / usual.get(_key(row), 1.0))


def slow_server_stages(analysis: Analysis, suspects: Sequence[BlamedNode]) -> dict[FindingKey, Stages[StageTimes]]:
    """The fetch wait of each host that serves slowly against that of its peers, where these waited most."""
    if (findings := _findings(analysis, suspects, [FailureClass.SLOW_SERVER])) is None:
        return {}
    chosen = _most(
        analysis.failures.withColumnRenamed("failure", "subject")
        .join(findings, ["app", "subject"])
        .where((F.col("host") == F.col("suspect")) & (F.col("last") >= F.col("since"))),
        "lost_ms",
        F.lit(True),
    ).collect()
    if not chosen:
        return {}
    stages = _chosen(analysis, chosen)
    waiting = (
        _comparable_in(analysis, stages)
        .where(F.col("remote_bytes") > 0)
        .withColumn("value", F.coalesce("fetch_wait_ms", F.lit(0)) / 1000)
    )
    spreads = _spreads(waiting)
    return _stage_times(
        chosen, spreads, lambda row: spreads[_key(row), False].median / max(0.001, spreads[_key(row), True].median)
    )


def failed_stages(analysis: Analysis, suspects: Sequence[BlamedNode]) -> dict[FindingKey, Stages[StageFailures]]:
    """The failures of each failing host against those of its peers, in the stages in which it failed most."""
    # Because of a slow server, no task fails.
    failing = [it for it in FailureClass if it is not FailureClass.SLOW_SERVER]
    if (findings := _findings(analysis, suspects, failing)) is None:
        return {}
    is_own = F.col("host") == F.col("suspect")
    counted = (
        analysis.failures.withColumnRenamed("failure", "subject")
        .join(findings, ["app", "subject"])
        .where(~is_own | (F.col("last") >= F.col("since")))
        .groupBy(*STAGE, *_FINDING, "strangers")
        .agg(
            F.sum(F.when(is_own, F.col("tasks"))).alias("own"),
            F.coalesce(F.sum(F.when(~is_own, F.col("tasks"))), F.lit(0)).alias("others"),
            F.coalesce(F.max(F.when(~is_own, F.col("tasks"))), F.lit(0)).alias("peer_max"),
            F.max("last").alias("last"),
        )
    )
    chosen = _most(counted.where(F.col("own") > 0), "own", F.lit(False)).collect()
    if not chosen:
        return {}
    stages = _chosen(analysis, chosen)
    ended = (
        analysis.facts.where((F.col("kind") == "task") & F.col("host").isNotNull())
        .join(F.broadcast(stages), [*STAGE])
        .groupBy(*STAGE, *_FINDING)
        .agg(
            F.count_if(is_own).alias("own_tasks"),
            F.count_if(~is_own).alias("peer_tasks"),
            F.countDistinct(F.when(~is_own, F.col("host"))).alias("peer_hosts"),
        )
    )
    tasks = {_key(row): row for row in ended.collect()}
    found: defaultdict[FindingKey, list[StageFailures]] = defaultdict(list)
    for row in chosen:
        of_stage = tasks[_key(row)]
        found[row["suspect"], row["subject"]].append(
            StageFailures(
                **{name: row[name] for name in (*STAGE, "last", "own", "others", "peer_max")},
                **{name: of_stage[name] for name in ("own_tasks", "peer_tasks", "peer_hosts")},
            )
        )
    return {key: Stages(shown=own, **_counts(chosen, key)) for key, own in found.items()}


def _findings(
    analysis: Analysis, suspects: Sequence[BlamedNode], wanted: Collection[Metric | FailureClass]
) -> DataFrame | None:
    """A row for each finding about one of these subjects and each of its applications; None if there is none."""
    rows = [
        (suspect.host, finding.subject.value, app, suspect.since, sorted(finding.strangers))
        for suspect in suspects
        for finding in suspect.verdict.findings
        if finding.subject in wanted
        for app in finding.applications
    ]
    return F.broadcast(_frame(analysis, rows, _FINDINGS)) if rows else None


def _most(stages: DataFrame, weight: str, slow: Column) -> DataFrame:
    """Of each finding the MAX_STAGES stages with most weight, in the order of time, with the numbers of all."""
    finding = Window.partitionBy(*_FINDING)
    return (
        stages.withColumn("is_slow", slow)
        .withColumn("total", F.count("*").over(finding))
        .withColumn("slow_total", F.sum(F.col("is_slow").cast("bigint")).over(finding))
        .withColumn("rank", F.row_number().over(finding.orderBy(F.desc(weight), *STAGE)))
        .where(F.col("rank") <= MAX_STAGES)
        .orderBy("last", *STAGE)
    )


def _usual_slowdowns(analysis: Analysis, stages: DataFrame) -> dict[Any, float]:
    """The median slowdown of the peers in each of these stages, by which the verdict divides."""
    compared = analysis.host_stages.withColumnRenamed("metric", "subject").join(
        F.broadcast(stages), [*STAGE, "subject"]
    )
    peers = compared.where((F.col("host") != F.col("suspect")) & ~F.array_contains("strangers", F.col("host")))
    rows = peers.groupBy(*STAGE, *_FINDING).agg(F.median("slowdown").alias("usual")).collect()
    return {_key(row): row["usual"] for row in rows}


def _of_own_kinds(analysis: Analysis, stages: DataFrame) -> DataFrame:
    """The tasks of each host and of its peers in these stages, of the kinds that the host had, with their value."""
    in_stages = _comparable_in(analysis, stages)
    kinds = in_stages.where("own").select(*KIND, *_FINDING).distinct()
    value = F.coalesce(*(F.when(F.col("subject") == metric.value, it) for metric, it in _values().items()))
    compared = in_stages.join(kinds, [*KIND, *_FINDING]).withColumn("value", value)
    return compared.where(F.col("value").isNotNull() & ~F.array_contains("strangers", F.col("host")))


def _comparable_in(analysis: Analysis, stages: DataFrame) -> DataFrame:
    """The tasks in these stages that are compared; `own` are those of the host with the finding."""
    of_apps = analysis.facts.join(F.broadcast(stages.select("app").distinct()), "app", "left_semi")
    in_stages = comparable(of_apps).join(F.broadcast(stages), [*STAGE])
    return in_stages.withColumn("own", F.col("host") == F.col("suspect"))


def _spreads(tasks: DataFrame) -> dict[Any, Spread]:
    """The values of the host's tasks (True) and of its peers' (False) in each stage."""
    ranks = [number / INTERVALS for number in range(INTERVALS + 1)]
    rows = tasks.groupBy(*STAGE, *_FINDING, "own").agg(
        F.count("*").alias("tasks"),
        F.countDistinct("host").alias("hosts"),
        F.median("value").alias("median"),
        F.percentile_approx("value", ranks, 10_000).alias("quantiles"),
    )
    return {
        (_key(row), row["own"]): Spread(**{name: row[name] for name in ("tasks", "hosts", "median", "quantiles")})
        for row in rows.collect()
    }


def _stage_times(
    chosen: Sequence[Row], spreads: Mapping[Any, Spread], factor: Callable[[Row], float]
) -> dict[FindingKey, Stages[StageTimes]]:
    found: defaultdict[FindingKey, list[StageTimes]] = defaultdict(list)
    for row in chosen:
        key = _key(row)
        if (key, True) in spreads and (key, False) in spreads:
            found[row["suspect"], row["subject"]].append(
                StageTimes(
                    **{name: row[name] for name in (*STAGE, "last")},
                    slow=row["is_slow"],
                    slowdown=factor(row),
                    own=spreads[key, True],
                    peers=spreads[key, False],
                )
            )
    return {key: Stages(shown=own, **_counts(chosen, key)) for key, own in found.items()}


def _values() -> Mapping[Metric, Column]:
    """Seconds of a task; ms per byte as seconds per GB."""
    return {
        Metric.COMPUTE: F.col("work") / 1000,
        Metric.NETWORK: F.col("fetching") * 1_000_000,
        Metric.DISK: F.col("writing") * 1_000_000,
        Metric.START: F.col("starting") / 1000,
    }


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in (*STAGE, *_FINDING))


def _counts(chosen: Sequence[Row], key: FindingKey) -> dict[str, int]:
    row = next(row for row in chosen if (row["suspect"], row["subject"]) == key)
    return {"total": row["total"], "slow": row["slow_total"]}


def _chosen(analysis: Analysis, rows: Sequence[Row]) -> DataFrame:
    """The stages of these rows, each for its finding."""
    columns = (*STAGE, *_FINDING, "strangers")
    return _frame(analysis, [tuple(row[name] for name in columns) for row in rows], _CHOSEN)


def _frame(analysis: Analysis, rows: Sequence[tuple[Any, ...]], schema: str) -> DataFrame:
    return analysis.facts.sparkSession.createDataFrame(list(rows), schema)
