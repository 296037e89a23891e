"""Which event logs there are: any file system of Hadoop's, as Spark leaves them there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, Self

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from blocklist.detection.decoders import decoder
from blocklist.detection.file_names import COMPACT, OPEN, STATUS, bare, hidden

LARGEST: Final = 256 * 1024 * 1024
"""Bytes of a compressed log: its reader holds it in memory whole. Spark rolls over at half of that."""

_START: Final = b'{"Event":"SparkListenerLogStart"'
_ROLLED: Final = "eventlog_v2_"
_EVENTS: Final = re.compile(r"events_(\d+)_")
_UNREADABLE: Final = (".snappy", ".lzf")
_HEAD, _COMPRESSED_HEAD = 256, 256 * 1024  # bytes that hold the first line for sure: zstd gives blocks of 128 KiB
_AT_ONCE: Final = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Log:
    """A file of an event log. One that is `open` may end in the middle of a line: it is, or was, being written."""

    path: str
    size: int
    open: bool

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def folder(self) -> str:
        """All of the path but the name."""
        return self.path.rpartition("/")[0]

    @property
    def rolled(self) -> bool:
        """Whether it is one part of several."""
        return self.folder.rpartition("/")[2].startswith(_ROLLED) and _EVENTS.match(self.name) is not None

    @property
    def index(self) -> int:
        """Its place among the parts, from 1; 0 if it is not rolled."""
        number = _EVENTS.match(self.name) if self.rolled else None
        return int(number[1]) if number else 0

    @property
    def compressed(self) -> bool:
        """Whether it has to be decoded."""
        return decoder(self.name) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """The logs in the order of their paths, and a sentence for all that could not be taken."""

    logs: Sequence[Log]
    problems: Sequence[str] = field(default_factory=tuple)


def find(spark: SparkSession, paths: Iterable[str]) -> Found:
    """The event logs at these paths, and below those that are folders. Raises nothing for a path that is no good."""
    problems: list[str] = []
    files = _Files.of(spark)
    seen: dict[str, Log] = {}
    for path in paths:
        try:
            below = {log.path: log for log in files.walk(path)}
        except Py4JError as error:
            problems.append(f"{path} cannot be read: {_said(error)}")
            continue
        if not below:
            problems.append(f"{path} holds no event log.")
        seen |= below
    usable = [log for log in _current(sorted(seen.values(), key=lambda log: log.path)) if _fits(log, problems)]
    return Found(logs=tuple(_logs(files, usable, problems)), problems=tuple(problems))


@dataclass(frozen=True)
class _Files:
    """Hadoop's FileSystem, through the driver's JVM."""

    jvm: Any
    conf: Any

    @classmethod
    def of(cls, spark: SparkSession) -> Self:
        context: Any = spark.sparkContext
        return cls(context._jvm, context._jsc.hadoopConfiguration())  # noqa: SLF001 - there is no other way to it

    def walk(self, path: str) -> Iterator[Log]:
        """All files at or below a path but hidden ones; of a path that was named, whatever its name is."""
        system, at = self._at(path)
        yield from self._below(system.getFileStatus(at))

    def _below(self, status: Any) -> Iterator[Log]:
        if not status.isDirectory():
            name = status.getPath().getName()
            yield Log(path=status.getPath().toString(), size=status.getLen(), open=name.endswith(OPEN))
            return
        system = status.getPath().getFileSystem(self.conf)
        named = {child.getPath().getName(): child for child in system.listStatus(status.getPath())}
        inside = [log for name, child in named.items() if not hidden(name) for log in self._below(child)]
        if any(name.startswith(STATUS) and name.endswith(OPEN) for name in named):
            inside = _last_open(inside)
        yield from inside

    def head(self, log: Log) -> bytes:
        """The log's first bytes, decoded."""
        system, path = self._at(log.path)
        decode = decoder(log.name)
        stream = system.open(path)
        try:
            read: bytes = stream.readNBytes(_COMPRESSED_HEAD if decode else _HEAD)
        finally:
            stream.close()
        return decode(read) if decode else read

    def _at(self, path: str) -> tuple[Any, Any]:
        found = self.jvm.org.apache.hadoop.fs.Path(path)
        return found.getFileSystem(self.conf), found


def _last_open(logs: Sequence[Log]) -> list[Log]:
    """Of a rolled log in progress only the last part is still being written."""
    last = max((log.index for log in logs), default=0)
    return [Log(path=log.path, size=log.size, open=log.open or log.index == last) for log in logs]


def _current(logs: Sequence[Log]) -> Iterator[Log]:
    """Without the parts that a compacted one stands for."""
    for _, group in groupby(logs, key=lambda log: log.folder if log.rolled else log.path):
        parts = list(group)
        since = max((log.index for log in parts if log.name.endswith(COMPACT)), default=0)
        yield from (log for log in parts if log.index > since or log.name.endswith(COMPACT) or not log.rolled)


def _fits(log: Log, problems: list[str]) -> bool:
    name = bare(log.name)
    if name.endswith(_UNREADABLE):
        problems.append(f"{log.path} is passed over: it is compressed with {name.rpartition('.')[2]}.")
    elif log.compressed and log.size > LARGEST:
        size = f"{log.size / 2**20:,.0f} MiB"
        problems.append(f"{log.path} is passed over: a compressed log of {size}, above {LARGEST // 2**20} MiB.")
    elif log.size == 0 and not log.open:
        problems.append(f"{log.path} is empty.")
    else:
        return log.size > 0
    return False


def _logs(files: _Files, logs: Sequence[Log], problems: list[str]) -> Iterator[Log]:
    """Those that begin as event logs do; of a rolled one, one part has to."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        heads = dict(zip((log.path for log in logs), pool.map(lambda log: _head(files, log), logs), strict=True))
    for _, group in groupby(logs, key=lambda log: log.folder if log.rolled else log.path):
        parts = list(group)
        read = [log for log in parts if isinstance(heads[log.path], bytes)]
        problems += [f"{log.path} cannot be read: {heads[log.path]!s}" for log in parts if log not in read]
        if any(_begins(heads[log.path], log) for log in read):
            yield from read
        elif read:
            named = read[0].folder if read[0].rolled else read[0].path
            problems.append(f"{named} is no event log: it does not begin with SparkListenerLogStart.")


def _begins(head: bytes | str, log: Log) -> bool:
    """Whether this is how an event log begins: an open one may have come no further yet."""
    return isinstance(head, bytes) and (head.startswith(_START) or (log.open and _START.startswith(head)))


def _head(files: _Files, log: Log) -> bytes | str:
    """The log's first bytes, or a sentence that says why there are none."""
    try:
        return files.head(log)
    except Py4JError as error:
        return _said(error)


def _said(error: Py4JError) -> str:
    """What Hadoop says, on one line."""
    cause = error.java_exception if isinstance(error, Py4JJavaError) else error
    text = str(cause.getMessage() or cause) if isinstance(error, Py4JJavaError) else str(error)
    return text.strip().partition("\n")[0].removesuffix(".") + "."
