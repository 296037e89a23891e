"""Reads and writes the table of tasks: the history of any scheduler, as Parquet, CSV or JSON lines.

A row is an attempt of a task, as docs/task-table.md describes. Rows become facts of kind `task` (schemas.FACTS), as
the task ends in event logs do. A file is checked as a whole before it is read: one wrong row means that what the others
say is not known either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from blocklist.detection.event_parser import (
    BATCH,
    MAX_AMOUNT,
    MAX_DURATION,
    MAX_INDEX,
    MAX_MESSAGE,
    arrow_schema,
    host_name,
    measured,
    text_fact,
)
from blocklist.detection.log_discovery import DiscoveredLogs
from blocklist.detection.log_file import (
    FREE_BYTES,
    LOCAL,
    MAX_RATIO,
    LogFile,
    Unread,
    latest_time,
    local_files,
    open_below,
    shown,
    skipped,
)
from blocklist.detection.schemas import FACTS

FACT_OF: Final = {
    "application": "app",
    "stage": "stage",
    "partition": "partition",
    "host": "host",
    "start": "launched",
    "end": "time",
    "bytes": "input_bytes",
    "outcome": "outcome",
}
"""The required columns, each with its column of FACTS."""
MAY_BE_UNKNOWN: Final = frozenset({"partition", "bytes"})
"""Required columns that may be null in a row."""
FURTHER: Final = (
    "attempt",
    "executor",
    "speculative",
    "locality",
    "error",
    "message",
    "served_by",
    "caused_by_app",
    "run_ms",
    "cpu_ms",
    "gc_ms",
    "fetch_wait_ms",
    "deserialize_ms",
    "input_records",
    "shuffle_bytes",
    "remote_bytes",
    "shuffle_records",
    "spilled_bytes",
    "written_bytes",
    "write_ms",
)
"""Columns that a table may have beside them, called as in FACTS; others are ignored."""
OUTCOMES: Final = {
    "success": "Success",
    "failed": "ExceptionFailure",
    "lost": "ExecutorLostFailure",
    "fetch-failed": "FetchFailed",
    "killed": "TaskKilled",
}
"""The words for outcomes, each with Spark's."""
_KILLED: Final = ("TaskKilled", "TaskCommitDenied", "Resubmitted")
MAX_NAME: Final = 1000
"""Maximum number of characters of a name; a message is cut."""
_YEAR_2000, _YEAR_2100 = 946_684_800_000, 4_102_444_800_000
_UNITS: Final = (("seconds", 1_000), ("microseconds", 1 / 1_000), ("nanoseconds", 1 / 1_000_000))
_TEXTS: Final = ("application", "host", "outcome", "executor", "locality", "error", "message", "served_by")
_TYPES: Final = {field.name: field.type for field in arrow_schema()}


class WrongTableError(Exception):
    """A file that is no table of tasks: a sentence says what is wrong, and where."""


# Files: which there are, and what is wrong with them.


def discover(paths: Iterable[str]) -> DiscoveredLogs:
    """Find and check the tables at and below these local paths. A wrong file becomes a problem, no exception."""
    problems: list[str] = []
    tables: dict[str, LogFile] = {}
    failed: list[str] = []
    for path in paths:
        found = list(local_files(path))
        refusals = {it.path: refusal(it) for it in found if isinstance(it, LogFile)}
        wrong = [it.sentence for it in found if isinstance(it, Unread)] + [it for it in refusals.values() if it]
        good = {it.path: it for it in found if isinstance(it, LogFile) and refusals[it.path] is None}
        if not found:
            wrong = [f"{shown(path)} contains no table of tasks."]
        problems += wrong
        tables |= good
        if wrong and not good:
            failed.append(path)
    return DiscoveredLogs(
        logs=[tables[path] for path in sorted(tables)], problems=tuple(dict.fromkeys(problems)), failed=failed
    )


