"""Who is slow to serve: all others wait for its shuffle blocks, and it alone does not, as it has them itself."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody knows them

from blocklist.detection.node_summary import FailureClass
from blocklist.detection.peer_median import MIN_HOSTS, STAGE, median_of_others
from blocklist.detection.schemas import FAILURES, conform

MIN_WAIT_RATIO: Final = 2.0
"""The others wait so many times as long as the one that they wait for."""
MIN_WAIT_SHARE: Final = 0.25
"""And for so much of a task's run time, or it is not worth a word."""


def slow_servers(tasks: DataFrame) -> DataFrame:
    """Comparable tasks -> FAILURES: for each stage at most one host.

    Who waits little because most of its data is its own anyway is not the one: it must have fetched as much as others.
    """
    stage = Window.partitionBy(*STAGE)
    hosts = (
        tasks.where(F.col("remote_bytes") > 0)
        .groupBy(*STAGE, "host")
        .agg(
            F.count("*").alias("own_tasks"),
            F.median("fetch_wait_ms").alias("wait"),
            F.median("run_ms").alias("run"),
            F.median("remote_bytes").alias("remote"),
            F.max("time").alias("last"),
        )
    )
    compared = (
        hosts.withColumn("waits", F.sort_array(F.collect_list("wait").over(stage)))
        .withColumn("least", F.row_number().over(stage.orderBy("wait", "host")) == 1)
        .withColumn("usual_run", F.median("run").over(stage))
        .withColumn("usual_remote", F.median("remote").over(stage))
        .withColumn("tasks", F.sum("own_tasks").over(stage) - F.col("own_tasks"))
    )
    others = median_of_others("waits", F.lit(0))
    found = compared.where(
        F.col("least")
        & (F.size("waits") >= MIN_HOSTS)
        & (others >= MIN_WAIT_RATIO * F.greatest("wait", F.lit(1.0)))
        & (others >= MIN_WAIT_SHARE * F.col("usual_run"))
        & (F.col("remote") >= F.col("usual_remote") / 2)
    )
    named = found.withColumn("failure", F.lit(FailureClass.SLOW_SERVER.value)).withColumn(
        "message", F.lit(None).cast("string")
    )
    return conform(named, FAILURES)
