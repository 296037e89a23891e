"""What the DataFrames of the pipeline hold. Each has its contract here; `conform` checks it where one is handed on."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.types import BooleanType, DataType, DoubleType, LongType, StringType, StructField, StructType


def _struct(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


_TEXT, _NUMBER, _YES, _RATIO = StringType(), LongType(), BooleanType(), DoubleType()

FACTS: Final = _struct(
    kind=_TEXT,  # log, application, stage, task, excluded or broken
    file=_TEXT,  # the event log, as Spark names it
    app=_TEXT,  # the application id, from the log's name
    time=_NUMBER,  # Unix ms: of a task its end, else that of the event; null for log and broken
    host=_TEXT,  # of tasks and exclusions
    executor=_TEXT,
    stage=_NUMBER,
    attempt=_NUMBER,  # of the stage
    tasks=_NUMBER,  # of a stage that begins: how many it has
    launched=_NUMBER,  # Unix ms
    duration=_NUMBER,  # ms, from launch to end
    outcome=_TEXT,  # Task End Reason's Reason: Success, ExceptionFailure, FetchFailed, ExecutorLostFailure, …
    speculative=_YES,
    locality=_TEXT,
    error=_TEXT,  # the exception's class
    message=_TEXT,  # what the failure said: 300 characters of it, its last cause among them
    caused_by_app=_YES,  # ExecutorLostFailure's Exit Caused By App
    served_by=_TEXT,  # the host that a FetchFailed could not fetch from
    run_ms=_NUMBER,
    cpu_ms=_NUMBER,
    gc_ms=_NUMBER,
    fetch_wait_ms=_NUMBER,
    deserialize_ms=_NUMBER,
    input_bytes=_NUMBER,
    input_records=_NUMBER,
    shuffle_bytes=_NUMBER,  # read: local and remote
    remote_bytes=_NUMBER,  # those of other hosts
    shuffle_records=_NUMBER,
    spilled_bytes=_NUMBER,
    detail=_TEXT,  # log: Spark's version; application: its name; broken: its first 100 characters
)
"""One row for each event that tells something of a node, and one for each line that could not be read."""


HOST_STAGES: Final = _struct(
    app=_TEXT,
    stage=_NUMBER,
    attempt=_NUMBER,
    host=_TEXT,
    tasks=_NUMBER,  # those that could be compared
    slowdown=_RATIO,  # its task times, less GC and fetch wait, over its peers'
    gc_share=_RATIO,  # of the run time
    fetch_wait_share=_RATIO,
    hosts=_NUMBER,  # that could be compared in this stage
    slow_hosts=_NUMBER,  # those among them that were slow
    slow=_YES,
    last=_NUMBER,  # Unix ms, the end of the last of the tasks
)
"""Each host in each stage in which it could be compared with at least two others."""

FAILURES: Final = _struct(
    app=_TEXT,
    stage=_NUMBER,
    attempt=_NUMBER,
    host=_TEXT,  # to which it is charged: of a fetch failure the one that served
    failure=_TEXT,  # a value of node_summary.Failure
    tasks=_NUMBER,
    message=_TEXT,  # of one of them
    last=_NUMBER,  # Unix ms
)
"""Failed tasks by host, stage and class; for a slow server the tasks that waited for it."""

NODES: Final = _struct(
    host=_TEXT,
    tasks=_NUMBER,
    applications=_NUMBER,
    share=_RATIO,  # of all tasks
    gc_share=_RATIO,
    fetch_wait_share=_RATIO,
    shuffle_share=_RATIO,  # of the bytes that its tasks read
    exclusions=_NUMBER,  # that Spark itself made
    stages=_NUMBER,  # compared
    slow_stages=_NUMBER,
    slow_applications=_NUMBER,
    expected=_RATIO,  # slow stages of a node taken at random
    slowdown=_RATIO,  # median over the stages; null where there are none
    slow_last=_NUMBER,  # Unix ms, the end of the last task in a slow stage; null where there is none
)
"""Each node, over all applications."""


def conform(frame: DataFrame, schema: StructType) -> DataFrame:
    """The frame, with these columns in this order. Raises ValueError where one is missing or of another type."""
    present = {field.name: field.dataType for field in frame.schema.fields}
    wrong = [field.name for field in schema.fields if present.get(field.name) != field.dataType]
    if wrong:
        raise ValueError(f"These columns are missing or of another type: {', '.join(wrong)}.")
    return frame.select(*schema.fieldNames())
