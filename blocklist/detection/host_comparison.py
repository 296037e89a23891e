"""Compare each host with its peers in each stage: FACTS -> HOST_STAGES and NODES. See docs/detection.md.

Only tasks of one kind are compared: of the same stage, with the same locality, and of about the same size; the rest of
a size difference is divided out. The first tasks of an executor, which load classes and fill caches, and speculative
copies are excluded. So skewed data, a cold cache or distance from the data do not make a host slow.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from blocklist.detection.node_summary import SLOWDOWN_THRESHOLD
from blocklist.detection.schemas import HOST_STAGES, NODES, conform

STAGE: Final = ("app", "stage", "attempt")
"""The columns that identify a stage."""
MIN_HOSTS: Final = 3
"""Minimum number of comparable hosts in a stage: of two, it cannot be known which one is slow."""
MIN_TASKS: Final = 10
"""Minimum number of comparable tasks in a stage. A host needs only one of them, as a slow host gets few."""
MIN_COMPLETED: Final = 0.75
"""Share of a stage's tasks that must have succeeded before the stage is compared (FLIP-168)."""
_KIND: Final = (*STAGE, "near", "bucket")


def host_stages(facts: DataFrame) -> DataFrame:
    """FACTS -> HOST_STAGES."""
    kinds = _slowdowns(_by_kind(comparable(facts)))
    stages = kinds.groupBy(*STAGE, "host").agg(
        F.sum("tasks").alias("tasks"),
        F.exp(F.sum(F.col("tasks") * F.log("slowdown")) / F.sum("tasks")).alias("slowdown"),
        F.try_divide(F.sum("gc_ms"), F.sum("run_ms")).alias("gc_share"),
        F.try_divide(F.sum("fetch_wait_ms"), F.sum("run_ms")).alias("fetch_wait_share"),
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
    """Stages of which less than MIN_COMPLETED has succeeded: their slow tasks may still be running."""
    stages = (
        facts.where(F.col("kind").isin("stage", "task"))
        .groupBy(*STAGE)
        .agg(F.max("tasks").alias("tasks"), F.count_if(F.col("outcome") == "Success").alias("ended"))
    )
    return stages.where(F.col("ended") < MIN_COMPLETED * F.col("tasks"))


def nodes(facts: DataFrame, compared: DataFrame) -> DataFrame:
    """FACTS and HOST_STAGES -> NODES."""
    tasks = facts.where(F.col("kind") == "task")
    shuffled = F.coalesce("shuffle_bytes", F.lit(0)).cast("double")
    read = F.coalesce("input_bytes", F.lit(0)) + shuffled
    totals = tasks.groupBy("host").agg(
        F.count("*").alias("tasks"),
        F.countDistinct("app").alias("applications"),
        F.try_divide(F.sum("gc_ms"), F.sum("run_ms")).alias("gc_share"),
        F.try_divide(F.sum("fetch_wait_ms"), F.sum("run_ms")).alias("fetch_wait_share"),
        F.try_divide(F.sum(shuffled), F.sum(read)).alias("shuffle_share"),
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


def comparable(facts: DataFrame) -> DataFrame:
    """Successful tasks that started after another task had ended on their executor, with their work (ms) and size."""
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
    """The medians of each host's tasks of one kind."""
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
    """Add the host's median time over the median of the other hosts, divided by how much larger its tasks were."""
    kind = Window.partitionBy(*_KIND)
    larger = F.greatest(
        F.col("size") / F.median("size").over(kind), F.col("records") / F.median("records").over(kind), F.lit(1.0)
    )
    return (
        kinds.withColumn("works", F.sort_array(F.collect_list("work").over(kind)))
        .withColumn("position", F.row_number().over(kind.orderBy("work")) - 1)
        .where(F.size("works") > 1)
        .withColumn("slowdown", F.col("work") / median_of_others("works", F.col("position")) / larger)
    )


def median_of_others(values: str, position: Column) -> Column:
    """Return the median of a sorted array column without the value at `position` (from 0); null if no other value."""
    others = F.size(values) - 1
    low, high = F.floor((others - 1) / 2), F.floor(others / 2)
    return (_other(values, position, low) + _other(values, position, high)) / 2


def _other(values: str, position: Column, index: Column) -> Column:
    """The value at `index` of the array without the value at `position`."""
    return F.get(values, F.when(index < position, index).otherwise(index + 1).cast("int"))
