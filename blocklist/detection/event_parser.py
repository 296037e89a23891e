"""Parses lines of event logs into facts: which events and fields are used, and which lines are broken."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from blocklist.detection.schemas import FACTS, conform

_SCHEDULER: Final = "org.apache.spark.scheduler."
KINDS: Final = {
    "SparkListenerTaskEnd": "task",
    "SparkListenerStageSubmitted": "stage",
    "SparkListenerLogStart": "log",
    "SparkListenerApplicationStart": "application",
    f"{_SCHEDULER}SparkListenerNodeExcluded": "excluded",
    f"{_SCHEDULER}SparkListenerNodeExcludedForStage": "excluded",
}
"""Kind of fact by event. Spark 3 logs each exclusion also as a …Blacklisted… event, which is ignored."""

EVENT_PREFIX: Final = '{"Event":"'
"""Prefix of each line of an event log."""

MAX_MESSAGE: Final = 300  # characters of what a failure text
MAX_DETAIL: Final = 100  # characters of a broken line

_FIELDS: Final = """
    `Event` STRING, `Stage ID` BIGINT, `Stage Attempt ID` BIGINT,
    `Stage Info` STRUCT<
        `Stage ID`: BIGINT, `Stage Attempt ID`: BIGINT, `Number of Tasks`: BIGINT, `Submission Time`: BIGINT>,
    `Task End Reason` STRUCT<
        `Reason`: STRING, `Class Name`: STRING, `Description`: STRING, `Full Stack Trace`: STRING, `Message`: STRING,
        `Loss Reason`: STRING, `Kill Reason`: STRING, `Exit Caused By App`: BOOLEAN,
        `Block Manager Address`: STRUCT<`Host`: STRING>>,
    `Task Info` STRUCT<
        `Launch Time`: BIGINT, `Executor ID`: STRING, `Host`: STRING, `Locality`: STRING, `Speculative`: BOOLEAN,
        `Finish Time`: BIGINT>,
    `Task Metrics` STRUCT<
        `Executor Deserialize Time`: BIGINT, `Executor Run Time`: BIGINT, `Executor CPU Time`: BIGINT,
        `JVM GC Time`: BIGINT, `Memory Bytes Spilled`: BIGINT, `Disk Bytes Spilled`: BIGINT,
        `Shuffle Read Metrics`: STRUCT<
            `Fetch Wait Time`: BIGINT, `Remote Bytes Read`: BIGINT, `Local Bytes Read`: BIGINT,
            `Total Records Read`: BIGINT>,
        `Input Metrics`: STRUCT<`Bytes Read`: BIGINT, `Records Read`: BIGINT>>,
    `time` BIGINT, `hostId` STRING, `executorFailures` BIGINT, `stageId` BIGINT, `stageAttemptId` BIGINT,
    `Timestamp` BIGINT, `App Name` STRING, `Spark Version` STRING
