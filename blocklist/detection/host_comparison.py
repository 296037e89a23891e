"""Facts -> what they say of each host in each stage -> what they say of each node.

Host and peers are compared task by task of one kind: of the same stage, equally near to their data, and of about the
same size; what is left of a difference in size is taken off again. An executor's first tasks, which load classes and
fill caches, are no measure, nor are speculative copies. So a host is not slow for its skewed data, its cold cache, or
its distance from the data. See docs/detection.md.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody knows them

from blocklist.detection.node_summary import SLOWDOWN_THRESHOLD, FailureClass
from blocklist.detection.peer_median import MIN_HOSTS, STAGE, median_of_others
from blocklist.detection.schemas import FAILURES, HOST_STAGES, NODES, conform
from blocklist.detection.slow_shuffle_servers import slow_servers

MIN_TASKS: Final = 10
"""A stage says something from so many tasks on that can be compared. One on a host will do: a slow host gets few."""
MIN_COMPLETED: Final = 0.75
"""A stage is judged when so much of it has ended (FLIP-168)."""
_KIND: Final = (*STAGE, "near", "bucket")
_PATTERNS: Final = {
    FailureClass.DISK_FULL: "No space left on device|Disk quota exceeded",
    FailureClass.IO_ERROR: "Input/output error|Read-only file system|Stale file handle|Structure needs cleaning"
    "|No such device|Remote I/O error",
    FailureClass.MEMORY: "OutOfMemoryError|Cannot allocate memory|MemoryError",
}


def host_stages(facts: DataFrame) -> DataFrame:
    """FACTS -> HOST_STAGES."""
    kinds = _slowdowns(_by_kind(comparable(facts)))
    stages = kinds.groupBy(*STAGE, "host").agg(
        F.sum("tasks").alias("tasks"),
        F.exp(F.sum(F.col("tasks") * F.log("slowdown")) / F.sum("tasks")).alias("slowdown"),
        (F.sum("gc_ms") / F.sum("run_ms")).alias("gc_share"),
        (F.sum("fetch_wait_ms") / F.sum("run_ms")).alias("fetch_wait_share"),
        F.max("last").alias("last"),
    )
    stage = Window.partitionBy(*STAGE)
    compared = (
        stages.withColumn("slow", F.col("slowdown") >= SLOWDOWN_THRESHOLD)
        .withColumn("hosts", F.count("*").over(stage))
        .withColumn("slow_hosts", F.sum(F.col("slow").cast("long")).over(stage))
        .withColumn("all_tasks", F.sum("tasks").over(stage))
    )
    enough = compared.where((F.col("hosts") >= MIN_HOSTS) & (F.col("all_tasks") >= MIN_TASKS))
    return conform(enough.join(_incomplete_stages(facts), [*STAGE], "left_anti"), HOST_STAGES)


def _incomplete_stages(facts: DataFrame) -> DataFrame:
    """The stages of which less than QUANTILE has ended well: the slow tasks may be still to come."""
    stages = (
        facts.where(F.col("kind").isin("stage", "task"))
        .groupBy(*STAGE)
        .agg(F.max("tasks").alias("tasks"), F.count_if(F.col("outcome") == "Success").alias("ended"))
    )
    return stages.where(F.col("ended") < MIN_COMPLETED * F.col("tasks"))


def failures(facts: DataFrame) -> DataFrame:
    """FACTS -> FAILURES."""
    failed = facts.where(
        (F.col("kind") == "task") & ~F.col("outcome").isin("Success", "TaskKilled", "TaskCommitDenied", "Resubmitted")
    )
    charged = failed.withColumn("failure", _failure_class()).withColumn(
        "host", F.when(F.col("failure") == FailureClass.FETCH.value, F.col("served_by")).otherwise(F.col("host"))
    )
    counted = (
        charged.where(F.col("host").isNotNull())
        .groupBy(*STAGE, "host", "failure")
        .agg(F.count("*").alias("tasks"), F.first("message", True).alias("message"), F.max("time").alias("last"))
    )
    return conform(counted, FAILURES).unionAll(slow_servers(comparable(facts)))


def nodes(facts: DataFrame, compared: DataFrame) -> DataFrame:
    """FACTS and HOST_STAGES -> NODES."""
    tasks = facts.where(F.col("kind") == "task")
    read = F.coalesce("input_bytes", F.lit(0)) + F.coalesce("shuffle_bytes", F.lit(0))
    totals = tasks.groupBy("host").agg(
        F.count("*").alias("tasks"),
        F.countDistinct("app").alias("applications"),
        (F.sum("gc_ms") / F.sum("run_ms")).alias("gc_share"),
        (F.sum("fetch_wait_ms") / F.sum("run_ms")).alias("fetch_wait_share"),
        (F.sum(F.coalesce("shuffle_bytes", F.lit(0))) / F.sum(read)).alias("shuffle_share"),
    )
    excluded = facts.where(F.col("kind") == "excluded").groupBy("host").agg(F.count("*").alias("exclusions"))
    slow = F.when(F.col("slow_stages") >= F.col("stages") / 2, F.lit(1))
    by_app = compared.groupBy("app", "host").agg(
        F.count("*").alias("stages"), F.sum(F.col("slow").cast("long")).alias("slow_stages")
    )
    slow_apps = by_app.groupBy("host").agg(F.count(slow).alias("slow_applications"))
    slowness = compared.groupBy("host").agg(
        F.count("*").alias("stages"),
        F.sum(F.col("slow").cast("long")).alias("slow_stages"),
        F.sum(F.col("slow_hosts") / F.col("hosts")).alias("expected"),
        F.median("slowdown").alias("slowdown"),
        F.max(F.when(F.col("slow"), F.col("last"))).alias("slow_last"),
    )
    joined = totals.join(excluded, "host", "left").join(slowness, "host", "left").join(slow_apps, "host", "left")
    counts = ["exclusions", "stages", "slow_stages", "slow_applications", "expected"]
    everywhere = Window.partitionBy()
    return conform(
        joined.fillna(0, counts).withColumn("share", F.col("tasks") / F.sum("tasks").over(everywhere)), NODES
    )


def _failure_class() -> Column:
    """The class of a failed task."""
    text = F.concat_ws(" ", "error", "message")
    found = F.when(F.col("outcome") == "FetchFailed", F.lit(FailureClass.FETCH.value))
    for failure, pattern in _PATTERNS.items():
        found = found.when(text.rlike(pattern), F.lit(failure.value))
    found = found.when(F.col("outcome") == "ExecutorLostFailure", F.lit(FailureClass.LOST_EXECUTOR.value))
    return found.when(F.col("outcome") == "ExceptionFailure", F.lit(FailureClass.USER.value)).otherwise(
        F.lit(FailureClass.OTHER.value)
    )


def comparable(facts: DataFrame) -> DataFrame:
    """Tasks that went well on an executor that had ended one before they began, with their work (ms) and size."""
    executor = Window.partitionBy("app", "executor")
    size = F.coalesce("input_bytes", F.lit(0)) + F.coalesce("shuffle_bytes", F.lit(0))
    records = F.coalesce("input_records", F.lit(0)) + F.coalesce("shuffle_records", F.lit(0))
    work = F.col("run_ms") - F.coalesce("gc_ms", F.lit(0)) - F.coalesce("fetch_wait_ms", F.lit(0))
    return (
        facts.where(F.col("kind") == "task")
        .withColumn("warm", F.col("launched") >= F.min("time").over(executor))
        .where((F.col("outcome") == "Success") & ~F.col("speculative") & F.col("warm") & F.col("run_ms").isNotNull())
        .withColumn("work", F.greatest(work, F.lit(1)))
        .withColumn("size", size + 1)
        .withColumn("records", records + 1)
        .withColumn("near", F.coalesce("locality", F.lit("ANY")))
        .withColumn("bucket", F.floor(F.log2(F.col("size"))))
    )


def _by_kind(tasks: DataFrame) -> DataFrame:
    """Each host's tasks of one kind: their medians."""
    return tasks.groupBy(*_KIND, "host").agg(
        F.count("*").alias("tasks"),
        F.median("work").alias("work"),
        F.median("size").alias("size"),
        F.median("records").alias("records"),
        F.sum("gc_ms").alias("gc_ms"),
        F.sum("fetch_wait_ms").alias("fetch_wait_ms"),
        F.sum("run_ms").alias("run_ms"),
        F.max("time").alias("last"),
    )


def _slowdowns(kinds: DataFrame) -> DataFrame:
    """A host's median time over the median of the other hosts' medians, less by how much more there was to do."""
    kind = Window.partitionBy(*_KIND)
    larger = F.greatest(
        F.col("size") / F.median("size").over(kind), F.col("records") / F.median("records").over(kind), F.lit(1.0)
    )
    return (
        kinds.withColumn("works", F.sort_array(F.collect_list("work").over(kind)))
        .withColumn("place", F.row_number().over(kind.orderBy("work")) - 1)
        .where(F.size("works") > 1)
        .withColumn("slowdown", F.col("work") / median_of_others("works", F.col("place")) / larger)
    )
