"""A self-contained HTML report: the verdicts with what convinces, costs, near misses and what was left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from blocklist.detection import report_queries as queries
from blocklist.detection.heuristics import HOUR_MS, Judgement, NodeFinding, NodeVerdict
from blocklist.detection.node_summary import FailureClass, Metric, NodeSummary
from blocklist.detection.output import format_time, row
from blocklist.detection.pipeline import Analysis
from blocklist.detection.proposals import History, Proposal, unblocked_at
from blocklist.detection.report_data import (
    ApplicationTotal,
    FindingKey,
    StageFailures,
    Stages,
    StageTimes,
    Suspect,
)
from blocklist.detection.report_plots import CountsPicture, TimesPicture, count_of, counts_picture, times_picture
from blocklist.detection.report_timeline import BlockHistory, Timeline, span_of, timeline
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


@dataclass(frozen=True, kw_only=True, slots=True)
class DetectionReport:
    """What a run has found. `releases` and `notes` are sentences; `notes` name what was skipped."""

    nodes: Sequence[BlamedNode]
    near_misses: Sequence[NodeFinding]
    summaries: Sequence[NodeSummary]
    releases: Sequence[str] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class StageView:
    data: StageTimes | StageFailures
    picture: TimesPicture | CountsPicture


@dataclass(frozen=True, kw_only=True, slots=True)
class FindingView:
    """A finding with the stages that are shown; of `hidden` others, the node was slow in `hidden_slow`."""

    finding: NodeFinding
    stages: Sequence[StageView]
    hidden: int = 0
    hidden_slow: int = 0

    @property
    def subject(self) -> Metric | FailureClass:
        return self.finding.subject

    @property
    def is_failure(self) -> bool:
        return self.subject in FailureClass and not self.is_server

    @property
    def is_server(self) -> bool:
        return self.subject is FailureClass.SLOW_SERVER


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What nodes with verdicts have cost an application, in all and each, in ms."""

    app: str
    lost_ms: int
    nodes: Sequence[tuple[str, int]]


def blamed_nodes(
    proposals: Sequence[Proposal], judgement: Judgement, history: History | None, *, applied: bool
) -> list[BlamedNode]:
    """The nodes with verdicts: those that are proposed, and those that one run may not block. `history`: None without
    a service.
    """
    proposed = [(it.verdict, row(it, applied=applied)["what"]) for it in proposals]
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


def render(analysis: Analysis, report: DetectionReport) -> str:
    """Return the page."""
    views, costs = _node_views(analysis, report.nodes), _costs(report.nodes)
    blamed = {it.verdict.host for it in report.nodes} | {it.host for it in report.near_misses}
    others = [node for node in report.summaries if node.host not in blamed]
    return _environment(queries.application_totals(analysis, _applications(views, report))).render(
        totals=queries.log_totals(analysis),
        views=views,
        costs=costs,
        report=report,
        others=sorted(others, key=lambda node: (-node.slowdown, node.host)),
        max_rows=MAX_ROWS,
        max_pictured=MAX_PICTURED,
        max_costs=MAX_COSTS,
    )


def _node_views(analysis: Analysis, nodes: Sequence[BlamedNode]) -> list[NodeView]:
    if not nodes:
        return []
    pictured, others = nodes[:MAX_PICTURED], nodes[MAX_PICTURED:]
    suspects = [Suspect(host=it.verdict.host, findings=it.verdict.findings, since=it.since) for it in pictured]
    slow = queries.slow_stages(analysis, suspects) | queries.slow_server_stages(analysis, suspects)
    failed = queries.failed_stages(analysis, suspects)
    runs = queries.runs_on(analysis, [it.host for it in suspects])
    spans = {it.verdict.host: span_of(runs[it.verdict.host], it.history) for it in pictured}
    failures = queries.failures_over_time(analysis, suspects, spans)
    views = [
        NodeView(
            node=it,
            findings=[_finding_view(finding, slow, failed) for finding in it.verdict.findings],
            failures=", ".join(suspect.failure_classes),
            timeline=timeline(
                it.verdict,
                runs[it.verdict.host],
                it.history,
                failures[it.verdict.host],
                it.since,
                spans[it.verdict.host],
            ),
        )
        for it, suspect in zip(pictured, suspects, strict=True)
    ]
    plain = [[FindingView(finding=finding, stages=[]) for finding in it.verdict.findings] for it in others]
    return [*views, *(NodeView(node=it, findings=own) for it, own in zip(others, plain, strict=True))]


def _finding_view(
    finding: NodeFinding,
    slow: Mapping[FindingKey, Stages[StageTimes]],
    failed: Mapping[FindingKey, Stages[StageFailures]],
) -> FindingView:
    subject, key = finding.subject, (finding.host, finding.subject.value)
    if isinstance(subject, FailureClass) and subject is not FailureClass.SLOW_SERVER:
        counts = failed.get(key, Stages(shown=[], total=0))
        most = max((max(it.own, it.peer_max) for it in counts.shown), default=1)
        return FindingView(
            finding=finding,
            stages=[StageView(data=it, picture=counts_picture(it, subject, most)) for it in counts.shown],
            hidden=counts.total - len(counts.shown),
        )
    times = slow.get(key, Stages(shown=[], total=0))
    return FindingView(
        finding=finding,
        stages=[StageView(data=it, picture=times_picture(it, subject)) for it in times.shown],
        hidden=times.total - len(times.shown),
        hidden_slow=times.slow - sum(it.slow for it in times.shown),
    )


def _costs(nodes: Sequence[BlamedNode]) -> list[Cost]:
    """The applications that lost most first."""
    found: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    for it in nodes:
        for hurt in it.verdict.hurt:
            found[hurt.app].append((it.verdict.host, hurt.lost_ms))
    costs = [
        Cost(app=app, lost_ms=sum(lost for _, lost in own), nodes=sorted(own, key=lambda it: (-it[1], it[0])))
        for app, own in found.items()
    ]
    return sorted(costs, key=lambda it: (-it.lost_ms, it.app))


def _applications(views: Sequence[NodeView], report: DetectionReport) -> set[str]:
    """All that the page names."""
    findings = [*(it.finding for view in views for it in view.findings), *report.near_misses]
    runs = [row.run.app for view in views if view.timeline for row in view.timeline.runs]
    return {*(it.app for finding in findings for it in finding.hurt), *runs}


def _environment(applications: Mapping[str, ApplicationTotal]) -> Template:
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
