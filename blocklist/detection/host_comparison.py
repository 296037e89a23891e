"""Compare each host with its peers in each stage: FACTS -> HOST_STAGES and NODES. See docs/evidence/detection.md.

Only tasks of one kind are compared: of the same stage, with the same locality, and of about the same size; the rest of
a size difference is divided out. The first tasks of an executor, which load classes and fill caches, and speculative
copies are excluded. So skewed data, a cold cache or distance from the data do not make a host slow.

Nor do slow partitions that run on it in each stage, because it holds their data: over the stages of an application, a
partition on a host is one observation.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from blocklist.detection.node_summary import (
    COUNTED_BY_PARTITION,
    MAX_APPLICATIONS,
    MIN_HOSTS,
    SLOWDOWN_THRESHOLD,
    FailureClass,
    Metric,
)
from blocklist.detection.schemas import FAILURES, HOST_APPLICATIONS, HOST_STAGES, NODES, conform

STAGE: Final = ("app", "stage", "attempt")
"""The columns that identify a stage."""
MIN_TASKS: Final = 10
"""Minimum number of comparable tasks in a stage. A host needs only one of them, as a slow host gets few."""
MIN_COMPLETED: Final = 0.75
"""Share of a stage's tasks that must have succeeded before the stage is compared (FLIP-168)."""
MIN_BYTES: Final = 100_000
"""Minimum number of bytes that a task fetches or writes if its time per byte is compared."""
MIN_TIME_SHARE: Final = 0.1
"""Minimum share of the run time that fetching or writing must take to make a host slow."""
MIN_START_MS: Final = 10
"""Milliseconds. A shorter time to deserialize counts as this, so that what is quick everywhere makes nobody slow."""
TIME_BY_METRIC: Final = {
    Metric.COMPUTE: "run_ms",
    Metric.NETWORK: "fetch_wait_ms",
    Metric.DISK: "write_ms",
    Metric.START: "network_ms",
}
"""The column with the time that a metric is about."""
KIND: Final = (*STAGE, "near", "bucket")
"""The columns that identify tasks of one kind."""
_BY_PARTITION: Final = {Metric.COMPUTE: "work", Metric.NETWORK: "fetching", Metric.DISK: "writing"}
"""The column of comparable tasks by which a metric compares, if it depends on the partition."""
_BY_EXECUTOR: Final = {Metric.START: "starting"}
"""The same, if it depends on the executor: only the first task fetches anything, so the longest time counts."""
_OBSERVATION: Final = ("app", "host", "metric")


def host_stages(facts: DataFrame) -> DataFrame:
    """FACTS -> HOST_STAGES."""
    kinds = _slowdowns(_by_metric(_by_kind(comparable(facts))))
    stages = kinds.groupBy(*STAGE, "host", "metric").agg(
        F.sum("tasks").alias("tasks"),
        F.sum("time_ms").alias("time_ms"),
        F.sum("run_ms").alias("run_ms"),
        F.min("first").alias("first"),
        F.exp(F.sum(F.col("tasks") * F.log("slowdown")) / F.sum("tasks")).alias("slowdown"),
        F.try_divide(F.sum("gc_ms"), F.sum("run_ms")).alias("gc_share"),
        F.try_divide(F.sum("fetch_wait_ms"), F.sum("run_ms")).alias("fetch_wait_share"),
        F.max("last").alias("last"),
        F.flatten(F.collect_list("by_partition")).alias("by_partition"),
    )
    stage = Window.partitionBy(*STAGE, "metric")
    compared = (
        stages.withColumn("slow", (F.col("slowdown") >= SLOWDOWN_THRESHOLD) & _material())
        .withColumn("hosts", F.count("*").over(stage))
        .withColumn("slow_hosts", F.sum(F.col("slow").cast("long")).over(stage))
        .withColumn("all_tasks", F.sum("tasks").over(stage))
    )
    enough = compared.where((F.col("hosts") >= MIN_HOSTS) & (F.col("all_tasks") >= MIN_TASKS))
    return conform(enough.join(_incomplete_stages(facts), [*STAGE], "left_anti"), HOST_STAGES)


def _material() -> Column:
    """Whether the time by this metric matters in the stage."""
    return F.col("time_ms") >= MIN_TIME_SHARE * F.col("run_ms")


