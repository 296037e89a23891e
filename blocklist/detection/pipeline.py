"""The pipeline from facts to node summaries: Spark computes, the driver collects what is judged."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from blocklist.detection import host_comparison
from blocklist.detection.failures import charged_failures
from blocklist.detection.node_summary import FailureClass, FailureCounts, NodeSummary


@dataclass(frozen=True, kw_only=True, slots=True)
class Analysis:
    """The results as DataFrames (schemas.FACTS, HOST_STAGES, FAILURES, NODES), cached until the context exits."""

    facts: DataFrame
    host_stages: DataFrame
    failures: DataFrame
    nodes: DataFrame

    @classmethod
    def of(cls, facts: DataFrame) -> Self:
        """Analyse the facts; they are cached, so that the logs are read once."""
        facts = facts.persist()
        host_stages = host_comparison.host_stages(facts).persist()
        failures = charged_failures(facts).persist()
        return cls(
            facts=facts, host_stages=host_stages, failures=failures, nodes=host_comparison.nodes(facts, host_stages)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for frame in (self.failures, self.host_stages, self.facts):
            frame.unpersist()

    def write(self, folder: str) -> None:
        """Write `nodes`, `host_stages` and `failures` as Parquet below the folder; existing data is overwritten."""
        frames = {"nodes": self.nodes, "host_stages": self.host_stages, "failures": self.failures}
        for name, frame in frames.items():
            frame.write.mode("overwrite").parquet(f"{folder.rstrip('/')}/{name}")

    def summaries(self) -> list[NodeSummary]:
        """Return one summary per node, sorted by host."""
        failed = _failures(self.failures)
        return [_summary(row, failed.get(row["host"], {})) for row in self.nodes.orderBy("host").collect()]


def _summary(row: Row, failures: Mapping[FailureClass, FailureCounts]) -> NodeSummary:
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
    )


def _failures(frame: DataFrame) -> dict[str, dict[FailureClass, FailureCounts]]:
    counted: Sequence[Row] = (
        frame.groupBy("failure", "host")
        .agg(
            F.countDistinct("app", "stage", "attempt").alias("stages"),
            F.sum("tasks").alias("tasks"),
            F.countDistinct("app").alias("applications"),
            F.max("last").alias("last"),
        )
        .collect()
    )
    all_stages, all_tasks = Counter[str](), Counter[str]()
    for row in counted:
        all_stages[row["failure"]] += row["stages"]
        all_tasks[row["failure"]] += row["tasks"]
    found: defaultdict[str, dict[FailureClass, FailureCounts]] = defaultdict(dict)
    for row in counted:
        found[row["host"]][FailureClass(row["failure"])] = FailureCounts(
            stages=row["stages"],
            tasks=row["tasks"],
            applications=row["applications"],
            all_stages=all_stages[row["failure"]],
            all_tasks=all_tasks[row["failure"]],
            last=row["last"],
        )
    return found
