"""Decoded events -> Arrow record batches of schemas.FACTS, column by column."""

from __future__ import annotations

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
_TYPES: Final = {"string": pa.string(), "bigint": pa.int64(), "boolean": pa.bool_()}
_NO_METRICS, _NO_SHUFFLE, _NO_WRITE, _NO_INPUT = MeasuredTask(), ShuffleRead(), ShuffleWrite(), Input()


@cache
def arrow_schema() -> pa.Schema:
    """schemas.FACTS in Arrow."""
    return pa.schema([(name, _TYPES[kind]) for name, kind in COLUMNS.items()])


def text_fact(facts: Sequence[Mapping[str, Any]], same: Mapping[str, str]) -> pa.RecordBatch:
    """Facts of any kind as mappings; `same`: columns that all share."""
    return pa.RecordBatch.from_pylist([{**same, **fact} for fact in facts], schema=arrow_schema())


def task_batch(tasks: Sequence[TaskEnd], same: Mapping[str, str]) -> pa.RecordBatch:
    """Facts of tasks; `same`: columns that all share."""
    columns = {name: pa.array([value] * len(tasks), pa.string()) for name, value in same.items()}
    columns |= _where_and_when(tasks) | _outcomes(tasks) | _measurements(tasks)
    schema = arrow_schema()
    missing = {field.name: pa.nulls(len(tasks), field.type) for field in schema if field.name not in columns}
    return pa.RecordBatch.from_pydict(columns | missing, schema=schema)


def _where_and_when(tasks: Sequence[TaskEnd]) -> dict[str, pa.Array]:
    infos = [task.info for task in tasks]
    launched, ended = _numbers([it.launch_time for it in infos]), _numbers([it.finish_time for it in infos])
    return {
        "kind": pa.array(["task"] * len(tasks)),
        "time": ended,
        "launched": launched,
        "duration": _within(pc.subtract(ended, launched), _MAX_DURATION),
        "host": pa.array([it.host for it in infos]),
        "executor": pa.array([it.executor for it in infos], pa.string()),
        "stage": _numbers([task.stage for task in tasks]),
        "attempt": _numbers([task.attempt for task in tasks]),
        "partition": _numbers([it.index for it in infos]),
        "speculative": pa.array([it.speculative for it in infos], pa.bool_()),
        "locality": pa.array([it.locality for it in infos], pa.string()),
    }


def _outcomes(tasks: Sequence[TaskEnd]) -> dict[str, pa.Array]:
    reasons = [task.reason for task in tasks]
    return {
        "outcome": pa.array([it.reason for it in reasons]),
        "error": pa.array([it.class_name for it in reasons], pa.string()),
        "message": pa.array([None if it.reason == "Success" else failure_message(it) for it in reasons], pa.string()),
        "caused_by_app": pa.array([it.caused_by_app for it in reasons], pa.bool_()),
        "served_by": pa.array([it.address.host if it.address else None for it in reasons], pa.string()),
    }


def _measurements(tasks: Sequence[TaskEnd]) -> dict[str, pa.Array]:
    """Negative and huge numbers are not measurements: they count as missing."""
    metrics = [task.metrics or _NO_METRICS for task in tasks]
    shuffles = [it.shuffle or _NO_SHUFFLE for it in metrics]
    writes = [it.shuffle_write or _NO_WRITE for it in metrics]
    inputs = [it.input or _NO_INPUT for it in metrics]
    remote, local = _amounts([it.remote_bytes for it in shuffles]), _amounts([it.local_bytes for it in shuffles])
    return {
        "run_ms": _durations([it.run for it in metrics]),
        "cpu_ms": _within(pc.divide(_numbers([it.cpu for it in metrics]), 1_000_000), _MAX_DURATION),
        "gc_ms": _durations([it.gc for it in metrics]),
        "deserialize_ms": _durations([it.deserialize for it in metrics]),
        "spilled_bytes": _amounts([it.disk_spilled for it in metrics]),
        "written_bytes": _amounts([it.written for it in writes]),
        "write_ms": _within(pc.divide(_numbers([it.time for it in writes]), 1_000_000), _MAX_DURATION),
        "fetch_wait_ms": _durations([it.fetch_wait for it in shuffles]),
        "shuffle_records": _amounts([it.records for it in shuffles]),
        "shuffle_bytes": pc.add(remote, local),
        "remote_bytes": remote,
        "input_bytes": _amounts([it.bytes_read for it in inputs]),
        "input_records": _amounts([it.records for it in inputs]),
    }


def _numbers(values: Sequence[int | None]) -> pa.Array:
    return pa.array(values, pa.int64())


def _durations(values: Sequence[int | None]) -> pa.Array:
    return _within(_numbers(values), _MAX_DURATION)


def _amounts(values: Sequence[int | None]) -> pa.Array:
    return _within(_numbers(values), _MAX_AMOUNT)


def _within(values: pa.Array, maximum: int) -> pa.Array:
    """The values from 0 to `maximum`; null for the others."""
    return pc.if_else(pc.and_(pc.greater_equal(values, 0), pc.less_equal(values, maximum)), values, None)


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