def _incomplete_stages(facts: DataFrame) -> DataFrame:
    """Stages of which less than MIN_COMPLETED has succeeded: their slow tasks may still be running."""
    stages = (
        facts.where(F.col("kind").isin("stage", "task"))
        .groupBy(*STAGE)
        .agg(F.max("tasks").alias("tasks"), F.count_if(F.col("outcome") == "Success").alias("ended"))
    )
    return stages.where(F.col("ended") < MIN_COMPLETED * F.col("tasks"))


def host_applications(compared: DataFrame) -> DataFrame:
    """HOST_STAGES -> HOST_APPLICATIONS, only the latest of each host."""
    latest = Window.partitionBy("host", "metric").orderBy(F.desc("last"), F.desc("app"))
    ranked = all_host_applications(compared).withColumn("rank", F.row_number().over(latest))
    return conform(ranked.where(F.col("rank") <= MAX_APPLICATIONS), HOST_APPLICATIONS)


def all_host_applications(compared: DataFrame) -> DataFrame:
    """HOST_STAGES -> HOST_APPLICATIONS."""
    slow = F.col("slow")
    lost = F.when(slow, F.col("time_ms") * (1 - 1 / F.col("slowdown")))
    found = compared.groupBy(*_OBSERVATION).agg(
        F.count("*").alias("stages"),
        F.count_if(slow).alias("slow_stages"),
        F.median("slowdown").alias("slowdown"),
        F.coalesce(F.sum(lost), F.lit(0)).cast("long").alias("lost_ms"),
        F.coalesce(F.min(F.when(slow, F.col("first"))), F.min("first")).alias("first"),
        F.coalesce(F.max(F.when(slow, F.col("last"))), F.max("last")).alias("last"),
    )
    both = found.join(_over_partitions(compared), [*_OBSERVATION])
    return conform(both.withColumn("slowdown", F.least("slowdown", "over_partitions")), HOST_APPLICATIONS)


def _over_partitions(compared: DataFrame) -> DataFrame:
    """The median slowdown of each host over its partitions; that of a partition is its median over the stages."""
    partitions = compared.select(*_OBSERVATION, F.inline("by_partition").alias("partition", "own"))
    once = partitions.groupBy(*_OBSERVATION, "partition").agg(F.median("own").alias("own"))
    return once.groupBy(*_OBSERVATION).agg(F.median("own").alias("over_partitions"))


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
    excluded = exclusions(facts).groupBy("host").agg(F.count("*").alias("exclusions"))
    compared = compared.where(F.col("metric") == Metric.COMPUTE.value)
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


def exclusions(facts: DataFrame) -> DataFrame:
    """A row per exclusion of a host: Spark 3 logs each under two names."""
    return facts.where(F.col("kind") == "excluded").select("host", "time", *STAGE).distinct()


def comparable(facts: DataFrame) -> DataFrame:
    """Successful tasks that started after another task had ended on their executor, with their work (ms) and size."""
    executor = Window.partitionBy("app", "executor")
    size = F.coalesce("input_bytes", F.lit(0)) + F.coalesce("shuffle_bytes", F.lit(0))
    records = F.coalesce("input_records", F.lit(0)) + F.coalesce("shuffle_records", F.lit(0))
    work = F.col("run_ms") - F.coalesce("gc_ms", F.lit(0)) - F.coalesce("fetch_wait_ms", F.lit(0))
    return (
        with_network_time(facts.where(F.col("kind") == "task"))
        .withColumn("warm", F.col("launched") >= F.min("time").over(executor))
        .where((F.col("outcome") == "Success") & ~F.col("speculative") & F.col("warm") & F.col("run_ms").isNotNull())
        .withColumn("work", F.greatest(work, F.lit(1)))
        .withColumn("fetching", _per_byte("fetch_wait_ms", "remote_bytes"))
        .withColumn("writing", _per_byte("write_ms", "written_bytes"))
        .withColumn(
            "starting", F.when(F.col("deserialize_ms").isNotNull(), F.greatest("deserialize_ms", F.lit(MIN_START_MS)))
        )
        .withColumn("size", size + 1)
        .withColumn("records", records + 1)
        .withColumn("near", F.coalesce("locality", F.lit("ANY")))
        .withColumn("bucket", F.floor(F.log2(F.col("size"))))
    )


def with_network_time(tasks: DataFrame) -> DataFrame:
    """Add the time that code and shuffle blocks took to arrive.

    Event logs do not tell from which host a task waits for blocks: a host that is slow to fetch the code of a stage is
    slow to serve blocks too, so all hosts wait, and only the code shows for which.
    """
    return tasks.withColumn("network_ms", F.col("deserialize_ms") + F.coalesce("fetch_wait_ms", F.lit(0)))


