"""Decoded events -> Arrow record batches of schemas.FACTS, column by column."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from blocklist.detection.events import EndReason, Input, MeasuredTask, ShuffleRead, ShuffleWrite, TaskEnd
from blocklist.detection.schemas import COLUMNS

MAX_MESSAGE: Final = 300
"""Maximum number of characters of a failure's text."""
_CAUSE: Final = "Caused by: "
_MAX_DURATION: Final = 10**12  # ms, 31 years; sums over a million tasks fit 64 bits
_MAX_AMOUNT: Final = 2**50  # bytes or records of one task; sums over 8,000 tasks fit
_MISSING: Final = -(2**63)  # no log has this number
_DURATIONS: Final = ("run_ms", "gc_ms", "deserialize_ms", "fetch_wait_ms")
_AMOUNTS: Final = (
    "spilled_bytes",
    "written_bytes",
    "shuffle_records",
    "remote_bytes",
    "input_bytes",
    "input_records",
)
_TYPES: Final = {"string": pa.string(), "bigint": pa.int64(), "boolean": pa.bool_()}
_NO_METRICS, _NO_SHUFFLE, _NO_WRITE, _NO_INPUT = MeasuredTask(), ShuffleRead(), ShuffleWrite(), Input()


@cache
def arrow_schema() -> pa.Schema:
    """schemas.FACTS in Arrow."""
    return pa.schema([(name, _TYPES[kind]) for name, kind in COLUMNS.items()])


def text_fact(facts: Sequence[Mapping[str, Any]], same: Mapping[str, str]) -> pa.RecordBatch:
    """Facts of any kind as mappings; `same`: columns that all share."""
    return pa.RecordBatch.from_pylist([{**same, **fact} for fact in facts], schema=arrow_schema())


class TaskColumns:
    """Collects tasks column by column, and returns them as one record batch.

    Add some 100 tasks at once: while they are in the processor's cache, and their memory can be used again.
    """

    def __init__(self) -> None:
        self.size = 0
        """Number of tasks."""
        self._numbers: dict[str, array[int]] = defaultdict(lambda: array("q"))
        self._others: dict[str, list[pa.Array]] = defaultdict(list)

    def add(self, tasks: Sequence[TaskEnd]) -> None:
        """Append tasks to their columns."""
        if not tasks:
            return
        self.size += len(tasks)
        for name, numbers in (_where_and_when(tasks) | _measurements(tasks)).items():
            _append(self._numbers[name], numbers)
        for name, values in _texts(tasks).items():
            self._others[name].append(_array(values, pa.string()))
        for name, flags in _flags(tasks).items():
            self._others[name].append(_array(flags, pa.bool_()))

    def batch(self, same: Mapping[str, str]) -> pa.RecordBatch:
        """Facts of the tasks; `same`: columns that all share."""
        columns = {name: pa.repeat(value, self.size) for name, value in same.items()}
        columns |= {name: pa.concat_arrays(parts) for name, parts in self._others.items()}
        columns |= _within_limits({name: _from_buffer(numbers) for name, numbers in self._numbers.items()})
        schema = arrow_schema()
        missing = {field.name: pa.nulls(self.size, field.type) for field in schema if field.name not in columns}
        found = columns | missing
        return pa.RecordBatch.from_arrays([found[name] for name in schema.names], schema=schema)


_Numbers = dict[str, list[int | None]]


def _where_and_when(tasks: Sequence[TaskEnd]) -> _Numbers:
    infos = [task.info for task in tasks]
    return {
        "launched": [it.launch_time for it in infos],
        "time": [it.finish_time for it in infos],
        "stage": [task.stage for task in tasks],
        "attempt": [task.attempt for task in tasks],
        "partition": [it.index for it in infos],
    }


def _measurements(tasks: Sequence[TaskEnd]) -> _Numbers:
    metrics = [task.metrics or _NO_METRICS for task in tasks]
    shuffles = [it.shuffle or _NO_SHUFFLE for it in metrics]
    writes = [it.shuffle_write or _NO_WRITE for it in metrics]
    inputs = [it.input or _NO_INPUT for it in metrics]
    return {
        "run_ms": [it.run for it in metrics],
        "cpu_ns": [it.cpu for it in metrics],
        "gc_ms": [it.gc for it in metrics],
        "deserialize_ms": [it.deserialize for it in metrics],
        "spilled_bytes": [it.disk_spilled for it in metrics],
        "written_bytes": [it.written for it in writes],
        "write_ns": [it.time for it in writes],
        "fetch_wait_ms": [it.fetch_wait for it in shuffles],
        "shuffle_records": [it.records for it in shuffles],
        "remote_bytes": [it.remote_bytes for it in shuffles],
        "local_bytes": [it.local_bytes for it in shuffles],
        "input_bytes": [it.bytes_read for it in inputs],
        "input_records": [it.records for it in inputs],
    }