"""
_APPLICATION: Final = r"^(?:events_\d+_)?(application_\d+_\d+|.+?)(?:_\d+)?(?:\.(?:inprogress|compact|zstd|lz4|gz))*$"
_CAUSE: Final = "Caused by: "
_MAX_TIME: Final = 253_402_300_800_000  # Unix ms: the year 10000, which Python's datetime does not have
_MAX_DURATION: Final = 10**12  # ms, 31 years; sums over a million tasks fit a BIGINT
_MAX_AMOUNT: Final = 2**50  # bytes or records of one task; sums over 8,000 tasks fit
_LAST_LINE: Final = r"(?s).*\n(\S[^\n]*)"  # Spark 4 adds " SQLSTATE: …"


def facts(lines: DataFrame) -> DataFrame:
    """Parse lines with the columns `file`, `value` (the line) and `open` (the file may end in the middle of a line)."""
    # The partition id makes the expression non-deterministic, so that Spark does not parse it again in each filter.
    once = F.when(_is_complete() & (F.spark_partition_id() >= 0), F.col("value"))
    start = F.left("value", F.lit(MAX_DETAIL))
    parsed = lines.where(_is_relevant()).select(
        "file", "open", start.alias("start"), F.from_json(once, _FIELDS).alias("event")
    )
    kinds = parsed.withColumn("kind", _kind()).where(F.col("kind").isNotNull())
    return conform(kinds.select(*(column.alias(name) for name, column in _columns().items())), FACTS)


def _is_complete() -> Column:
    return F.col("value").startswith(EVENT_PREFIX) & F.col("value").endswith("}")


def _is_relevant() -> Column:
    value = F.col("value")
    wanted = reduce(or_, (value.startswith(f'{EVENT_PREFIX}{event}"') for event in KINDS))
    return wanted | (~_is_complete() & (value != ""))


def _kind() -> Column:
    """The kind of the fact; null for the truncated last line of an open log and for an exclusion made by the agent."""
    event = F.col("event.Event")
    task = _has("Task Info.Host", "Task End Reason.Reason", "Stage ID")
    task &= _time("Task Info.Launch Time").isNotNull() & _time("Task Info.Finish Time").isNotNull()
    known = F.when(event == "SparkListenerTaskEnd", F.when(task, "task"))
    stage = _has("Stage Info.Stage ID", "Stage Info.Number of Tasks")
    known = known.when((event == "SparkListenerStageSubmitted") & stage, "stage")
    known = known.when(event == "SparkListenerLogStart", "log")
    known = known.when((event == "SparkListenerApplicationStart") & _time("Timestamp").isNotNull(), "application")
    known = known.when(event.startswith(_SCHEDULER) & _has("hostId") & _time("time").isNotNull(), "excluded")
    ours = known.eqNullSafe("excluded") & (_field("executorFailures") == 0)
    return F.when(known.isNull() & ~F.col("open"), "broken").when(~F.coalesce(ours, F.lit(False)), known)


def _field(path: str) -> Column:
    """The field at this path; its names contain blanks and are separated by dots."""
    return F.col(".".join(f"`{name}`" for name in ("event", *path.split("."))))


def _within(value: Column, maximum: int) -> Column:
    """The value if it is from 0 to `maximum`, else null: negative and huge values are not measurements."""
    return F.when(value.between(0, maximum), value)


def _time(path: str) -> Column:
    return _within(_field(path), _MAX_TIME)


def _duration(path: str) -> Column:
    return _within(_field(path), _MAX_DURATION)


def _amount(path: str) -> Column:
    return _within(_field(path), _MAX_AMOUNT)


def _has(*paths: str) -> Column:
    return reduce(lambda left, right: left & right, (_field(path).isNotNull() for path in paths))


def _columns() -> dict[str, Column]:
    ended, reason, metrics = "Task Info.Finish Time", "Task End Reason", "Task Metrics"
    shuffle, read = f"{metrics}.Shuffle Read Metrics", f"{metrics}.Input Metrics"
    broken = F.col("kind") == "broken"
    return {
        "kind": F.col("kind"),
        "file": F.col("file"),
        "app": F.regexp_extract(F.substring_index("file", "/", -1), _APPLICATION, 1),
        "time": F.coalesce(_time(ended), _time("time"), _time("Timestamp"), _time("Stage Info.Submission Time")),
        "host": F.coalesce(_field("Task Info.Host"), _field("hostId")),
        "executor": _field("Task Info.Executor ID"),
        "stage": F.coalesce(_field("Stage ID"), _field("stageId"), _field("Stage Info.Stage ID")),
        "attempt": F.coalesce(
            _field("Stage Attempt ID"), _field("stageAttemptId"), _field("Stage Info.Stage Attempt ID")
        ),
        "tasks": _field("Stage Info.Number of Tasks"),
        "launched": _time("Task Info.Launch Time"),
        "duration": _within(_time(ended) - _time("Task Info.Launch Time"), _MAX_DURATION),
        "outcome": _field(f"{reason}.Reason"),
        "speculative": _field("Task Info.Speculative"),
        "locality": _field("Task Info.Locality"),
        "error": _field(f"{reason}.Class Name"),
        "message": _message(),
        "caused_by_app": _field(f"{reason}.Exit Caused By App"),
        "served_by": _field(f"{reason}.Block Manager Address.Host"),
        "run_ms": _duration(f"{metrics}.Executor Run Time"),
        "cpu_ms": _within((_field(f"{metrics}.Executor CPU Time") / 1_000_000).cast("bigint"), _MAX_DURATION),
        "gc_ms": _duration(f"{metrics}.JVM GC Time"),
        "fetch_wait_ms": _duration(f"{shuffle}.Fetch Wait Time"),
        "deserialize_ms": _duration(f"{metrics}.Executor Deserialize Time"),
        "input_bytes": _amount(f"{read}.Bytes Read"),
        "input_records": _amount(f"{read}.Records Read"),
        "shuffle_bytes": _amount(f"{shuffle}.Remote Bytes Read") + _amount(f"{shuffle}.Local Bytes Read"),
        "remote_bytes": _amount(f"{shuffle}.Remote Bytes Read"),
        "shuffle_records": _amount(f"{shuffle}.Total Records Read"),
        "spilled_bytes": _amount(f"{metrics}.Disk Bytes Spilled"),
        "detail": F.when(broken, F.col("start")).otherwise(F.coalesce(_field("Spark Version"), _field("App Name"))),
    }


def _message() -> Column:
    """The failure message, at most MAX_MESSAGE characters. If it is longer, half of them hold its last cause.

    "Task failed while writing rows" ends with "Caused by: java.io.IOException: No space left on device", a Python
    traceback with its exception.
    """
    reason = "Task End Reason"
    text = F.coalesce(
        *(_field(f"{reason}.{name}") for name in ("Description", "Message", "Loss Reason", "Kill Reason"))
    )
    trace = F.coalesce(_field(f"{reason}.Full Stack Trace"), text)
    traceback = F.when(text.contains("Traceback (most"), F.regexp_extract(text, _LAST_LINE, 1))
    caused = F.when(trace.contains(_CAUSE), F.substring_index(F.substring_index(trace, _CAUSE, -1), "\n", 1))
    cause = F.left(F.coalesce(traceback, caused), F.lit(MAX_MESSAGE // 2))
    both = F.concat(F.left(text, F.lit(MAX_MESSAGE // 2 - 3)), F.lit(" … "), cause)
    return F.when(cause.isNotNull() & ~F.left(text, F.lit(MAX_MESSAGE)).contains(cause), both).otherwise(
        F.left(text, F.lit(MAX_MESSAGE))
    )