def refusal(table: LogFile) -> str | None:
    """Why a file is not read, in a sentence; None if all of it is a table of tasks."""
    if not table.name.endswith(tuple(_READERS)):
        return f"{shown(table.path)} is skipped: its name must end with {', '.join(_READERS)}."
    try:
        with _opened(table) as file:
            for _ in _facts(table, file):
                pass
    except WrongTableError as error:
        return f"{shown(table.path)} is no table of tasks: {error}."
    except OSError as error:
        return f"{shown(table.path)} cannot be read: {error.strerror or 'it is damaged'}."
    return None


# Facts.


def read_facts(spark: SparkSession, tables: Sequence[LogFile]) -> DataFrame:
    """Return schemas.FACTS of these tables, which were checked before."""
    units = [unit for table in tables for unit in _units(table)]
    if not units:
        return spark.createDataFrame([], FACTS)
    return spark.range(0, len(units), 1, min(len(units), 4 * spark.sparkContext.defaultParallelism)).mapInArrow(
        partial(_read_units, units), FACTS
    )


@dataclass(frozen=True, slots=True)
class _Unit:
    """What one task reads: a row group of a Parquet file, or a whole file of text."""

    table: LogFile
    group: int | None = None


def _units(table: LogFile) -> Iterator[_Unit]:
    if not table.name.endswith(".parquet"):
        yield _Unit(table)
        return
    with _opened(table) as file:
        yield from (_Unit(table, number) for number in range(pq.ParquetFile(file).num_row_groups))


