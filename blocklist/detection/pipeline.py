"""The pipeline from facts to node summaries: Spark computes, the driver collects what is judged."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from blocklist.detection import host_comparison
from blocklist.detection.applications import assign_applications
from blocklist.detection.failures import charged_failures
from blocklist.detection.node_summary import Comparison, FailureClass, FailureCounts, Metric, NodeSummary
from blocklist.detection.pods import KnownNodes, on_nodes
from blocklist.detection.reader import problems


@dataclass(frozen=True, kw_only=True, slots=True)
class Analysis:
    """The results as DataFrames (schemas.FACTS, HOST_STAGES, HOST_APPLICATIONS, FAILURES, NODES), cached until the
    context exits.

    `problems`: a sentence for each line, log and pod that was left out.
    """

    facts: DataFrame
    read: DataFrame
    host_stages: DataFrame
    host_applications: DataFrame
    failures: DataFrame
    nodes: DataFrame
    problems: Sequence[str]

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
            problems=(*problems(read), *copies, *pods),
        )

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

    def summaries(self) -> list[NodeSummary]:
        """Return one summary per node, sorted by host."""
        failed = _failures(self.failures)
        compared = _comparisons(self.host_applications)
        return [
            _summary(row, failed.get(row["host"], {}), compared.get(row["host"], ()))
            for row in self.nodes.orderBy("host").collect()
        ]


def _comparisons(frame: DataFrame) -> dict[str, list[Comparison]]:
    found: defaultdict[str, list[Comparison]] = defaultdict(list)
    for row in frame.orderBy("last", "app", "metric").collect():
        values = row.asDict()
        metric = Metric(values.pop("metric"))
        found[values.pop("host")].append(Comparison(metric=metric, **values))
    return found


def _summary(
    row: Row, failures: Mapping[FailureClass, FailureCounts], comparisons: Sequence[Comparison]
) -> NodeSummary:
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


def _failures(frame: DataFrame) -> dict[str, dict[FailureClass, FailureCounts]]:
    counted: Sequence[Row] = (
        frame.groupBy("failure", "host")
        .agg(
            F.countDistinct("app", "stage", "attempt").alias("stages"),
            F.sum("tasks").alias("tasks"),
            F.countDistinct("app").alias("applications"),
            F.min("last").alias("first"),
            F.max("last").alias("last"),
        )
        .collect()
    )
    return tally_failures(row.asDict() for row in counted)


def tally_failures(counted: Iterable[Mapping[str, Any]]) -> dict[str, dict[FailureClass, FailureCounts]]:
    """Return the failures of each host by class. A row has `failure`, `host` and the fields of FailureCounts."""
    rows = list(counted)
    all_stages, all_tasks = Counter[str](), Counter[str]()
    for row in rows:
        all_stages[row["failure"]] += row["stages"]
        all_tasks[row["failure"]] += row["tasks"]
    found: defaultdict[str, dict[FailureClass, FailureCounts]] = defaultdict(dict)
    for row in rows:
        failure = row["failure"]
        found[row["host"]][FailureClass(failure)] = FailureCounts(
            stages=row["stages"],
            tasks=row["tasks"],
            applications=row["applications"],
            all_stages=all_stages[failure],
            all_tasks=all_tasks[failure],
            first=row["first"],
            last=row["last"],
        )
    return found
