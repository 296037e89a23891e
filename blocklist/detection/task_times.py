"""Where task time went: lost to the faults of a host, or spent as its peers would have: FACTS -> TASK_TIMES."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from blocklist.detection.failures import charged_tasks
from blocklist.detection.host_comparison import STAGE, TIME_BY_METRIC
from blocklist.detection.node_summary import CHARGED_TO_NODE, Metric
from blocklist.detection.schemas import TASK_TIMES, conform

MINUTE_MS: Final = 60_000


def task_times(facts: DataFrame, compared: DataFrame) -> DataFrame:
    """FACTS and HOST_STAGES -> TASK_TIMES.

    A task that succeeded in a stage in which its host was slow has lost what its peers would not have needed; the rest
    of it counts as neither. A task that failed by the fault of its host has lost all its time. All other tasks that
    succeeded are healthy time.
    """
    succeeded = facts.where((F.col("kind") == "task") & (F.col("outcome") == "Success") & F.col("run_ms").isNotNull())
    excess = compared.where("slow").groupBy(*STAGE, "host").agg(*(_excess(metric) for metric in Metric))
    joined = succeeded.join(excess, [*STAGE, "host"], "left").withColumn("lost", _lost())
    ran = joined.select(
        "host",
        "launched",
        F.coalesce("lost", F.lit(0.0)).alias("lost"),
        F.when(F.col("lost").isNull(), F.col("run_ms")).otherwise(0).alias("healthy"),
    )
    charged = charged_tasks(facts).where(F.col("failure").isin(*(it.value for it in CHARGED_TO_NODE)))
    failed = charged.where(F.col("host").isNotNull()).select(
        "host", "launched", F.coalesce("duration", F.lit(0)).cast("double").alias("lost"), F.lit(0).alias("healthy")
    )
    minute = (F.floor(F.col("launched") / MINUTE_MS) * MINUTE_MS).alias("minute")
    summed = ran.unionAll(failed).groupBy("host", minute)
    return conform(
        summed.agg(
            F.sum("lost").cast("long").alias("lost_ms"), F.sum(F.col("healthy").cast("long")).alias("healthy_ms")
        ),
        TASK_TIMES,
    )


def _excess(metric: Metric) -> Column:
    """The share of the time by this metric that peers would not have needed, in a slow stage; else null."""
    return F.max(F.when(F.col("metric") == metric.value, 1 - 1 / F.col("slowdown"))).alias(f"{metric.value}_excess")


def _lost() -> Column:
    """What a task has lost by the worst metric; null if its host was not slow in the stage."""
    return F.greatest(*(F.col(f"{metric.value}_excess") * F.col(time) for metric, time in TIME_BY_METRIC.items()))