def _read_units(units: Sequence[_Unit], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            unit = units[number]
            try:
                with _opened(unit.table) as file:
                    yield from _facts(unit.table, file, unit.group)
            except (WrongTableError, OSError):
                same = {"file": unit.table.path, "app": ""}
                note = skipped("it has changed since it was checked").decode()
                yield text_fact([{"kind": "broken", "detail": note}], same)


def _opened(table: LogFile) -> BinaryIO:
    return open_below(table.root, table.path.removeprefix(LOCAL))


def _facts(table: LogFile, file: BinaryIO, group: int | None = None) -> Iterator[pa.RecordBatch]:
    """Facts of a file, or of one row group. Raises WrongTableError, and OSError."""
    reader = next(read for suffix, read in _READERS.items() if table.name.endswith(suffix))
    row = 0
    try:
        for batch in reader(table, file, group):
            yield _batch_of_facts(batch, table.path, row)
            row += batch.num_rows
    except (pa.ArrowException, UnicodeDecodeError):
        # Its message may show what the file has.
        raise WrongTableError(f"it is damaged, or a value after row {row:,} has another type than before") from None


def _parquet(table: LogFile, file: BinaryIO, group: int | None) -> Iterator[pa.RecordBatch]:
    metadata = pq.ParquetFile(file).metadata
    schema = metadata.schema.to_arrow_schema()
    _check_columns(schema)
    # A dictionary keeps a long text that is repeated in each row in memory once.
    texts = [name for name in _TEXTS if name in schema.names and _is_text(schema.field(name).type)]
    parquet = pq.ParquetFile(file, metadata=metadata, read_dictionary=texts)
    groups = range(parquet.num_row_groups) if group is None else [group]
    size = sum(parquet.metadata.row_group(number).total_byte_size for number in groups)
    if size > FREE_BYTES + MAX_RATIO * table.size:
        raise WrongTableError(f"it expands to more than {MAX_RATIO} times its size")
    wanted = [name for name in schema.names if name in FACT_OF or name in FURTHER]
    yield from parquet.iter_batches(BATCH, row_groups=list(groups), columns=wanted)


def _csv(_table: LogFile, file: BinaryIO, _group: int | None) -> Iterator[pa.RecordBatch]:
    texts = dict.fromkeys(_TEXTS, pa.string())
    numbers = {name: pa.int64() for name, kind in _TYPES.items() if name in FURTHER and kind == pa.int64()}
    types = texts | numbers | {name: pa.int64() for name in ("stage", "partition", "bytes")}
    options = pa_csv.ConvertOptions(column_types=types, strings_can_be_null=True, quoted_strings_can_be_null=False)
    yield from _checked(pa_csv.open_csv(file, convert_options=options))


def _json_lines(_table: LogFile, file: BinaryIO, _group: int | None) -> Iterator[pa.RecordBatch]:
    yield from _checked(pa_json.open_json(file))


def _checked(batches: pa.RecordBatchReader) -> pa.RecordBatchReader:
    _check_columns(batches.schema)
    return batches


_READERS: Final[Mapping[str, Callable[[LogFile, BinaryIO, int | None], Iterator[pa.RecordBatch]]]] = {
    ".parquet": _parquet,
    ".csv": _csv,
    ".jsonl": _json_lines,
}
"""How a file is read, by the end of its name."""


def _check_columns(schema: pa.Schema) -> None:
    if missing := [name for name in FACT_OF if name not in schema.names]:
        columns = "column" if len(missing) == 1 else "columns"
        raise WrongTableError(f"it lacks the {columns} {', '.join(missing)}")
    if twice := sorted({name for name in schema.names if schema.names.count(name) > 1}):
        raise WrongTableError(f"it has more than one column {twice[0]}")


def _batch_of_facts(batch: pa.RecordBatch, file: str, row: int) -> pa.RecordBatch:
    """The facts of some rows, the first of which is number `row` of the file (from 0)."""
    size = batch.num_rows
    given = {name: _converted(name, batch.column(name)) for name in batch.schema.names if name in {*FACT_OF, *FURTHER}}
    columns = {FACT_OF.get(name, name): values for name, values in given.items()}
    for name in FACT_OF:
        if name not in MAY_BE_UNKNOWN:
            _require(pc.is_valid(given[name]), row, f"{name} is missing")
    _check_times(columns["launched"], columns["time"], row)
    _require(pc.greater(pc.utf8_length(columns["app"]), 0), row, "application is empty")
    _require(pc.greater(pc.utf8_length(columns["host"]), 0), row, "host is empty")
    columns["outcome"] = _outcomes(columns["outcome"], row)
    for name in ("host", "served_by"):
        if name in columns:
            columns[name] = _mapped(columns[name], host_name)
    duration = pc.subtract(columns["time"], columns["launched"])
    succeeded = pc.equal(columns["outcome"], OUTCOMES["success"])
    defaults = {
        "kind": pa.scalar("task"),
        "file": pa.scalar(shown(file)),
        "attempt": pa.scalar(0, pa.int64()),
        "speculative": pa.scalar(False),
        "executor": columns["host"],
        "run_ms": pc.if_else(succeeded, duration, None),
    }
    columns["duration"] = duration
    for name, value in defaults.items():
        own = columns.get(name, pa.nulls(size, _TYPES[name]))
        columns[name] = pc.coalesce(own, value)
    rows = {name: columns.get(name, pa.nulls(size, kind)) for name, kind in _TYPES.items()}
    return pa.RecordBatch.from_arrays([rows[name] for name in _TYPES], schema=arrow_schema())


def _converted(name: str, values: pa.Array) -> pa.Array:
    """A column with the type of its fact."""
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), _TYPES[FACT_OF.get(name, name)])
    if name in {"start", "end"}:
        return _times(name, values)
    kind = _TYPES[FACT_OF.get(name, name)]
    try:
        if kind == pa.string():
            return _text(name, values)
        if kind == pa.bool_():
            return _expected(name, values, pa.types.is_boolean(values.type), "true or false")
        number = _expected(
            name, values, pa.types.is_integer(values.type) or pa.types.is_floating(values.type), "an integer"
        )
        whole = number.cast(pa.int64())
    except pa.ArrowInvalid:
        raise WrongTableError(f"{name} has a value that is no integer of 64 bits") from None
    if name in {"stage", "attempt"}:
        return whole
    if name == "partition":
        return measured(whole, MAX_INDEX)
    return measured(whole, MAX_DURATION if name.endswith("_ms") else MAX_AMOUNT)


