"""Parses lines of event logs into facts (schemas.FACTS): which lines are used, and which are broken.

Runs in the executors, in Python: msgspec decodes a line several times faster than Spark's `from_json`, as it skips what
is not used.
"""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from blocklist.detection import events
from blocklist.detection.events import EndReason, Input, MeasuredTask, ShuffleRead, ShuffleWrite, TaskEnd
from blocklist.detection.log_file import IN_FUTURE, Note, is_databricks_part, latest_time
from blocklist.detection.schemas import COLUMNS
from blocklist.model.names import normalize_name

EVENT_PREFIX: Final = b'{"Event":"'
"""Prefix of each line as Spark writes it. Other tools write spaces, or the fields in another order."""
BATCH: Final = 20_000
"""Number of facts that are returned at once."""
MAX_DETAIL: Final = 100
"""Maximum number of characters of a master's URL."""

_SOME_TASKS: Final = 100
"""Minimum number of tasks that are moved into columns at once, as each move has a cost."""
_SCHEDULER: Final = "org.apache.spark.scheduler."
_EVENTS: Final[dict[str, type[msgspec.Struct]]] = {
    "SparkListenerTaskEnd": events.TaskEnd,
    "SparkListenerStageSubmitted": events.StageSubmitted,
    "SparkListenerLogStart": events.LogStart,
    "SparkListenerApplicationStart": events.ApplicationStart,
    "SparkListenerExecutorAdded": events.ExecutorAdded,
    "SparkListenerEnvironmentUpdate": events.EnvironmentUpdate,
    f"{_SCHEDULER}SparkListenerNodeExcluded": events.NodeExcluded,
    f"{_SCHEDULER}SparkListenerNodeExcludedForStage": events.NodeExcluded,
    f"{_SCHEDULER}SparkListenerNodeBlacklisted": events.NodeExcluded,
    f"{_SCHEDULER}SparkListenerNodeBlacklistedForStage": events.NodeExcluded,
}
"""Until 3.0, Spark logs an exclusion as …Blacklisted…, and from 3.1 on under both names."""
_DECODERS: Final = {event.encode(): msgspec.json.Decoder(kind) for event, kind in _EVENTS.items()}
_PREFIXES: Final = tuple(EVENT_PREFIX + event + b'"' for event in _DECODERS)
_TASK_END_PREFIX: Final = EVENT_PREFIX + b'SparkListenerTaskEnd"'
_TASK_END: Final = msgspec.json.Decoder(events.TaskEnd)
_NO_ID: Final = re.compile(r"[\s/]")
_UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_NAMES: Final = msgspec.json.Decoder(events.AnyEvent)
_APPLICATION: Final = re.compile(r"(?:events_\d+_)?(.+?)(?:\.(?:inprogress|compact|zstd|lz4|snappy|gz))*")


