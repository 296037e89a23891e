"""Parses lines of event logs into facts (schemas.FACTS): which lines are used, and which are broken.

Runs in the executors, in Python: msgspec decodes a line several times faster than Spark's `from_json`, as it skips what
is not used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from blocklist.detection import events
from blocklist.detection.log_file import is_databricks_part
from blocklist.detection.task_batch import TaskColumns, text_fact

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

EVENT_PREFIX: Final = b'{"Event":"'
"""Prefix of each line as Spark writes it. Other tools write spaces, or the fields in another order."""
BATCH: Final = 20_000
"""Number of facts that are returned at once."""
MAX_DETAIL: Final = 100
"""Maximum number of characters of a broken line."""

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
"""Until 3.0, Spark logs an exclusion as …Blacklisted…, and from 3.1 on under both names: host_comparison.exclusions."""
_DECODERS: Final = {event.encode(): msgspec.json.Decoder(kind) for event, kind in _EVENTS.items()}
_PREFIXES: Final = tuple(EVENT_PREFIX + event + b'"' for event in _DECODERS)
_TASK_END_PREFIX: Final = EVENT_PREFIX + b'SparkListenerTaskEnd"'
_TASK_END: Final = msgspec.json.Decoder(events.TaskEnd)
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
                start = line[: 4 * MAX_DETAIL].decode(errors="replace")[:MAX_DETAIL]
                self._others.append({"kind": "broken", "detail": start})
        if len(self._tasks) >= _SOME_TASKS:
            self._move_tasks()

    def add_last(self, line: bytes) -> None:
        """Parse the last line of a log that is still being written: it is not reported if it is incomplete."""
        self._parse(line)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return the facts since the last call."""
        self._move_tasks()
        if self._columns.size:
            yield self._columns.batch(self._file)
        if self._others:
            yield text_fact(self._others, self._file)
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


def _stage(event: events.StageSubmitted) -> dict[str, Any]:
    info = event.info
    time = info.submitted if info.submitted is not None and 0 <= info.submitted < events.MAX_TIME else None
    return {"kind": "stage", "stage": info.stage, "attempt": info.attempt, "tasks": info.tasks, "time": time}


def _application(event: events.ApplicationStart) -> dict[str, Any]:
    app_id = "_".join(filter(None, (event.app_id, event.attempt))) if event.app_id else None
    return {"kind": "application", "time": event.timestamp, "app_id": app_id, "detail": event.name}


def _executor(event: events.ExecutorAdded) -> dict[str, Any] | None:
    """Only executors whose environment names their node: pods, whose host is an IP address."""
    found = {name.upper(): value for name, value in (event.info.attributes or {}).items()}
    node = found.get("NODE_NAME")
    return {"kind": "executor", "executor": event.executor, "host": event.info.host, "detail": node} if node else None


def _environment(event: events.EnvironmentUpdate) -> dict[str, Any] | None:
    master = event.properties.master if event.properties else None
    return {"kind": "environment", "detail": master[:MAX_DETAIL]} if master else None


def _excluded(event: events.NodeExcluded) -> dict[str, Any] | None:
    if event.failures == 0:
        return None  # made by the agent
    where = {"host": event.host, "stage": event.stage, "attempt": event.attempt}
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
