"""Reads event logs into facts, in one pass, in the executors.

They open local logs themselves. Logs on other file systems are read by Hadoop in the JVM, which passes lines of plain
logs, and whole compressed ones.
"""

from __future__ import annotations

import gc
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial, reduce
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from blocklist.detection.event_parser import BATCH, FactParser, arrow_schema, parse_lines
from blocklist.detection.log_discovery import (
    COMPRESSED_HEAD,
    HEAD,
    NOT_AN_EVENT,
    begins_with_event,
    decoded_head,
    refusal,
)
from blocklist.detection.log_file import (
    BOMB,
    DAMAGED,
    IN_PROGRESS,
    LOCAL,
    MAX_LINE,
    SKIPPED,
    Decoder,
    LineSplitter,
    LogFile,
    decoded_lines,
    decoder_for,
    file_pieces,
    is_databricks_part,
    local_files,
    open_log,
    pieces,
    plain_lines,
    skipped,
    unreadable,
)
from blocklist.detection.schemas import FACTS, Omission

# Byte ranges of event logs, packed into tasks of about the same size.

TASKS_PER_CORE: Final = 4
"""Number of tasks for each core, within the limits below: the fewer, the longer are cores idle at the end."""
MIN_TASK_BYTES: Final = 32 * 1024 * 1024
"""A task takes as long as reading some 10 MB, whatever it reads: most would be lost in smaller ones."""
MAX_TASK_BYTES: Final = 128 * 1024 * 1024
"""A task that fails is repeated from its start."""
_OPEN_COST: Final = 256 * 1024  # bytes that opening a file counts for


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """The lines of a log that begin from byte `start` up to, not including, byte `end` (None: the end of the file)."""

    log: LogFile
    start: int = 0
    end: int | None = None

    @property
    def cost(self) -> int:
        """Number of bytes to read, and something for opening the file."""
        return _OPEN_COST + (self.log.size if self.end is None else self.end) - self.start


def pack(logs: Iterable[LogFile], cores: int) -> list[list[Split]]:
    """Split large plain logs, and put small ones together: one list for each task, large ones first.

    A compressed log can be read only from its start: it is not split.
    """
    logs = list(logs)
    size = _task_bytes(sum(log.size for log in logs), cores)
    packs: list[list[Split]] = []
    room = 0
    for split in sorted((split for log in logs for split in _splits(log, size)), key=lambda split: -split.cost):
        if not packs or split.cost > room:
            packs.append([])
            room = size
        packs[-1].append(split)
        room -= split.cost
    return packs