class FactParser:
    """Collects the lines of one file, and returns their facts as Arrow record batches."""

    def __init__(self, file: str) -> None:
        file = file.encode(errors="replace").decode()  # the bytes of a name need not be text
        self._file = {"file": file, "app": application_name(file)}
        self._tasks: list[events.TaskEnd] = []
        self._columns = TaskColumns()
        self._others: list[dict[str, Any]] = []

    @property
    def size(self) -> int:
        """Number of facts since the last call of `batches`."""
        return len(self._tasks) + self._columns.size + len(self._others)

    def add(self, lines: Iterable[bytes]) -> None:
        """Parse lines, each without its end. One that cannot be parsed is reported."""
        add_task, decode_task = self._tasks.append, _TASK_END.decode
        for line in lines:
            if line.startswith(_TASK_END_PREFIX):  # almost all bytes are in these lines
                try:
                    add_task(decode_task(line))
                    continue
                except _UNDECODABLE:
                    pass  # _parse decodes it leniently
            if not self._parse(line):
                note = line.decode(errors="replace") if isinstance(line, Note) else ""
                self._others.append({"kind": "broken", "detail": note})
        if len(self._tasks) >= _SOME_TASKS:
            self._move_tasks()

    def add_last(self, line: bytes) -> None:
        """Parse the last line of a log that is still being written: it is not reported if it is incomplete."""
        self._parse(line)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return the facts since the last call.

        Those with a time in the future are reported as broken lines: they would count as newer than any unblock. Of a
        task, that is its start, too: evidence of slowness counts from the start of a stage on.
        """
        self._move_tasks()
        latest = latest_time()
        others = [it for it in self._others if (it.get("time") or 0) <= latest]
        late = len(self._others) - len(others)
        if self._columns.size:
            tasks = self._columns.batch(self._file)
            past = tasks.filter(pc.less_equal(pc.max_element_wise(tasks["launched"], tasks["time"]), latest))
            late += tasks.num_rows - past.num_rows
            yield past
        others += [{"kind": "broken", "detail": IN_FUTURE.decode()}] * late
        if others:
            yield text_fact(others, self._file)
        self._columns, self._others = TaskColumns(), []

    def _move_tasks(self) -> None:
        self._columns.add(self._tasks)
        self._tasks = []

    def _parse(self, line: bytes) -> bool:
        """Add the fact of a line, if it has one. Returns False for a broken line."""
        if line.startswith(EVENT_PREFIX) and not line.startswith(_PREFIXES):
            return line.endswith(b"}") or line.rstrip().endswith(b"}")
        try:
            event = _decode(line)
        except ValueError:
            return not line.strip()
        if isinstance(event, events.TaskEnd):
            self._tasks.append(event)
        elif event is not None and (fact := _FACTS[type(event)](event)):
            self._others.append(fact)
        return True


def _decode(line: bytes) -> Any:
    """Decode a relevant event; None for another event. Raises ValueError for a broken line."""
    begun = line.startswith(EVENT_PREFIX)
    name = line[len(EVENT_PREFIX) : line.index(b'"', len(EVENT_PREFIX))] if begun else _name(line)
    decoder = _DECODERS.get(name)
    if decoder is None:
        return None
    try:
        return decoder.decode(line)
    except _UNDECODABLE:
        return events.decode_leniently(line, decoder.type)


def _name(line: bytes) -> bytes:
    """The event's name, wherever it stands. Raises ValueError if there is none."""
    try:
        return _NAMES.decode(line).event.encode(errors="replace")
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None


def application_name(file: str) -> str:
    """Return the application as far as the path of its log tells, for logs without an App ID."""
    folder, _, name = file.rpartition("/")
    if is_databricks_part(name):
        name = folder.rpartition("/")[2] or name
    match = _APPLICATION.fullmatch(name)
    return match[1] if match else name


@lru_cache(maxsize=16_384)
def host_name(host: str) -> str:
    """The host in normal form: an address has several spellings, and a name is the same in any case."""
    return normalize_name(host)


def _stage(event: events.StageSubmitted) -> dict[str, Any]:
    info = event.info
    time = info.submitted if info.submitted is not None and 0 <= info.submitted < events.MAX_TIME else None
    return {"kind": "stage", "stage": info.stage, "attempt": info.attempt, "tasks": info.tasks, "time": time}


def _application(event: events.ApplicationStart) -> dict[str, Any]:
    """An App ID with a space or a slash is none: with them, applications without one, or of the same one, are named."""
    app_id = "_".join(filter(None, (event.app_id, event.attempt))) if event.app_id else None
    if app_id and _NO_ID.search(app_id):
        app_id = None
    return {"kind": "application", "time": event.timestamp, "app_id": app_id, "detail": event.name}


