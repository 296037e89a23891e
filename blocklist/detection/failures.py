"""Charge failed tasks, and slow serving of shuffle blocks, to hosts: FACTS -> FAILURES."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from blocklist.detection.host_comparison import MIN_HOSTS, STAGE, comparable, median_of_others
from blocklist.detection.node_summary import FailureClass
from blocklist.detection.schemas import FAILURES, conform

MIN_WAIT_RATIO: Final = 2.0
"""Minimum ratio of the other hosts' wait to the wait of the slow server itself."""
MIN_WAIT_SHARE: Final = 0.25
"""Minimum share of the run time that the other hosts wait."""
BAD_PARTITION_STAGES: Final = 3
"""Stages of an application in which a partition must fail, on several hosts, to be bad data: it keeps its number."""
_PARTITION: Final = (*STAGE, "partition")
_OF_THE_APPLICATION: Final = (FailureClass.MEMORY, FailureClass.USER, FailureClass.OTHER)
PATTERNS: Final = {
    FailureClass.DISK_FULL: "No space left on device|Disk quota exceeded",
    FailureClass.IO_ERROR: "Input/output error|Read-only file system|Stale file handle|Structure needs cleaning"
    "|No such device|Remote I/O error",
    FailureClass.MEMORY: "OutOfMemoryError|Cannot allocate memory|MemoryError",
}


def charged_failures(facts: DataFrame) -> DataFrame:
    """FACTS -> FAILURES."""
    is_only_there = F.col("failure") == FailureClass.ONLY_THERE.value
    counted = (
        charged_tasks(facts)
        .where(F.col("host").isNotNull())
        .groupBy(*STAGE, "host", "failure")
        .agg(
            F.count("*").alias("tasks"),
            F.coalesce(F.sum("duration"), F.lit(0)).alias("lost_ms"),
            F.first("message", True).alias("message"),
            F.max("time").alias("last"),
            F.collect_set(F.when(is_only_there, F.col("partition"))).alias("partitions"),
        )
    )
    return conform(counted, FAILURES).unionAll(slow_servers(comparable(facts)))


def charged_tasks(facts: DataFrame) -> DataFrame:
    """FACTS -> the failed tasks, with the class in `failure` and the charged host in `host`."""
    failed = facts.where(
        (F.col("kind") == "task") & ~F.col("outcome").isin("Success", "TaskKilled", "TaskCommitDenied", "Resubmitted")
    )
    classified = _with_failures_only_there(failed.withColumn("failure", _failure_class()), facts)
    is_fetch = F.col("failure") == FailureClass.FETCH.value
    return classified.withColumn("host", F.when(is_fetch, F.col("served_by")).otherwise(F.col("host")))


def _failure_class() -> Column:
    """The class of a failed task."""
    text = F.concat_ws(" ", "error", "message")
    found = F.when(F.col("outcome") == "FetchFailed", F.lit(FailureClass.FETCH.value))
    for failure, pattern in PATTERNS.items():
        found = found.when(text.rlike(pattern), F.lit(failure.value))
    found = found.when(F.col("outcome") == "ExecutorLostFailure", F.lit(FailureClass.LOST_EXECUTOR.value))
    return found.when(F.col("outcome") == "ExceptionFailure", F.lit(FailureClass.USER.value)).otherwise(
        F.lit(FailureClass.OTHER.value)
    )


def _with_failures_only_there(failed: DataFrame, facts: DataFrame) -> DataFrame:
    """Classify again what looks like the application's own failure, but may be the host's.

    A partition that failed on one host only, and succeeded on another one, counts against the host: its memory may be
    bad, or a device missing. One that failed on several hosts, in one stage or in BAD_PARTITION_STAGES, or never
    succeeded, counts against nobody.
    """
    own = F.col("failure").isin(*(it.value for it in _OF_THE_APPLICATION))
    bad_partitions = (
        failed.where(own)
        .groupBy("app", "partition")
        .agg(F.countDistinct("stage").alias("stages"), F.countDistinct("host").alias("hosts"))
        .where((F.col("stages") >= BAD_PARTITION_STAGES) & (F.col("hosts") > 1))
    )
    failures = (
        failed.where(own & F.col("partition").isNotNull())
        .join(bad_partitions, ["app", "partition"], "left_anti")
        .groupBy(*_PARTITION)
        .agg(F.countDistinct("host").alias("failed_hosts"), F.min("host").alias("failed_host"))
        .where(F.col("failed_hosts") == 1)
    )
    succeeded = (
        facts.where((F.col("kind") == "task") & (F.col("outcome") == "Success"))
        .select(*_PARTITION, F.col("host").alias("succeeded_host"))
        .join(failures, [*_PARTITION])
        .where(F.col("succeeded_host") != F.col("failed_host"))
        .select(*_PARTITION, F.lit(True).alias("only_there"))
        .distinct()
    )
    marked = failed.join(succeeded, [*_PARTITION], "left")
    only_there = own & F.coalesce("only_there", F.lit(False))
    return marked.withColumn(
        "failure", F.when(only_there, F.lit(FailureClass.ONLY_THERE.value)).otherwise(F.col("failure"))
    )


def slow_servers(tasks: DataFrame) -> DataFrame:
    """Comparable tasks -> FAILURES: in each stage, at most one host that serves shuffle blocks slowly.

    All other hosts wait for its blocks; it does not, because it reads them locally. A host that waits little because it
    fetches little is not slow: it must have fetched at least half as much as usual.
    """
    stage = Window.partitionBy(*STAGE)
    hosts = (
        tasks.where(F.col("remote_bytes") > 0)
        .groupBy(*STAGE, "host")
        .agg(
            F.count("*").alias("own_tasks"),
            F.median("fetch_wait_ms").alias("wait"),
            F.sum("fetch_wait_ms").alias("waited"),
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
        .withColumn("lost_ms", F.coalesce(F.sum("waited").over(stage) - F.col("waited"), F.lit(0)))
    )
    others = median_of_others("waits", F.lit(0))
    found = compared.where(
        F.col("least")
        & (F.size("waits") >= MIN_HOSTS)
        & (others >= MIN_WAIT_RATIO * F.greatest("wait", F.lit(1.0)))
        & (others >= MIN_WAIT_SHARE * F.col("usual_run"))
        & (F.col("remote") >= F.col("usual_remote") / 2)
    )
    named = (
        found.withColumn("failure", F.lit(FailureClass.SLOW_SERVER.value))
        .withColumn("message", F.lit(None).cast("string"))
        .withColumn("partitions", F.lit(None).cast(FAILURES["partitions"].dataType))
    )
    return conform(named, FAILURES)
