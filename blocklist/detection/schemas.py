"""Schemas of the DataFrames of the pipeline. Each stage checks its result with `conform`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)


def _struct(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def _list(kind: DataType) -> ArrayType:
    return ArrayType(kind, containsNull=False)


_TEXT, _NUMBER, _YES, _RATIO = StringType(), LongType(), BooleanType(), DoubleType()

FACTS: Final = _struct(
    kind=_TEXT,  # log, application, environment, executor, stage, task, excluded or broken
    file=_TEXT,  # the file, as Spark names it
    app=_TEXT,  # the application: its name as far as the path tells, until pipeline.assign_applications has run
    app_id=_TEXT,  # application: its App ID, and its attempt where it has one
    time=_NUMBER,  # Unix ms: end of a task, else of the event; null for log, environment and broken
    host=_TEXT,  # of tasks, exclusions and executors
    executor=_TEXT,
    stage=_NUMBER,
    attempt=_NUMBER,  # of the stage
    partition=_NUMBER,  # index of a task in its stage; all attempts of it have the same
    tasks=_NUMBER,  # number of tasks of a submitted stage
    launched=_NUMBER,  # Unix ms
    duration=_NUMBER,  # ms, from launch to end
    outcome=_TEXT,  # Task End Reason, Reason: Success, ExceptionFailure, FetchFailed, ExecutorLostFailure, …
    speculative=_YES,
    locality=_TEXT,
    error=_TEXT,  # the exception's class
    message=_TEXT,  # failure message, at most 300 characters, including its last cause
    caused_by_app=_YES,  # ExecutorLostFailure's Exit Caused By App
    served_by=_TEXT,  # FetchFailed: the host that served
    run_ms=_NUMBER,
    cpu_ms=_NUMBER,
    gc_ms=_NUMBER,
    fetch_wait_ms=_NUMBER,
    deserialize_ms=_NUMBER,
    input_bytes=_NUMBER,
    input_records=_NUMBER,
    shuffle_bytes=_NUMBER,  # read, local and remote
    remote_bytes=_NUMBER,  # read from other hosts
    shuffle_records=_NUMBER,
    spilled_bytes=_NUMBER,
    written_bytes=_NUMBER,  # shuffle blocks
    write_ms=_NUMBER,  # time that writing them took; part of run_ms
    detail=_TEXT,  # log: Spark's version; application: its name; environment: the master's URL;
    # executor: the node of its pod, if it names one; broken: its first 100 characters
)
"""One row per event that concerns a node, and one per line that cannot be parsed."""
COLUMNS: Final = {field.name: field.dataType.simpleString() for field in FACTS.fields}
"""Type of each column of FACTS: string, bigint or boolean."""


HOST_STAGES: Final = _struct(
    app=_TEXT,
    stage=_NUMBER,
    attempt=_NUMBER,
    host=_TEXT,
    metric=_TEXT,  # a value of node_summary.Metric
    tasks=_NUMBER,  # comparable tasks
    slowdown=_RATIO,  # time by this metric over that of the peers
    time_ms=_NUMBER,  # sum of the time by this metric
    gc_share=_RATIO,  # of the run time
    fetch_wait_share=_RATIO,
    hosts=_NUMBER,  # compared in this stage
    slow_hosts=_NUMBER,  # of them, slow
    slow=_YES,
    first=_NUMBER,  # Unix ms, start of the first task
    last=_NUMBER,  # Unix ms, end of the last task
    by_partition=_list(_struct(partition=_NUMBER, slowdown=_RATIO)),  # of each comparable task
)
"""One row per host, metric and stage in which the host was compared with at least two other hosts."""

HOST_APPLICATIONS: Final = _struct(
    app=_TEXT,
    host=_TEXT,
    metric=_TEXT,  # a value of node_summary.Metric
    stages=_NUMBER,  # compared
    slow_stages=_NUMBER,
    slowdown=_RATIO,  # median over the stages, or over the partitions if that is less
    lost_ms=_NUMBER,  # in slow stages: task time beyond that of the peers
    first=_NUMBER,  # Unix ms, start of the first compared task; of the first slow stage, if one is slow
    last=_NUMBER,  # Unix ms, end of the last compared task; of the last slow stage, if one is slow
)
"""One row per host, metric and application: the latest applications of each host, node_summary.MAX_APPLICATIONS."""

FAILURES: Final = _struct(
    app=_TEXT,
    stage=_NUMBER,
    attempt=_NUMBER,
    host=_TEXT,  # charged host; of a fetch failure the one that served
    failure=_TEXT,  # a value of node_summary.Failure
    tasks=_NUMBER,
    lost_ms=_NUMBER,  # time of these tasks; for SLOW_SERVER the time that they waited
    message=_TEXT,  # of one task
    last=_NUMBER,  # Unix ms
    partitions=_list(_NUMBER),  # of these tasks, each once; only for ONLY_THERE and ALL_THERE
)
"""Failed tasks by host, stage and class. For SLOW_SERVER: the tasks that waited for the host."""

TASK_TIMES: Final = _struct(
    host=_TEXT,
    minute=_NUMBER,  # Unix ms, start of the minute
    lost_ms=_NUMBER,  # what the host's faults cost the tasks that started in this minute
    healthy_ms=_NUMBER,  # time of these tasks in which the host was as good as its peers
)
"""One row per node and minute in which tasks started there."""

NODES: Final = _struct(
    host=_TEXT,
    tasks=_NUMBER,
    applications=_NUMBER,
    share=_RATIO,  # of all tasks
    gc_share=_RATIO,
    fetch_wait_share=_RATIO,
    shuffle_share=_RATIO,  # of the bytes read by its tasks
    exclusions=_NUMBER,  # by Spark itself
    stages=_NUMBER,  # compared
    slow_stages=_NUMBER,
    slow_applications=_NUMBER,
    expected=_RATIO,  # expected slow stages of a random node
    slowdown=_RATIO,  # median over the stages; null without stages
    slow_last=_NUMBER,  # Unix ms, end of the last task in a slow stage; null without one
)
"""One row per node, over all applications."""


def conform(frame: DataFrame, schema: StructType) -> DataFrame:
    """Select the columns of the schema, in its order. Raises ValueError if one is missing or has another type."""
    present = {field.name: field.dataType for field in frame.schema.fields}
    wrong = [field.name for field in schema.fields if present.get(field.name) != field.dataType]
    if wrong:
        raise ValueError(f"These columns are missing or of another type: {', '.join(wrong)}.")
    return frame.select(*schema.fieldNames())


# What is left out of an analysis, and why.


@dataclass(frozen=True, kw_only=True, slots=True)
class Omission:
    """Lines, logs or pods that are left out. `subject`: which ones; the counts in `sentence` may grow."""

    subject: str
    sentence: str
