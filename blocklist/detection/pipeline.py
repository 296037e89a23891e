"""The pipeline from facts to node summaries: Spark computes, the driver collects what is judged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from types import TracebackType
from typing import Self

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from blocklist.detection import host_comparison
from blocklist.detection.applications import assign_applications
from blocklist.detection.evidence import NO_FAILURES, Failures, HostInApplication, TaskTime, join_evidence, tally
from blocklist.detection.failures import charged_failures
from blocklist.detection.node_summary import ApplicationFailures, Comparison, FailureClass, Metric, NodeSummary
from blocklist.detection.omissions import Omission
from blocklist.detection.pods import KnownNodes, on_nodes
from blocklist.detection.reader import problems
from blocklist.detection.task_times import task_times

IgnoredUntil = Mapping[str, int]
"""Hosts of which earlier evidence does not count: until when, in Unix ms."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Analysis:
    """The results as DataFrames (schemas.FACTS, HOST_STAGES, HOST_APPLICATIONS, FAILURES, NODES), cached until the
    context exits. `left_out`: the lines, logs and pods that were.
    """

    facts: DataFrame
    read: DataFrame
    host_stages: DataFrame
    host_applications: DataFrame
    failures: DataFrame
    nodes: DataFrame
    left_out: Sequence[Omission]

    @classmethod
    def of(cls, read: DataFrame, known_nodes: KnownNodes = dict) -> Self:
        """Analyse facts as they were read; they are cached, so that the logs are read once."""
        read = read.persist()
        facts, copies = assign_applications(read)
        facts, pods = on_nodes(facts, known_nodes)
        host_stages = host_comparison.host_stages(facts).persist()
        failures = charged_failures(facts).persist()
        return cls(
            facts=facts,
            read=read,
            host_stages=host_stages,
            host_applications=host_comparison.host_applications(host_stages),
            failures=failures,
            nodes=host_comparison.nodes(facts, host_stages),
            left_out=(*problems(read), *copies, *pods),
        )

    @property
    def problems(self) -> list[str]:
        """A sentence for each problem."""
        return [it.sentence for it in self.left_out]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for frame in (self.failures, self.host_stages, self.read):
            frame.unpersist()

    def write(self, folder: str) -> None:
        """Write `nodes`, `host_stages` and `failures` as Parquet below the folder; existing data is overwritten."""
        frames = {"nodes": self.nodes, "host_stages": self.host_stages, "failures": self.failures}
        for name, frame in frames.items():
            frame.write.mode("overwrite").parquet(f"{folder.rstrip('/')}/{name}")

    def summaries(self, ignored_until: IgnoredUntil | None = None) -> list[NodeSummary]:
        """Return one summary per node, sorted by host."""
        ignored = ignored_until or {}
        failed = tally(_failures(self.failures.where(_counts(F.col("last"), ignored))))
        host_applications = self.host_applications
        if ignored:
            counting = self.host_stages.where(_counts(F.col("first"), ignored))
            host_applications = host_comparison.host_applications(counting)
        compared = _comparisons(host_applications)
        return [
            _summary(row, failed.get(row["host"], NO_FAILURES), compared.get(row["host"], ()))
            for row in self.nodes.orderBy("host").collect()
        ]

    def evidence(self, hosts: Collection[str] | None = None) -> list[HostInApplication]:
        """Return what each application shows about each host, or about these ones."""
        wanted = F.col("host").isNotNull() if hosts is None else F.col("host").isin(list(hosts))
        compared = _comparisons(host_comparison.all_host_applications(self.host_stages.where(wanted)))
        failed = _failures(self.failures.where(wanted))
        tasks = self.facts.where((F.col("kind") == "task") & wanted).groupBy("app", "host")
        counted = tasks.agg(
            F.count("*").alias("tasks"), F.min("launched").alias("first"), F.max("time").alias("last")
        ).collect()
        return join_evidence((row.asDict() for row in counted), compared, failed)

    def task_times(self) -> list[TaskTime]:
        """Return where task time went, by host and minute."""
        return [TaskTime(**row.asDict()) for row in task_times(self.facts, self.host_stages).collect()]


def _counts(time: Column, ignored: IgnoredUntil) -> Column:
    """Whether evidence of this time counts."""
    outdated = ((F.col("host") == host) & (time < until) for host, until in ignored.items())
    return reduce(lambda counts, old: counts & ~old, outdated, F.lit(True))


def _comparisons(frame: DataFrame) -> dict[str, list[Comparison]]:
    found: defaultdict[str, list[Comparison]] = defaultdict(list)
    for row in frame.orderBy("last", "app", "metric").collect():
        values = row.asDict()
        metric = Metric(values.pop("metric"))
        found[values.pop("host")].append(Comparison(metric=metric, **values))
    return found


def _summary(row: Row, failures: Failures, comparisons: Sequence[Comparison]) -> NodeSummary:
    return NodeSummary(
        host=row["host"],
        tasks=row["tasks"],
        applications=row["applications"],
        stages=row["stages"],
        slow_stages=row["slow_stages"],
        slow_applications=row["slow_applications"],
        expected=row["expected"],
        slowdown=row["slowdown"] or 1.0,
        slow_last=row["slow_last"] or 0,
        share=row["share"],
        failures=failures,
        exclusions=row["exclusions"],
        comparisons=comparisons,
    )


def _failures(frame: DataFrame) -> dict[str, list[ApplicationFailures]]:
    counted = frame.groupBy("app", "host", "failure").agg(
        F.countDistinct("stage", "attempt").alias("stages"),
        F.sum("tasks").alias("tasks"),
        F.sum("lost_ms").alias("lost_ms"),
        F.min("last").alias("first"),
        F.max("last").alias("last"),
        F.flatten(F.collect_list("partitions")).alias("partitions"),
    )
    found: defaultdict[str, list[ApplicationFailures]] = defaultdict(list)
    for row in counted.collect():
        values = row.asDict()
        failure = FailureClass(values.pop("failure"))
        partitions = frozenset(values.pop("partitions"))
        found[values.pop("host")].append(ApplicationFailures(failure=failure, partitions=partitions, **values))
    return found