def _expected(name: str, values: pa.Array, fits: bool, what: str) -> pa.Array:
    if not fits:
        raise WrongTableError(f"{name} is of the type {values.type}; it must be {what}")
    return values


def _text(name: str, values: pa.Array) -> pa.Array:
    """Long messages are cut, before they are repeated; a longer name than MAX_NAME is an error."""
    _expected(name, values, _is_text(values.type), "text")
    is_dictionary = pa.types.is_dictionary(values.type)
    texts = (values.dictionary if is_dictionary else values).cast(pa.string())
    if name == "message":
        texts = pc.utf8_slice_codeunits(texts, 0, MAX_MESSAGE)
    elif (pc.max(pc.utf8_length(texts)).as_py() or 0) > MAX_NAME:
        raise WrongTableError(f"{name} has more than {MAX_NAME:,} characters")
    return texts.take(values.indices) if is_dictionary else texts


def _is_text(kind: pa.DataType) -> bool:
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(inner) or pa.types.is_large_string(inner))


def _times(name: str, values: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(values.type):
        return values.cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    what = "a timestamp, or an integer of Unix milliseconds"
    return _expected(name, values, pa.types.is_integer(values.type), what).cast(pa.int64())


def _check_times(starts: pa.Array, ends: pa.Array, row: int) -> None:
    for name, times in (("start", starts), ("end", ends)):
        plausible = pc.and_(pc.greater_equal(times, _YEAR_2000), pc.less(times, _YEAR_2100))
        if (at := _first_wrong(plausible)) is not None:
            time = times[at].as_py()
            unit = next((unit for unit, factor in _UNITS if _YEAR_2000 <= time * factor < _YEAR_2100), None)
            seems = f"seems to be in {unit}" if unit else "is not between the years 2000 and 2100"
            raise WrongTableError(f"row {row + at + 1:,}: {name} {seems}; it must be in Unix milliseconds")
    _require(pc.greater_equal(ends, starts), row, "end is before start")
    _require(pc.less_equal(ends, latest_time()), row, "end is in the future; it would count as newer than any unblock")


def _outcomes(values: pa.Array, row: int) -> pa.Array:
    known = pc.is_in(values, pa.array(OUTCOMES))
    if (at := _first_wrong(known)) is not None:
        word = values[at].as_py()[:20]
        raise WrongTableError(f"row {row + at + 1:,}: outcome {word!r} is unknown; it must be {', '.join(OUTCOMES)}")
    return _mapped(values, OUTCOMES.__getitem__)


def _mapped(values: pa.Array, change: Callable[[str], str]) -> pa.Array:
    """Change each distinct text once."""
    encoded = values.dictionary_encode()
    changed = [None if it is None else change(it) for it in encoded.dictionary.to_pylist()]
    return pa.array(changed, pa.string()).take(encoded.indices)


def _require(condition: pa.Array, row: int, sentence: str) -> None:
    if (at := _first_wrong(condition)) is not None:
        raise WrongTableError(f"row {row + at + 1:,}: {sentence}")


def _first_wrong(condition: pa.Array) -> int | None:
    at: int = pc.index(pc.fill_null(condition, False), False).as_py()
    return None if at < 0 else at


def columns_of_tasks() -> str:
    """The columns of the table, all that it may have, from those of FACTS, in the SQL of DuckDB."""
    words = {**dict.fromkeys(_KILLED, "killed"), **{outcome: word for word, outcome in OUTCOMES.items()}}
    cases = " ".join(f"WHEN '{outcome}' THEN '{word}'" for outcome, word in words.items())
    columns = FACT_OF | {
        "start": "epoch_ms(launched)",
        "end": "epoch_ms(time)",
        "outcome": f"CASE outcome {cases} ELSE 'failed' END",
    }
    named = [f'{column} AS "{name}"' for name, column in columns.items()]
    return ", ".join([*named, *FURTHER])