def _per_byte(time: str, size: str) -> Column:
    """Time (ms) per byte; null for tasks that moved few bytes."""
    return F.when(F.col(size) >= MIN_BYTES, F.greatest(time, F.lit(1)) / F.col(size))


def _by_kind(tasks: DataFrame) -> DataFrame:
    """What stands for each host's tasks of one kind: medians, or the longest time."""
    return tasks.groupBy(*KIND, "host").agg(
        F.count("*").alias("tasks"),
        *(F.median(value).alias(metric.value) for metric, value in _BY_PARTITION.items()),
        *(F.max(value).alias(metric.value) for metric, value in _BY_EXECUTOR.items()),
        F.collect_list(F.struct("partition", *_BY_PARTITION.values())).alias("own_tasks"),
        F.sum("write_ms").alias("write_ms"),
        F.min("launched").alias("first"),
        F.median("size").alias("size"),
        F.median("records").alias("records"),
        F.sum("gc_ms").alias("gc_ms"),
        F.sum("fetch_wait_ms").alias("fetch_wait_ms"),
        F.sum("network_ms").alias("network_ms"),
        F.sum("run_ms").alias("run_ms"),
        F.max("time").alias("last"),
    )


def _by_metric(kinds: DataFrame) -> DataFrame:
    """A row per metric that applies: its median, its sum of time and its tasks, named alike for all metrics."""
    metrics = [
        F.struct(
            F.lit(metric.value).alias("metric"),
            F.col(metric.value).alias("work"),
            F.col(time).alias("time_ms"),
            _named_alike(metric).alias("values"),
        )
        for metric, time in TIME_BY_METRIC.items()
    ]
    rows = kinds.withColumn("measure", F.explode(F.array(*metrics))).select("*", "measure.*")
    return rows.where(F.col("work") > 0)


def _named_alike(metric: Metric) -> Column:
    """Partition and value of each task; no value if it depends on the executor."""

    def named(task: Column) -> Column:
        value = task[_BY_PARTITION[metric]] if metric in _BY_PARTITION else F.lit(None)
        return F.struct(task["partition"], value.cast("double").alias("value"))

    return F.transform("own_tasks", named)


def _slowdowns(kinds: DataFrame) -> DataFrame:
    """Add the host's median time over the median of the other hosts, divided by how much larger its tasks were.

    That of a task, in `by_partition`, is in proportion.
    """
    kind = Window.partitionBy(*KIND, "metric")
    larger = F.greatest(
        F.col("size") / F.median("size").over(kind), F.col("records") / F.median("records").over(kind), F.lit(1.0)
    )
    size = F.when(F.col("metric") == Metric.COMPUTE.value, larger).otherwise(1.0)  # time per byte has no size
    return (
        kinds.withColumn("works", F.sort_array(F.collect_list("work").over(kind)))
        .withColumn("position", F.row_number().over(kind.orderBy("work")) - 1)
        .where(F.size("works") > 1)
        .withColumn("slowdown", F.col("work") / median_of_others("works", F.col("position")) / size)
        .withColumn("by_partition", F.transform("values", _in_proportion))
    )


def _in_proportion(task: Column) -> Column:
    slowdown = task["value"] / F.col("work") * F.col("slowdown")
    return F.struct(task["partition"], slowdown.alias("slowdown"))


def median_of_others(values: str, position: Column) -> Column:
    """Return the median of a sorted array column without the value at `position` (from 0); null if no other value."""
    others = F.size(values) - 1
    low, high = F.floor((others - 1) / 2), F.floor(others / 2)
    return (_other(values, position, low) + _other(values, position, high)) / 2


def _other(values: str, position: Column, index: Column) -> Column:
    """The value at `index` of the array without the value at `position`."""
    return F.get(values, F.when(index < position, index).otherwise(index + 1).cast("int"))


# Charge failed tasks, and slow serving of shuffle blocks, to hosts: FACTS -> FAILURES.

