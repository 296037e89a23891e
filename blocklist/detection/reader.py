"""Reads event logs into facts in one pass: the JVM reads plain text, Python decodes compressed logs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from blocklist.detection import event_parser
from blocklist.detection.decoders import BOMB, decoder_for
from blocklist.detection.log_file import LogFile
from blocklist.detection.schemas import FACTS

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

_CHUNK: Final = 128 * 1024  # bytes decoded at once
_MAX_LINE: Final = 64 * 1024 * 1024  # bytes of a line; a longer one ends the log
_BATCH: Final = 1000  # lines returned to the JVM at once
_MAX_NAMED: Final = 20  # maximum number of files named one by one
_PLAIN: Final = "file string, value string"
LONG_LINE: Final = f"(a line is longer than {_MAX_LINE // 2**20} MiB; the log is skipped from here on)"
_PREFIXES: Final = tuple(f'{event_parser.EVENT_PREFIX}{event}"'.encode() for event in event_parser.KINDS)
_EVENT: Final = event_parser.EVENT_PREFIX.encode()


def read_facts(spark: SparkSession, logs: Sequence[LogFile]) -> DataFrame:
    """Return schemas.FACTS of these logs. A line that cannot be parsed yields one fact of kind `broken`."""
    frames = [
        event_parser.facts(_lines(spark, group, compressed=compressed).withColumn("open", F.lit(is_open)))
        for compressed in (False, True)
        for is_open in (False, True)
        if (group := [log for log in logs if (log.compressed, log.in_progress) == (compressed, is_open)])
    ]
    return reduce(DataFrame.unionAll, frames) if frames else spark.createDataFrame([], FACTS)


def within(facts: DataFrame, since: int | None, until: int | None) -> DataFrame:
    """Keep facts from `since` until before `until` (Unix ms; None: unlimited), and facts without a time."""
    time = F.col("time")
    if since is not None:
        facts = facts.where(time.isNull() | (time >= since))
    if until is not None:
        facts = facts.where(time.isNull() | (time < until))
    return facts


def problems(facts: DataFrame) -> list[str]:
    """Return a sentence for each of the 20 files with most broken lines, and one for all other such files."""
    broken = facts.where(F.col("kind") == "broken").groupBy("file")
    counted = broken.agg(F.count("*").alias("lines"), F.min("detail").alias("first")).orderBy(F.desc("lines"), "file")
    rows = counted.collect()
    sentences = [
        f"{row['file']}: {_line_count(row['lines'])} skipped, such as {row['first']!r}." for row in rows[:_MAX_NAMED]
    ]
    if rest := rows[_MAX_NAMED:]:
        sentences.append(f"{len(rest)} more files: {_line_count(sum(row['lines'] for row in rest))} skipped.")
    return sentences


def _line_count(count: int) -> str:
    return f"{count:,} broken line was" if count == 1 else f"{count:,} broken lines were"


def _lines(spark: SparkSession, logs: Sequence[LogFile], *, compressed: bool) -> DataFrame:
    """Return the columns `file` and `value`: all lines of plain logs, the relevant lines of compressed ones."""
    paths = [_escape_glob(log.path) for log in logs]
    reader = spark.read.option("ignoreMissingFiles", True)  # an application renames its log when it ends
    file = F.col("_metadata.file_path").alias("file")
    if not compressed:
        return reader.text(paths).select(file, "value")
    content = reader.format("binaryFile").load(paths).select(F.col("path").alias("file"), "content")
    return content.mapInArrow(_decoded, _PLAIN)


def _escape_glob(path: str) -> str:
    """Escape a path, because Spark reads paths as glob patterns."""
    return re.sub(r"([*?{}\[\]\\])", r"\\\1", path)


def _decoded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa  # noqa: PLC0415 - only executors need it, and only for compressed logs

    for batch in batches:
        for file, content in zip(batch.column(0), batch.column(1), strict=True):
            name = file.as_py()
            for lines in _batches(relevant_lines(name, memoryview(content.as_buffer()))):
                yield pa.RecordBatch.from_pydict({"file": [name] * len(lines), "value": lines})


def _batches(lines: Iterator[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    for line in lines:
        batch.append(line)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def relevant_lines(name: str, content: memoryview) -> Iterator[str]:
    """Yield the lines of a compressed log that become facts: relevant events, and broken lines.

    A damaged or truncated log ends with a broken line: the rest of its last line, or a placeholder.
    """
    decode = decoder_for(name)
    assert decode is not None
    rest = b""
    for at in range(0, len(content), _CHUNK):
        *lines, rest = (rest + decode(bytes(content[at : at + _CHUNK]))).split(b"\n")
        yield from (line.decode(errors="replace") for line in lines if _is_relevant(line))
        if decode.bomb or len(rest) > _MAX_LINE:
            yield BOMB if decode.bomb else LONG_LINE
            return
    if rest:
        yield rest.decode(errors="replace")
    elif not decode.complete:
        yield "(the file is damaged or truncated here)"


def _is_relevant(line: bytes) -> bool:
    return line.startswith(_PREFIXES) or (line != b"" and not (line.startswith(_EVENT) and line.endswith(b"}")))