def _executor(event: events.ExecutorAdded) -> dict[str, Any]:
    """An executor; with its node if its environment names it: pods, whose host is an IP address."""
    found = {name.upper(): value for name, value in (event.info.attributes or {}).items()}
    host, node = host_name(event.info.host), found.get("NODE_NAME") or None
    return {"kind": "executor", "time": event.timestamp, "executor": event.executor, "host": host, "detail": node}


def _environment(event: events.EnvironmentUpdate) -> dict[str, Any] | None:
    master = event.properties.master if event.properties else None
    return {"kind": "environment", "detail": master[:MAX_DETAIL]} if master else None


def _excluded(event: events.NodeExcluded) -> dict[str, Any] | None:
    if event.failures == 0:
        return None  # made by the agent
    where = {"host": host_name(event.host), "stage": event.stage, "attempt": event.attempt}
    return {"kind": "excluded", "time": event.time, **where}


_FACTS: Final[dict[type[Any], Callable[[Any], dict[str, Any] | None]]] = {
    events.StageSubmitted: _stage,
    events.LogStart: lambda event: {"kind": "log", "detail": event.version},
    events.ApplicationStart: _application,
    events.ExecutorAdded: _executor,
    events.EnvironmentUpdate: _environment,
    events.NodeExcluded: _excluded,
}


def parse_lines(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For mapInArrow: columns `file`, `value` (a line) and `open` -> FACTS.

    Lines arrive in order, so the incomplete last line of an open log is the last one in its batch.
    """
    for batch in batches:
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        for (file, is_open), lines in _by_file(rows):
            parser = FactParser(file)
            parser.add(lines[:-1] if is_open else lines)
            if is_open:
                parser.add_last(lines[-1])
            yield from parser.batches()


def _by_file(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[tuple[str, bool], Sequence[bytes]]]:
    found: dict[tuple[str, bool], list[bytes]] = {}
    for file, value, is_open in rows:
        found.setdefault((file, is_open), []).append(value.encode() if isinstance(value, str) else value)
    yield from found.items()


# Decoded events -> Arrow record batches of schemas.FACTS, column by column.

MAX_MESSAGE: Final = 300
"""Maximum number of characters of a failure's text."""
_CAUSE: Final = "Caused by: "
MAX_DURATION: Final = 10**12
"""Maximum number of ms that count, 31 years; sums over a million tasks fit 64 bits."""
MAX_AMOUNT: Final = 2**50
"""Maximum number of bytes or records of one task that count; sums over 8,000 tasks fit 64 bits."""
MAX_INDEX: Final = 2**31 - 1
"""Maximum index of a task in its stage, an Int of Spark."""
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
        "host": [host_name(it.host) for it in infos],
        "executor": [it.executor for it in infos],
        "locality": [it.locality for it in infos],
        "outcome": [it.reason for it in reasons],
        "error": [it.class_name for it in reasons],
        "message": [None if it.reason == "Success" else failure_message(it) for it in reasons],
        "served_by": [host_name(it.address.host) if it.address and it.address.host else None for it in reasons],
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
    columns["attempt"] = _unless(pc.equal(raw["attempt"], _MISSING), raw["attempt"])
    columns["partition"] = measured(raw["partition"], MAX_INDEX)
    columns["duration"] = measured(pc.subtract(raw["time"], raw["launched"]), MAX_DURATION)
    columns |= {name: measured(raw[name], MAX_DURATION) for name in _DURATIONS}
    columns |= {f"{name}_ms": measured(_milliseconds(raw[f"{name}_ns"]), MAX_DURATION) for name in ("cpu", "write")}
    columns |= {name: measured(raw[name], MAX_AMOUNT) for name in _AMOUNTS}
    columns["shuffle_bytes"] = pc.add(columns["remote_bytes"], measured(raw["local_bytes"], MAX_AMOUNT))
    return columns


def _milliseconds(nanoseconds: pa.Array) -> pa.Array:
    return pc.divide(nanoseconds, 1_000_000)


def measured(values: pa.Array, maximum: int) -> pa.Array:
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