MIN_WAIT_RATIO: Final = 2.0
"""Minimum ratio of the other hosts' wait to the wait of the slow server itself."""
MIN_WAIT_SHARE: Final = 0.25
"""Minimum share of the run time that the other hosts wait."""
BAD_PARTITION_STAGES: Final = 3
"""Stages of an application in which a partition must fail, on several hosts, to be bad data: it keeps its number."""
_PARTITION: Final = (*STAGE, "partition")
_OF_THE_APPLICATION: Final = (FailureClass.MEMORY, FailureClass.USER, FailureClass.OTHER)
_OWN_OR_ONLY_THERE: Final = tuple(it.value for it in (*_OF_THE_APPLICATION, FailureClass.ONLY_THERE))
MIN_FAILED_PARTITIONS: Final = 2
"""Partitions of a stage that must fail on a host: one may have bad data."""
PATTERNS: Final = {
    FailureClass.DISK_FULL: "No space left on device|Disk quota exceeded",
    FailureClass.IO_ERROR: "Input/output error|Read-only file system|Stale file handle|Structure needs cleaning"
    "|No such device|Remote I/O error",
    FailureClass.MEMORY: "OutOfMemoryError|Cannot allocate memory|MemoryError",
}


def charged_failures(facts: DataFrame) -> DataFrame:
    """FACTS -> FAILURES."""
    by_partition = F.col("failure").isin(*(it.value for it in COUNTED_BY_PARTITION))
    counted = (
        charged_tasks(facts)
        .where(F.col("host").isNotNull())
        .groupBy(*STAGE, "host", "failure")
        .agg(
            F.count("*").alias("tasks"),
            F.coalesce(F.sum("duration"), F.lit(0)).alias("lost_ms"),
            F.first("message", True).alias("message"),
            F.max("time").alias("last"),
            F.collect_set(F.when(by_partition, F.col("partition"))).alias("partitions"),
        )
    )
    return conform(counted, FAILURES).unionAll(slow_servers(comparable(facts)))


def charged_tasks(facts: DataFrame) -> DataFrame:
    """FACTS -> the failed tasks, with the class in `failure` and the charged host in `host`."""
    failed = facts.where(
        (F.col("kind") == "task") & ~F.col("outcome").isin("Success", "TaskKilled", "TaskCommitDenied", "Resubmitted")
    )
    classified = _with_failures_only_there(failed.withColumn("failure", _failure_class()), facts)
    classified = _with_stages_that_failed_there(classified, facts)
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


def _with_stages_that_failed_there(failed: DataFrame, facts: DataFrame) -> DataFrame:
    """Classify again the failures of a stage in which every task failed on one host, and none on another one.

    The host may have no GPU, or a wrong library. It takes more tasks than any other, as each fails in a second, and may
    end the application before anything has succeeded elsewhere. A bug of the application fails on all hosts, or in one
    partition. So other hosts must have been there before, and the stage must have had tasks for them.
    """
    tasks = facts.where(F.col("kind") == "task")
    failures = (
        failed.where(F.col("failure").isin(*_OWN_OR_ONLY_THERE))
        .groupBy(*STAGE)
        .agg(
            F.countDistinct("host").alias("failed_hosts"),
            F.min("host").alias("host"),
            F.countDistinct("partition").alias("failed_partitions"),
            F.min("time").alias("began"),
        )
        .where((F.col("failed_hosts") == 1) & (F.col("failed_partitions") >= MIN_FAILED_PARTITIONS))
        .join(
            tasks.where(F.col("outcome") == "Success").select(*STAGE, "host").distinct(), [*STAGE, "host"], "left_anti"
        )
    )
    there = facts.where(F.col("kind").isin("task", "executor") & F.col("host").isNotNull())
    since = there.groupBy("app", F.col("host").alias("peer")).agg(F.min(F.coalesce("launched", "time")).alias("since"))
    submitted = facts.where(F.col("kind") == "stage").select(*STAGE, F.col("tasks").alias("partitions"))
    sizes = submitted.unionByName(tasks.select(*STAGE, (F.col("partition") + 1).alias("partitions")))
    found = (
        failures.join(since, "app")
        .where(F.col("since") <= F.col("began"))
        .groupBy(*STAGE, "host")
        .agg(F.countDistinct("peer").alias("hosts"))
        .join(sizes.groupBy(*STAGE).agg(F.max("partitions").alias("partitions")), [*STAGE])
        .where((F.col("hosts") >= MIN_HOSTS) & (F.col("partitions") >= F.col("hosts")))
        .select(*STAGE, "host", F.lit(True).alias("all_there"))
    )
    marked = failed.join(F.broadcast(found), [*STAGE, "host"], "left")
    all_there = F.col("failure").isin(*_OWN_OR_ONLY_THERE) & F.coalesce("all_there", F.lit(False))
    return marked.withColumn(
        "failure", F.when(all_there, F.lit(FailureClass.ALL_THERE.value)).otherwise(F.col("failure"))
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
