"""A self-contained HTML report: the verdicts with what convinces, costs, near misses and what was left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from blocklist.detection.analysis import Analysis
from blocklist.detection.heuristics import Judgement, NodeVerdict
from blocklist.detection.node_summary import CHARGED_TO_NODE, FailureClass, HostInApplication, Metric, NodeSummary
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


# The tables of the analysis -> the numbers of the report (report_plots.py).
#
# DuckDB computes quantiles and sums of a bounded number of stages: no tasks are fetched.

_FINDING: Final = ("suspect", "subject")
_STAGE: Final = ("app", "stage", "attempt")
_TEXT: Final = pa.string()
Row = Mapping[str, Any]


def log_totals(analysis: Analysis) -> Row:
    """What was read: the times of the first and the last event (Unix ms; None without events), and numbers."""
    (row,) = analysis.rows(
        """
        SELECT min(time) AS begin, max(time) AS "end", coalesce(sum(duration) FILTER (kind = 'task'), 0) AS time_ms,
            (SELECT count(*) FROM named) AS applications,
            (SELECT count(*) FROM (SELECT DISTINCT app, stage, attempt FROM all_stages)) AS compared_stages
        FROM all_facts
        """
    )
    return row


def application_totals(analysis: Analysis, apps: Iterable[str]) -> dict[str, Row]:
    """The names of these applications, and the time of all their tasks."""
    analysis.table("asked", {"app": _TEXT}, [(app,) for app in apps])
    rows = analysis.rows(
        """
        SELECT app, max(detail) FILTER (kind = 'application') AS name,
            coalesce(sum(duration) FILTER (kind = 'task'), 0) AS time_ms
        FROM all_facts SEMI JOIN asked USING (app) GROUP BY app
        """
    )
    return {row["app"]: row for row in rows}


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
    analysis.table("spans", {"suspect": _TEXT, "failure": _TEXT, "begin": pa.int64(), "width": pa.int64()}, rows)
    bins = analysis.rows(
        """
        WITH counted AS (  -- failed only there, and all failed there: the same tasks
            SELECT suspect, begin, width, host, max(last) AS last, max(tasks) AS tasks
            FROM all_failures JOIN spans USING (failure) WHERE last >= begin
            GROUP BY suspect, begin, width, host, app, stage, attempt,
                CASE WHEN failure NOT IN ($all_there, $only_there) THEN failure END
        ), bins AS (
            SELECT suspect, (last - begin) // width AS "column", host, sum(tasks) AS tasks FROM counted GROUP BY ALL
        )
        SELECT suspect, "column", coalesce(sum(tasks) FILTER (host = suspect), 0) AS own,
            coalesce(sum(tasks) FILTER (host <> suspect), 0) AS others,
            coalesce(max(tasks) FILTER (host <> suspect), 0) AS peer_max
        FROM bins WHERE "column" < $bins GROUP BY ALL ORDER BY "column"
        """,
        bins=BINS,
        all_there=FailureClass.ALL_THERE.value,
        only_there=FailureClass.ONLY_THERE.value,
    )
    found: dict[str, list[FailureBin]] = {it.host: [] for it in suspects}
    for row in bins:
        found[row.pop("suspect")].append(FailureBin(**row))
    return found


def slow_stages(analysis: Analysis, suspects: Sequence[BlamedNode]) -> dict[FindingKey, Stages[StageTimes]]:
    """The task times of each slow host against those of its peers, in the stages in which it spent most time."""
    chosen = _most(
        analysis,
        _findings(suspects, [*Metric]),
        """
        CREATE OR REPLACE TEMP VIEW candidates AS
        SELECT stages.app, stage, attempt, suspect, subject, strangers, last, slowdown, time_ms AS weight,
            slow AS is_slow
        FROM all_stages AS stages JOIN findings ON findings.app = stages.app AND subject = metric
        WHERE host = suspect AND first >= since
        """,
    )
    # The median slowdown of the peers, by which the verdict divides.
    usual = analysis.rows(
        """
        SELECT app, stage, attempt, suspect, subject, median(stages.slowdown) AS slowdown
        FROM all_stages AS stages JOIN shown USING (app, stage, attempt)
        WHERE metric = subject AND host <> suspect AND NOT list_contains(strangers, host) GROUP BY ALL
        """
    )
    peers = {_key(row): row["slowdown"] for row in usual}
    # Tasks of the kinds that the host had, in seconds; ms per byte as seconds per GB.
    spreads = _spreads(
        analysis,
        chosen,
        """
        CREATE OR REPLACE TEMP VIEW measured AS
        SELECT *, CASE subject WHEN 'compute' THEN compute / 1000 WHEN 'start' THEN start / 1000
            WHEN 'network' THEN network * 1000000 ELSE disk * 1000000 END AS value
        FROM shown_tasks
        SEMI JOIN (FROM shown_tasks WHERE own) AS kinds USING (app, stage, attempt, suspect, subject, near, bucket)
        WHERE value IS NOT NULL AND NOT list_contains(strangers, host)
        """,
    )
    return _stage_times(chosen, spreads, lambda row: row["slowdown"] / peers.get(_key(row), 1.0))


def slow_server_stages(analysis: Analysis, suspects: Sequence[BlamedNode]) -> dict[FindingKey, Stages[StageTimes]]:
    """The fetch wait of each host that serves slowly against that of its peers, where these waited most."""
    chosen = _most(
        analysis,
        _findings(suspects, [FailureClass.SLOW_SERVER]),
        """
        CREATE OR REPLACE TEMP VIEW candidates AS
        SELECT failures.app, stage, attempt, suspect, subject, strangers, last, lost_ms AS weight, true AS is_slow
        FROM all_failures AS failures JOIN findings ON findings.app = failures.app AND subject = failure
        WHERE host = suspect AND last >= since
        """,
    )
    spreads = _spreads(
        analysis,
        chosen,
        """
        CREATE OR REPLACE TEMP VIEW measured AS
        SELECT *, coalesce(fetch_wait_ms, 0) / 1000 AS value FROM shown_tasks WHERE remote_bytes > 0
        """,
    )
    return _stage_times(
        chosen, spreads, lambda row: spreads[_key(row), False].median / max(0.001, spreads[_key(row), True].median)
    )


def failed_stages(analysis: Analysis, suspects: Sequence[BlamedNode]) -> dict[FindingKey, Stages[StageFailures]]:
    """The failures of each failing host against those of its peers, in the stages in which it failed most."""
    # Because of a slow server, no task fails.
    failing = [it for it in FailureClass if it is not FailureClass.SLOW_SERVER]
    chosen = _most(
        analysis,
        _findings(suspects, failing),
        """
        CREATE OR REPLACE TEMP VIEW candidates AS
        SELECT *, own AS weight, false AS is_slow FROM (
            SELECT failures.app, stage, attempt, suspect, subject, strangers, max(last) AS last,
                sum(tasks) FILTER (host = suspect) AS own,
                coalesce(sum(tasks) FILTER (host <> suspect), 0) AS others,
                coalesce(max(tasks) FILTER (host <> suspect), 0) AS peer_max
            FROM all_failures AS failures JOIN findings ON findings.app = failures.app AND subject = failure
            WHERE host <> suspect OR last >= since GROUP BY ALL
        ) WHERE own > 0
        """,
    )
    ended = analysis.rows(
        """
        SELECT app, stage, attempt, suspect, subject, count_if(host = suspect) AS own_tasks,
            count_if(host <> suspect) AS peer_tasks, count(DISTINCT host) FILTER (host <> suspect) AS peer_hosts
        FROM all_facts JOIN shown USING (app, stage, attempt) WHERE kind = 'task' AND host IS NOT NULL GROUP BY ALL
        """
    )
    tasks = {_key(row): row for row in ended}
    found: defaultdict[FindingKey, list[StageFailures]] = defaultdict(list)
    for row in chosen:
        of_stage = tasks[_key(row)]
        found[row["suspect"], row["subject"]].append(
            StageFailures(
                **{name: row[name] for name in (*_STAGE, "last", "own", "others", "peer_max")},
                **{name: of_stage[name] for name in ("own_tasks", "peer_tasks", "peer_hosts")},
            )
        )
    return {key: Stages(shown=own, **_counts(chosen, key)) for key, own in found.items()}


def _findings(
    suspects: Sequence[BlamedNode], wanted: Collection[Metric | FailureClass]
) -> Sequence[tuple[str, str, str, int, Sequence[str]]]:
    """A row for each finding about one of these subjects and each of its applications."""
    return [
        (suspect.host, finding.subject.value, app, suspect.since, sorted(finding.strangers))
        for suspect in suspects
        for finding in suspect.verdict.findings
        if finding.subject in wanted
        for app in finding.applications
    ]


def _most(analysis: Analysis, findings: Sequence[Sequence[Any]], candidates: str) -> Sequence[Row]:
    """Of each finding the MAX_STAGES stages with most weight, in the order of time, with the numbers of all.

    Makes the tables `findings`, from which `candidates` makes a view, and `shown`.
    """
    strangers = {"since": pa.int64(), "strangers": pa.list_(_TEXT)}
    analysis.table("findings", {"suspect": _TEXT, "subject": _TEXT, "app": _TEXT, **strangers}, findings)
    analysis.rows(candidates)
    analysis.rows(
        """
        CREATE OR REPLACE TEMP TABLE shown AS
        SELECT *, count(*) OVER finding AS total, count_if(is_slow) OVER finding AS slow_total FROM candidates
        WINDOW finding AS (PARTITION BY suspect, subject)
        QUALIFY row_number() OVER (PARTITION BY suspect, subject ORDER BY weight DESC, app, stage, attempt) <= $most
        """,
        most=MAX_STAGES,
    )
    return analysis.rows("FROM shown ORDER BY last, app, stage, attempt")


def _spreads(analysis: Analysis, chosen: Sequence[Row], measured: str) -> dict[Any, Spread]:
    """The values of the host's tasks (True) and of its peers' (False) in each stage that is `shown`.

    `measured` makes a view from `shown_tasks`, those that are compared; `own` are those of the host with the finding.
    """
    found: dict[Any, Spread] = {}
    for _ in analysis.compare_again({row["app"] for row in chosen}):
        analysis.rows(
            """
            CREATE OR REPLACE TEMP VIEW shown_tasks AS SELECT *, host = suspect AS own FROM (
                SELECT comparable.* REPLACE (named.app AS app) FROM comparable JOIN named ON id = comparable.app
            ) JOIN shown USING (app, stage, attempt)
            """
        )
        analysis.rows(measured)
        rows = analysis.rows(
            """
            SELECT app, stage, attempt, suspect, subject, own, count(*) AS tasks, count(DISTINCT host) AS hosts,
                median(value) AS median, quantile_disc(value, $ranks) AS quantiles
            FROM measured GROUP BY ALL
            """,
            ranks=[number / INTERVALS for number in range(INTERVALS + 1)],
        )
        for row in rows:
            found[_key(row), row["own"]] = Spread(**{it: row[it] for it in ("tasks", "hosts", "median", "quantiles")})
    return found


def _stage_times(
    chosen: Sequence[Row], spreads: Mapping[Any, Spread], factor: Callable[[Row], float]
) -> dict[FindingKey, Stages[StageTimes]]:
    found: defaultdict[FindingKey, list[StageTimes]] = defaultdict(list)
    for row in chosen:
        key = _key(row)
        if (key, True) in spreads and (key, False) in spreads:
            found[row["suspect"], row["subject"]].append(
                StageTimes(
                    **{name: row[name] for name in (*_STAGE, "last")},
                    slow=row["is_slow"],
                    slowdown=factor(row),
                    own=spreads[key, True],
                    peers=spreads[key, False],
                )
            )
    return {key: Stages(shown=own, **_counts(chosen, key)) for key, own in found.items()}


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in (*_STAGE, *_FINDING))


def _counts(chosen: Sequence[Row], key: FindingKey) -> dict[str, int]:
    row = next(row for row in chosen if (row["suspect"], row["subject"]) == key)
    return {"total": row["total"], "slow": row["slow_total"]}
