"""A self-contained HTML report of the analysis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from blocklist.detection.node_summary import Metric, NodeSummary
from blocklist.detection.output import format_time
from blocklist.detection.pipeline import Analysis

MAX_HOSTS: Final = 60
"""Maximum number of hosts in the heat map: those with proposals, then the slowest."""
MAX_STAGES: Final = 120
"""Maximum number of stages in the heat map: the latest."""
BINS: Final = 60
"""Number of bars in the timeline."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A host in a stage."""

    row: int
    column: int
    host: str
    stage: str
    slowdown: float
    tasks: int

    @property
    def shade(self) -> float:
        """Colour intensity from 0 (slowdown 1 or less) to 1 (4 or more), logarithmic."""
        return max(0.0, min(1.0, math.log2(max(self.slowdown, 1.0)) / 2))


@dataclass(frozen=True, kw_only=True, slots=True)
class HeatMap:
    """Slowdowns of hosts by stages."""

    hosts: Sequence[str]
    stages: Sequence[str]
    cells: Sequence[Cell]
    hidden_hosts: int
    """Number of hosts that are not shown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """Failures of one class in one bin; `below` is the number of failures of other classes under it in the stack."""

    column: int
    failure: str
    count: int
    below: int
    time: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """Failures over time."""

    bars: Sequence[Bar]
    highest: int
    begin: str
    end: str

    @property
    def failures(self) -> list[str]:
        return sorted({bar.failure for bar in self.bars})


def render(
    analysis: Analysis, summaries: Sequence[NodeSummary], rows: Sequence[Mapping[str, str]], notes: Sequence[str]
) -> str:
    """Return the page. `rows` are the proposals as texts; `notes` are further sentences."""
    environment = Environment(
        loader=PackageLoader("blocklist.detection", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    proposed = {row["node"] for row in rows}
    return environment.get_template("report.html.j2").render(
        rows=rows,
        notes=notes,
        summaries=sorted(summaries, key=lambda node: (node.host not in proposed, -node.slowdown, node.host)),
        heat=_heat_map(analysis.host_stages, summaries, proposed),
        timeline=_timeline(analysis.facts, analysis.failures),
        counts=_counts(analysis, summaries),
    )


def _counts(analysis: Analysis, summaries: Sequence[NodeSummary]) -> Mapping[str, str]:
    (row,) = analysis.facts.agg(
        F.min("time").alias("begin"), F.max("time").alias("end"), F.countDistinct("app").alias("applications")
    ).collect()
    stages = analysis.host_stages.select("app", "stage", "attempt").distinct().count()
    return {
        "period": f"{format_time(row['begin'])} to {format_time(row['end'])}"
        if row["begin"] is not None
        else "nothing",
        "applications": f"{row['applications']:,}",
        "nodes": f"{len(summaries):,}",
        "tasks": f"{sum(node.tasks for node in summaries):,}",
        "stages": f"{stages:,}",
    }


def _heat_map(host_stages: DataFrame, summaries: Sequence[NodeSummary], proposed: set[str]) -> HeatMap:
    host_stages = host_stages.where(F.col("metric") == Metric.COMPUTE.value)
    compared = [node for node in summaries if node.stages]
    slowest = sorted(compared, key=lambda node: (node.host not in proposed, -node.slowdown, node.host))[:MAX_HOSTS]
    hosts = [node.host for node in slowest]
    stages = (
        host_stages.groupBy("app", "stage", "attempt")
        .agg(F.max("last").alias("last"))
        .orderBy(F.desc("last"))
        .limit(MAX_STAGES)
    )
    shown = host_stages.where(F.col("host").isin(hosts)).drop("last").join(stages, ["app", "stage", "attempt"])
    rows = shown.orderBy("last", "app", "stage", "attempt").collect()
    names = list(dict.fromkeys(map(_stage, rows)))
    column = {name: number for number, name in enumerate(names)}
    cells = [
        Cell(
            row=hosts.index(row["host"]),
            column=column[_stage(row)],
            host=row["host"],
            stage=_stage(row),
            slowdown=row["slowdown"],
            tasks=row["tasks"],
        )
        for row in rows
    ]
    return HeatMap(hosts=hosts, stages=names, cells=cells, hidden_hosts=len(compared) - len(hosts))


def _stage(row: Row) -> str:
    again = f" attempt {row['attempt']}" if row["attempt"] else ""
    return f"{row['app']} stage {row['stage']}{again}"


def _timeline(facts: DataFrame, failures: DataFrame) -> Timeline:
    (span,) = facts.agg(F.min("time").alias("begin"), F.max("time").alias("end")).collect()
    begin, end = span["begin"] or 0, span["end"] or 0
    width = max(1, -(-(end - begin + 1) // BINS))
    rows = (
        failures.groupBy(((F.col("last") - begin) / width).cast("long").alias("column"), "failure")
        .agg(F.sum("tasks").alias("count"))
        .orderBy("column", "failure")
        .collect()
    )
    heights: dict[int, int] = {}
    bars = []
    for row in rows:
        below = heights.get(row["column"], 0)
        heights[row["column"]] = below + row["count"]
        when = format_time(begin + row["column"] * width)
        bars.append(Bar(column=row["column"], failure=row["failure"], count=row["count"], below=below, time=when))
    return Timeline(bars=bars, highest=max(heights.values(), default=0), begin=format_time(begin), end=format_time(end))
