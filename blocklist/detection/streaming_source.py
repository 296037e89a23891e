"""A Structured Streaming source of the new facts of event logs that are still being written.

Lines are parsed where they are read: Spark would put ten thousand of them into one batch, and one may have megabytes.

An offset is the size of each file, compressed or not: a batch has the lines that end between two sizes. A compressed
file can only be read from its start, so each batch decodes it again; Spark's rolling bounds its size. The driver and
the executors must see the folders under the same path.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from blocklist.detection.decoders import BOMB, Decoder, decoder_for
from blocklist.detection.event_parser import BATCH, FactParser
from blocklist.detection.line_reader import DAMAGED, LineSplitter, open_log, skipped, unreadable
from blocklist.detection.log_checks import (
    COMPRESSED_HEAD,
    HEAD,
    NOT_AN_EVENT,
    begins_with_event,
    decoded_head,
    refusal,
)
from blocklist.detection.log_file import IN_PROGRESS, LogFile, is_databricks_part, is_hidden
from blocklist.detection.schemas import FACTS

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

FORMAT: Final = "blocklist-event-logs"
CHUNK: Final = 128 * 1024
"""Number of bytes per read."""

Offset = dict[str, int]


@dataclass
class ByteRange(InputPartition):
    """The lines of a file that end in the bytes from `start` to `end`."""

    path: str
    start: int
    end: int


class EventLogSource(DataSource):
    """schemas.FACTS; `file` has no `.inprogress`. Option `paths`: a JSON array."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return FACTS

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: ARG002, N802 - Spark's name
        return _StreamReader(json.loads(self.options["paths"]))


class _StreamReader(DataSourceStreamReader):
    def __init__(self, paths: list[str]) -> None:
        self._paths = paths

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        return {}

    def latestOffset(self) -> Offset:  # type: ignore[override]  # noqa: N802 - as Spark 4.0 has it; 4.2 takes it still
        return {name: size for path in self._paths for name, size in _file_sizes(Path(path))}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        # A file that has shrunk was rewritten.
        changed = ((name, start.get(name, 0), size) for name, size in sorted(end.items()))
        return [ByteRange(name, begin if begin <= size else 0, size) for name, begin, size in changed if begin != size]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ByteRange)
        parser = FactParser(partition.path)
        # Only complete lines are read: none is broken because its log is in progress.
        for line in lines(partition.path, partition.start, partition.end):
            parser.add([line])
            if parser.size >= BATCH:
                yield from parser.batches()
        yield from parser.batches()


def lines(name: str, start: int, end: int, chunk: int = CHUNK) -> Iterator[bytes]:
    """Yield the lines that end in these bytes of the file, and one that says so where it cannot be read.

    None if the file is gone or its start is missing. Of a file that is no log, the first bytes yield one line.
    """
    try:
        with open_log(name) as file:
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
        yield BOMB.encode() if decode.bomb else DAMAGED


def _file_sizes(path: Path) -> Iterator[tuple[str, int]]:
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    for file in files:
        if any(map(is_hidden, file.relative_to(path).parts)):
            continue
        try:
            if file.is_file():
                yield str(file).removesuffix(IN_PROGRESS), file.stat().st_size
        except OSError:
            continue  # deleted meanwhile


def _line_start(file: BinaryIO, position: int, chunk: int) -> int:
    """Return the start of the line that contains this position."""
    while position > 0:
        begin = max(0, position - chunk)
        file.seek(begin)
        found = file.read(position - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        position = begin
    return 0


def _pieces(file: BinaryIO, start: int, end: int, chunk: int) -> Iterator[bytes]:
    file.seek(start)
    while start < end and (piece := file.read(min(chunk, end - start))):
        start += len(piece)
        yield piece
