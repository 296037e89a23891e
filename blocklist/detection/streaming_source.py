"""The new lines of event logs that applications are still writing, as a source of Structured Streaming.

An offset is the size of each file, compressed or not: the lines between two sizes are those that end in the bytes
between them. A compressed file can only be read from its start, so that is done anew for each batch; Spark's own
roll over bounds it. Folders must be visible to the driver and the executors under the same path.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from blocklist.detection.decoders import decoder_for
from blocklist.detection.file_names import IN_PROGRESS, is_hidden

FORMAT: Final = "blocklist-event-logs"
CHUNK: Final = 1024 * 1024
"""Bytes that are read at once."""

Offset = dict[str, int]


@dataclass
class ByteRange(InputPartition):
    """The lines of a file that end in the bytes from `start` to `end`."""

    path: str
    start: int
    end: int


class EventLogSource(DataSource):
    """`file`, `value`: a log, by its name without `.inprogress`, and one of its lines. Option `paths`: a JSON array."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return "file string, value string"

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
        # One that has shrunk was begun anew.
        changed = ((name, start.get(name, 0), size) for name, size in sorted(end.items()))
        return [ByteRange(name, begin if begin <= size else 0, size) for name, begin, size in changed if begin != size]

    def read(self, partition: InputPartition) -> Iterator[tuple[str, str]]:
        assert isinstance(partition, ByteRange)
        for line in lines(partition.path, partition.start, partition.end):
            yield partition.path, line.decode(errors="replace")


def lines(name: str, start: int, end: int, chunk: int = CHUNK) -> Iterator[bytes]:
    """The lines that end in these bytes of the file; none of one that is gone, or was cut off at its head."""
    try:
        file = _open(name)
    except FileNotFoundError:
        return
    with file:
        decode = decoder_for(name)
        rest = b""
        if decode is None:
            start = _line_start(file, start, chunk)
            pieces = _pieces(file, start, end, chunk)
        else:
            for piece in map(decode, _pieces(file, 0, start, chunk)):
                rest = (rest + piece).rpartition(b"\n")[2]
            pieces = map(decode, _pieces(file, start, end, chunk))
        for piece in pieces:
            whole, newline, tail = piece.rpartition(b"\n")
            if newline:
                yield from (rest + whole).split(b"\n")
                rest = tail
            else:
                rest += piece


def _file_sizes(path: Path) -> Iterator[tuple[str, int]]:
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    for file in files:
        if any(map(is_hidden, file.relative_to(path).parts)):
            continue
        try:
            if file.is_file():
                yield str(file).removesuffix(IN_PROGRESS), file.stat().st_size
        except OSError:
            continue  # it is gone


def _open(name: str) -> BinaryIO:
    try:
        return Path(name).open("rb")
    except FileNotFoundError:
        return Path(name + IN_PROGRESS).open("rb")


def _line_start(file: BinaryIO, position: int, chunk: int) -> int:
    """Where the line begins that this position is in."""
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