def _texts(tasks: Sequence[TaskEnd]) -> dict[str, list[str | None]]:
    infos, reasons = [task.info for task in tasks], [task.reason for task in tasks]
    return {
        "kind": ["task"] * len(tasks),
        "host": [it.host for it in infos],
        "executor": [it.executor for it in infos],
        "locality": [it.locality for it in infos],
        "outcome": [it.reason for it in reasons],
        "error": [it.class_name for it in reasons],
        "message": [None if it.reason == "Success" else failure_message(it) for it in reasons],
        "served_by": [it.address.host if it.address else None for it in reasons],
    }


def _flags(tasks: Sequence[TaskEnd]) -> dict[str, list[bool | None]]:
    return {
        "speculative": [task.info.speculative for task in tasks],
        "caused_by_app": [task.reason.caused_by_app for task in tasks],
    }


def _append(column: array[int], numbers: list[int | None]) -> None:
    try:
        column.fromlist(numbers)  # type: ignore[arg-type]
    except TypeError:  # some are missing
        column.fromlist([_MISSING if number is None else number for number in numbers])


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Most columns of successful tasks have the same value in each row."""
    if values.count(values[0]) == len(values):
        return pa.repeat(pa.scalar(values[0], kind), len(values))
    return pa.array(values, kind)


def _from_buffer(numbers: array[int]) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def _within_limits(raw: dict[str, pa.Array]) -> dict[str, pa.Array]:
    """Negative and huge numbers are not measurements: they count as missing."""
    columns = {name: raw[name] for name in ("launched", "time", "stage")}
    columns |= {name: _unless(pc.equal(raw[name], _MISSING), raw[name]) for name in ("attempt", "partition")}
    columns["duration"] = _within(pc.subtract(raw["time"], raw["launched"]), _MAX_DURATION)
    columns |= {name: _within(raw[name], _MAX_DURATION) for name in _DURATIONS}
    columns |= {f"{name}_ms": _within(_milliseconds(raw[f"{name}_ns"]), _MAX_DURATION) for name in ("cpu", "write")}
    columns |= {name: _within(raw[name], _MAX_AMOUNT) for name in _AMOUNTS}
    columns["shuffle_bytes"] = pc.add(columns["remote_bytes"], _within(raw["local_bytes"], _MAX_AMOUNT))
    return columns


def _milliseconds(nanoseconds: pa.Array) -> pa.Array:
    return pc.divide(nanoseconds, 1_000_000)


def _within(values: pa.Array, maximum: int) -> pa.Array:
    """The values from 0 to `maximum`; null for the others."""
    return _unless(pc.or_(pc.less(values, 0), pc.greater(values, maximum)), values)


def _unless(condition: pa.Array, values: pa.Array) -> pa.Array:
    return pc.if_else(condition, None, values)


def failure_message(reason: EndReason) -> str | None:
    """The failure's text, at most MAX_MESSAGE characters. If it is longer, half of them hold its last cause.

    "Task failed while writing rows" ends with "Caused by: java.io.IOException: No space left on device", a Python
    traceback with its exception.
    """
    texts = (reason.description, reason.message, reason.loss_reason, reason.kill_reason)
    text = next((it for it in texts if it is not None), None)
    if text is None:
        return None
    cause = _last_cause(text, reason.full_stack_trace or text)
    start = text[:MAX_MESSAGE]
    if cause and cause not in start:
        return f"{text[: MAX_MESSAGE // 2 - 3]} … {cause}"
    return start


def _last_cause(text: str, trace: str) -> str | None:
    if "Traceback (most" in text:
        lines = [line for line in text.split("\n")[1:] if line[:1].strip()]
        return lines[-1][: MAX_MESSAGE // 2] if lines else ""
    if _CAUSE in trace:
        return trace.rpartition(_CAUSE)[2].partition("\n")[0][: MAX_MESSAGE // 2]
    return None