def _task_bytes(total: int, cores: int) -> int:
    return min(MAX_TASK_BYTES, max(MIN_TASK_BYTES, total // (TASKS_PER_CORE * cores)))


def _splits(log: LogFile, size: int) -> Iterator[Split]:
    """The last range has no end: a log in progress may have grown since it was found."""
    if log.compressed or log.size <= size:
        yield Split(log=log)
        return
    starts: Sequence[int] = range(0, log.size, size)
    for start in starts:
        end = start + size
        yield Split(log=log, start=start, end=end if end < log.size else None)


_MAX_NAMED: Final = 20  # maximum number of files named one by one
_AT_ONCE: Final = 20  # batches of Spark, of 10,000 facts, in a file
_Batches = Iterator[pa.RecordBatch]


def read_facts(spark: SparkSession, logs: Sequence[LogFile]) -> DataFrame:
    """Return schemas.FACTS of these logs. A line that cannot be parsed yields one fact of kind `broken`."""
    local = [log for log in logs if log.path.startswith(LOCAL)]
    remote = [log for log in logs if not log.path.startswith(LOCAL)]
    frames = [_local_facts(spark, local)] if local else []
    for compressed in (False, True):
        for is_open in (False, True):
            group = [log for log in remote if (log.compressed, log.in_progress) == (compressed, is_open)]
            if group:
                read = _compressed_facts if compressed else _plain_facts
                frames.append(read(spark, group, is_open))
    return reduce(DataFrame.unionAll, frames) if frames else spark.createDataFrame([], FACTS)


def _local_facts(spark: SparkSession, logs: Sequence[LogFile]) -> DataFrame:
    packs = pack(logs, spark.sparkContext.defaultParallelism)
    return spark.range(0, len(packs), 1, len(packs)).mapInArrow(partial(_read_packs, packs), FACTS)


def _read_packs(packs: Sequence[Sequence[Split]], batches: Iterable[pa.RecordBatch]) -> _Batches:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            for split in packs[number]:
                yield from _facts(split.log.path, split_lines(split))
    _exempt_imports_from_gc()


@cache
def _exempt_imports_from_gc() -> None:
    """Once per worker. It collects garbage after each task, which took a third of its time: it visited all modules."""
    gc.freeze()


def split_lines(split: Split) -> Iterator[list[bytes]]:
    """Yield the lines of a split, in lists: none if the log is gone, and one that says so where it cannot be read."""
    log = split.log
    try:
        with open_log(log.path.removeprefix(LOCAL), log.root) as file:
            if decode := decoder_for(log.name):
                yield from decoded_lines(file_pieces(file), decode, is_open=log.in_progress)
            else:
                yield from plain_lines(file, split.start, split.end, is_open=log.in_progress)
    except FileNotFoundError:
        return
    except OSError as error:
        yield [unreadable(error)]


def _facts(file: str, lines: Iterable[Sequence[bytes]]) -> _Batches:
    parser = FactParser(file)
    for some in lines:
        parser.add(some)
        if parser.size >= BATCH:
            yield from parser.batches()
    yield from parser.batches()


def _plain_facts(spark: SparkSession, logs: Sequence[LogFile], is_open: bool) -> DataFrame:
    lines = _reader(spark).text(_paths(logs))
    file = F.col("_metadata.file_path").alias("file")
    value = F.col("value").cast("binary").alias("value")
    return lines.select(file, value, F.lit(is_open).alias("open")).mapInArrow(parse_lines, FACTS)


def _compressed_facts(spark: SparkSession, logs: Sequence[LogFile], is_open: bool) -> DataFrame:
    content = _reader(spark).format("binaryFile").load(_paths(logs)).select("path", "content")
    return content.mapInArrow(partial(_decode_contents, is_open), FACTS)


def _decode_contents(is_open: bool, batches: Iterable[pa.RecordBatch]) -> _Batches:
    for batch in batches:
        for file, content in zip(batch.column(0), batch.column(1), strict=True):
            decode = decoder_for(file.as_py())
            assert decode is not None
            lines = decoded_lines(pieces(memoryview(content.as_buffer())), decode, is_open=is_open)
            yield from _facts(file.as_py(), lines)


def _reader(spark: SparkSession) -> DataFrameReader:
    return spark.read.option("ignoreMissingFiles", True)  # an application renames its log when it ends


def _paths(logs: Sequence[LogFile]) -> list[str]:
    """Escape paths, because Spark reads them as glob patterns."""
    return [re.sub(r"([*?{}\[\]\\])", r"\\\1", log.path) for log in logs]


def within(facts: DataFrame, since: int | None, until: int | None) -> DataFrame:
    """Keep facts from `since` until before `until` (Unix ms; None: unlimited), and those about whole logs."""
    time = F.col("time")
    whole = time.isNull() | (F.col("kind") == "application")
    if since is not None:
        facts = facts.where(whole | (time >= since))
    if until is not None:
        facts = facts.where(whole | (time < until))
    return facts


def save(facts: DataFrame, folder: Path) -> None:
    """Write facts to this machine, as Parquet files in a folder: executors may have no folder in common with it."""
    pq.write_table(arrow_schema().empty_table(), folder / "none.parquet")
    files = facts.mapInArrow(_as_files, "file binary").persist()
    files.count()  # all tasks at once; what follows takes their results one by one, so that memory has one of them
    for number, row in enumerate(files.toLocalIterator()):
        (folder / f"{number}.parquet").write_bytes(row.file)
    files.unpersist()


def _as_files(batches: Iterable[pa.RecordBatch]) -> _Batches:
    """Facts as Parquet files, each small enough for a row of Spark."""
    batches = iter(batches)
    while some := list(islice(batches, _AT_ONCE)):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_batches(some), sink)
        yield pa.record_batch({"file": pa.array([sink.getvalue().to_pybytes()], pa.binary())})


def problems(rows: Sequence[Mapping[str, Any]]) -> list[Omission]:
    """Return a problem for each skipped file, for each of the 20 with most broken lines, and one for all others.

    `rows`: the number of broken lines and a note of each file that has some, those with most first. None shows what a
    line has: a file may be another one than it seems.
    """
    skipped = [row for row in rows if row["lines"] == 1 and row["note"].startswith(SKIPPED)]
    damaged = [row for row in rows if row not in skipped]
    found = [_problem(row, f" is skipped: {row['note'][len(SKIPPED) : -1]}") for row in skipped]
    found += [
        _problem(row, f": {_line_count(row['lines'])} skipped" + (f" {row['note']}" if row["note"] else ""))
        for row in damaged[:_MAX_NAMED]
    ]
    if rest := damaged[_MAX_NAMED:]:
        files = f"{len(rest)} more files"
        sentence = f"{files}: {_line_count(sum(row['lines'] for row in rest))} skipped."
        found.append(Omission(subject=f"lines of {files}", sentence=sentence))
    return found


def _problem(row: Mapping[str, Any], what: str) -> Omission:
    return Omission(subject=f"lines of {row['file']}", sentence=f"{row['file']}{what}.")


def _line_count(count: int) -> str:
    return f"{count:,} broken line was" if count == 1 else f"{count:,} broken lines were"


# A Structured Streaming source of the new facts of event logs that are still being written.
#
# Lines are parsed where they are read: Spark would put ten thousand of them into one batch, and one may have
# megabytes.
#
# An offset is the size of each file, compressed or not: a batch has the lines that end between two sizes. A
# compressed file can only be read from its start, so each batch decodes it again; Spark's rolling bounds its size.
# The driver and the executors must see the folders under the same path.

FORMAT: Final = "blocklist-event-logs"
CHUNK: Final = 128 * 1024
"""Number of bytes per read."""
QUIET_SECONDS: Final = 48 * 3600
"""After this time a log that has not grown is no longer listed. If it grows again, it is read from its start."""

Offset = dict[str, int]


@dataclass
class ByteRange:
    """The lines of a file that end in the bytes from `start` to `end`."""

    path: str
    start: int
    end: int
    root: str

    @property
    def cost(self) -> int:
        """Number of bytes to read, and something for opening the file; a compressed one is read from its start."""
        return _OPEN_COST + self.end - (0 if decoder_for(self.path) else self.start)


@dataclass
class ByteRanges(InputPartition):
    """What one task reads: it takes longer to begin than what most logs have that is new."""

    ranges: list[ByteRange]


class EventLogSource(DataSource):
    """schemas.FACTS; `file` has no `.inprogress`. Option `paths`: a JSON array."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return FACTS

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: ARG002, N802 - Spark's name
        return _StreamReader(json.loads(self.options["paths"]))


class _StreamReader(DataSourceStreamReader):
    def __init__(self, paths: list[str]) -> None:
        self._paths = paths

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        return {}

    def latestOffset(self) -> Offset:  # type: ignore[override]  # noqa: N802 - as Spark 4.0 has it; 4.2 takes it still
        # What is not read is reported once, before: see log_discovery.
        found = [it for path in self._paths for it in local_files(path) if isinstance(it, LogFile)]
        grown = {it.log for it in found if it.modified > time.time() - QUIET_SECONDS}  # in any part
        return {it.path.removeprefix(LOCAL).removesuffix(IN_PROGRESS): it.size for it in found if it.log in grown}

    def partitions(self, start: Offset, end: Offset) -> list[ByteRanges]:
        # A file that has shrunk was rewritten.
        changed = ((name, start.get(name, 0), size) for name, size in sorted(end.items()))
        found: list[ByteRanges] = []
        room = 0
        for name, begin, size in changed:
            if begin == size:
                continue
            part = ByteRange(name, begin if begin <= size else 0, size, self._root(name))
            if not found or part.cost > room:
                found.append(ByteRanges([]))
                room = MIN_TASK_BYTES
            found[-1].ranges.append(part)
            room -= part.cost
        return found

    def _root(self, name: str) -> str:
        """The path that was given at or below which the file is."""
        return max(
            (path for path in self._paths if f"{name}/".startswith(f"{path.rstrip('/')}/")), key=len, default=name
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ByteRanges)
        for part in partition.ranges:
            # Only complete lines are read: none is broken because its log is in progress.
            yield from _facts(part.path, ([line] for line in lines(part.path, part.start, part.end, root=part.root)))


def lines(name: str, start: int, end: int, chunk: int = CHUNK, *, root: str | None = None) -> Iterator[bytes]:
    """Yield the lines that end in these bytes of the file, and one that says so where it cannot be read.

    None if the file is gone or its start is missing. Of a file that is no log, the first bytes yield one line.
    """
    try:
        with open_log(name, root) as file:
            if reason := _refusal(file, name, end):
                if _refusal(file, name, start) is None:
                    yield skipped(reason)
                return
            decode = decoder_for(name)
            if decode is None:
                yield from _plain(file, start, end, chunk)
            else:
                yield from _compressed(file, decode, start, end, chunk)
    except FileNotFoundError:
        return
    except OSError as error:
        yield unreadable(error)


def _refusal(file: BinaryIO, name: str, size: int) -> str | None:
    """Why the file is not read when it has this size; None if it is, or if there are not enough bytes to know."""
    log = LogFile(path=name, size=size, in_progress=True)
    if size == 0 or (reason := refusal(log)):
        return None if size == 0 else reason
    if log.rolled or is_databricks_part(log.name):
        return None  # a part may begin anywhere
    file.seek(0)
    decode = decoder_for(name)
    read = file.read(min(size, COMPRESSED_HEAD if decode else HEAD))
    head = decoded_head(decode, read) if decode else read
    if decode and decode.damaged and not head:
        return NOT_AN_EVENT
    return None if begins_with_event(head, is_open=True) else NOT_AN_EVENT


def _plain(file: BinaryIO, start: int, end: int, chunk: int) -> Iterator[bytes]:
    splitter = LineSplitter()
    for piece in _pieces(file, _line_start(file, start, chunk), end, chunk):
        yield from splitter.split(piece)


def _compressed(file: BinaryIO, decode: Decoder, start: int, end: int, chunk: int) -> Iterator[bytes]:
    splitter = LineSplitter()
    for piece in _pieces(file, 0, start, chunk):
        splitter.split(decode(piece))
    reported = decode.damaged
    for piece in _pieces(file, start, end, chunk):
        yield from splitter.split(decode(piece))
    if decode.damaged and not reported:
        yield BOMB if decode.bomb else DAMAGED


def _line_start(file: BinaryIO, position: int, chunk: int) -> int:
    """Return the start of the line that contains this position; of one that is too long, a place that shows it."""
    least = position - MAX_LINE - 1
    while position > max(0, least):
        begin = max(0, position - chunk)
        file.seek(begin)
        found = file.read(position - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        position = begin
    return position


def _pieces(file: BinaryIO, start: int, end: int, chunk: int) -> Iterator[bytes]:
    file.seek(start)
    while start < end and (piece := file.read(min(chunk, end - start))):
        start += len(piece)
        yield piece
