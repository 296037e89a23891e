"""The events of a log that become facts, and their fields, as msgspec decodes them: only what is used is kept.

Everything else in a line, such as accumulables, is skipped without being decoded.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import fields

MAX_TIME: Final = 253_402_300_800_000
"""Unix ms: the year 10000, which Python's datetime does not have. Times are before it."""

_Int = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Time = Annotated[int, Meta(ge=0, lt=MAX_TIME)]
_OptionalInt = _Int | None
_Event = TypeVar("_Event", bound=Struct)


class AnyEvent(Struct, gc=False):
    event: str = field(name="Event")


class BlockManagerAddress(Struct, gc=False):
    """Of a fetch failure: the host that served."""

    host: str | None = field(default=None, name="Host")


class EndReason(Struct, gc=False):
    """How a task ended."""

    reason: str = field(name="Reason")
    class_name: str | None = field(default=None, name="Class Name")
    description: str | None = field(default=None, name="Description")
    full_stack_trace: str | None = field(default=None, name="Full Stack Trace")
    message: str | None = field(default=None, name="Message")
    loss_reason: str | None = field(default=None, name="Loss Reason")
    kill_reason: str | None = field(default=None, name="Kill Reason")
    caused_by_app: bool | None = field(default=None, name="Exit Caused By App")
    address: BlockManagerAddress | None = field(default=None, name="Block Manager Address")


class TaskInfo(Struct, gc=False):
    """Where and when a task ran; times in Unix ms."""

    launch_time: _Time = field(name="Launch Time")
    finish_time: _Time = field(name="Finish Time")
    host: str = field(name="Host")
    executor: str | None = field(default=None, name="Executor ID")
    index: _OptionalInt = field(default=None, name="Index")
    locality: str | None = field(default=None, name="Locality")
    speculative: bool | None = field(default=None, name="Speculative")


class ShuffleRead(Struct, gc=False):
    """Time in ms, sizes in bytes."""

    fetch_wait: _OptionalInt = field(default=None, name="Fetch Wait Time")
    remote_bytes: _OptionalInt = field(default=None, name="Remote Bytes Read")
    local_bytes: _OptionalInt = field(default=None, name="Local Bytes Read")
    records: _OptionalInt = field(default=None, name="Total Records Read")


class ShuffleWrite(Struct, gc=False):
    """Size in bytes, time in ns."""

    written: _OptionalInt = field(default=None, name="Shuffle Bytes Written")
    time: _OptionalInt = field(default=None, name="Shuffle Write Time")


class Input(Struct, gc=False):
    """What a task read from storage."""

    bytes_read: _OptionalInt = field(default=None, name="Bytes Read")
    records: _OptionalInt = field(default=None, name="Records Read")


class MeasuredTask(Struct, gc=False):
    """Times in ms (CPU in ns), sizes in bytes."""

    deserialize: _OptionalInt = field(default=None, name="Executor Deserialize Time")
    run: _OptionalInt = field(default=None, name="Executor Run Time")
    cpu: _OptionalInt = field(default=None, name="Executor CPU Time")
    gc: _OptionalInt = field(default=None, name="JVM GC Time")
    disk_spilled: _OptionalInt = field(default=None, name="Disk Bytes Spilled")
    shuffle: ShuffleRead | None = field(default=None, name="Shuffle Read Metrics")
    shuffle_write: ShuffleWrite | None = field(default=None, name="Shuffle Write Metrics")
    input: Input | None = field(default=None, name="Input Metrics")


class TaskEnd(Struct, gc=False):
    """A task ended, in whatever way."""

    stage: _Int = field(name="Stage ID")
    reason: EndReason = field(name="Task End Reason")
    info: TaskInfo = field(name="Task Info")
    attempt: _OptionalInt = field(default=None, name="Stage Attempt ID")
    metrics: MeasuredTask | None = field(default=None, name="Task Metrics")


class StageInfo(Struct, gc=False):
    stage: _Int = field(name="Stage ID")
    tasks: _Int = field(name="Number of Tasks")
    attempt: _OptionalInt = field(default=None, name="Stage Attempt ID")
    submitted: _OptionalInt = field(default=None, name="Submission Time")


class StageSubmitted(Struct, gc=False):
    info: StageInfo = field(name="Stage Info")


class LogStart(Struct, gc=False):
    """The first line of a log since Spark 1.3."""

    version: str | None = field(default=None, name="Spark Version")


class ApplicationStart(Struct, gc=False):
    """Who writes the log; `attempt` is set by YARN in cluster mode."""

    timestamp: _Time = field(name="Timestamp")
    name: str | None = field(default=None, name="App Name")
    app_id: str | None = field(default=None, name="App ID")
    attempt: str | None = field(default=None, name="App Attempt ID")


class NodeExcluded(Struct, gc=False):
    """Spark excluded a host, from a stage or from the application. The agent's own exclusions have no failures."""

    time: _Time
    host: str = field(name="hostId")
    failures: _OptionalInt = field(default=None, name="executorFailures")
    stage: _OptionalInt = field(default=None, name="stageId")
    attempt: _OptionalInt = field(default=None, name="stageAttemptId")


class ExecutorInfo(Struct, gc=False):
    """An executor's host, and what its environment says about it (`SPARK_EXECUTOR_ATTRIBUTE_…`)."""

    host: str = field(name="Host")
    attributes: dict[str, str] | None = field(default=None, name="Attributes")


class ExecutorAdded(Struct, gc=False):
    executor: str = field(name="Executor ID")
    info: ExecutorInfo = field(name="Executor Info")
    timestamp: _OptionalInt = field(default=None, name="Timestamp")


class SparkProperties(Struct, gc=False):
    """Of the configuration, only what tells the cluster manager."""

    master: str | None = field(default=None, name="spark.master")


class EnvironmentUpdate(Struct, gc=False):
    """The application's configuration."""

    properties: SparkProperties | None = field(default=None, name="Spark Properties")


def decode_leniently(line: bytes, event: type[_Event]) -> _Event:
    """Decode a line in which an optional field has an impossible value: that field counts as missing.

    Raises ValueError if a required field is missing or impossible, or if the line is not a JSON object.
    """
    try:
        data = json.loads(line.decode(errors="replace"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return _convert(data, event)


def _convert(data: Any, event: type[_Event]) -> _Event:
    if not isinstance(data, dict):
        raise ValueError("not an object")
    values: dict[str, Any] = {}
    for known in fields(event):
        try:
            values[known.name] = _convert_field(data.get(known.encode_name), known.type)
        except (ValueError, msgspec.ValidationError):
            if known.required:
                raise ValueError(f"{known.encode_name!r} is missing or impossible") from None
    return event(**values)


def _convert_field(value: Any, kind: Any) -> Any:
    nested = [it for it in (kind, *getattr(kind, "__args__", ())) if isinstance(it, type) and issubclass(it, Struct)]
    if nested and value is not None:
        return _convert(value, nested[0])
    # A lone surrogate is text that cannot be written as UTF-8.
    return msgspec.convert(value.encode(errors="replace").decode() if isinstance(value, str) else value, kind)
