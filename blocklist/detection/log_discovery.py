"""Finds event logs on any Hadoop file system."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, Self

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from blocklist.detection.decoders import Decoder, decoder_for
from blocklist.detection.event_parser import EVENT_PREFIX
from blocklist.detection.log_file import COMPACT, IN_PROGRESS, STATUS_PREFIX, LogFile, is_hidden, without_status_suffix

MAX_COMPRESSED_BYTES: Final = 256 * 1024 * 1024
"""Maximum size of a compressed log: it is held in memory. Spark rolls logs over at half of this size."""

_UNSUPPORTED: Final = (".snappy", ".lzf")
_HEAD, _COMPRESSED_HEAD = 256, 256 * 1024  # bytes that always contain the first line: zstd blocks have 128 KiB
_THREADS: Final = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class DiscoveredLogs:
    """The logs, sorted by path, and one sentence for each problem."""

    logs: Sequence[LogFile]
    problems: Sequence[str] = field(default_factory=tuple)


def discover(spark: SparkSession, paths: Iterable[str]) -> DiscoveredLogs:
    """Find the event logs at and below these paths. An unreadable path becomes a problem, not an exception."""
    problems: list[str] = []
    files = _HadoopFiles.of(spark)
    seen: dict[str, LogFile] = {}
    for path in paths:
        try:
            below = {log.path: log for log in files.walk(path)}
        except Py4JError as error:
            problems.append(f"{path} cannot be read: {_error_message(error)}")
            continue
        if not below:
            problems.append(f"{path} contains no event log.")
        seen |= below
    usable = [
        log
        for log in _without_compacted(sorted(seen.values(), key=lambda log: log.path))
        if _is_readable(log, problems)
    ]
    return DiscoveredLogs(logs=tuple(_event_logs(files, usable, problems)), problems=tuple(problems))


@dataclass(frozen=True)
class _HadoopFiles:
    """Hadoop's FileSystem, through the driver's JVM."""

    jvm: Any
    conf: Any

    @classmethod
    def of(cls, spark: SparkSession) -> Self:
        context: Any = spark.sparkContext
        return cls(context._jvm, context._jsc.hadoopConfiguration())  # noqa: SLF001 - PySpark has no public way

    def walk(self, path: str) -> Iterator[LogFile]:
        """Yield all files at or below a path, except hidden ones. A path that is given explicitly may be hidden."""
        system, at = self._at(path)
        yield from self._below(system.getFileStatus(at))

    def _below(self, status: Any) -> Iterator[LogFile]:
        if not status.isDirectory():
            name = status.getPath().getName()
            yield LogFile(
                path=status.getPath().toString(), size=status.getLen(), in_progress=name.endswith(IN_PROGRESS)
            )
            return
        system = status.getPath().getFileSystem(self.conf)
        named = {child.getPath().getName(): child for child in system.listStatus(status.getPath())}
        inside = [log for name, child in named.items() if not is_hidden(name) for log in self._below(child)]
        if any(name.startswith(STATUS_PREFIX) and name.endswith(IN_PROGRESS) for name in named):
            inside = _mark_last_in_progress(inside)
        yield from inside

    def head(self, log: LogFile) -> bytes:
        """Return the first bytes of the log, decoded."""
        system, path = self._at(log.path)
        decode = decoder_for(log.name)
        stream = system.open(path)
        try:
            read: bytes = stream.readNBytes(_COMPRESSED_HEAD if decode else _HEAD)
        finally:
            stream.close()
        return _decoded_head(decode, read) if decode else read

    def _at(self, path: str) -> tuple[Any, Any]:
        found = self.jvm.org.apache.hadoop.fs.Path(path)
        return found.getFileSystem(self.conf), found


def _decoded_head(decode: Decoder, read: bytes) -> bytes:
    """Decode no more than necessary: a few bytes may expand to gigabytes."""
    head = b""
    for at in range(0, len(read), _HEAD):
        head += decode(read[at : at + _HEAD])
        if len(head) >= _HEAD:
            break
    return head[:_HEAD]


def _mark_last_in_progress(logs: Sequence[LogFile]) -> list[LogFile]:
    """Of a rolled log in progress, only the last part is still being written."""
    last = max((log.index for log in logs), default=0)
    return [LogFile(path=log.path, size=log.size, in_progress=log.in_progress or log.index == last) for log in logs]


def _without_compacted(logs: Sequence[LogFile]) -> Iterator[LogFile]:
    """Drop the parts that a compacted part replaces."""
    for _, group in groupby(logs, key=lambda log: log.folder if log.rolled else log.path):
        parts = list(group)
        since = max((log.index for log in parts if log.name.endswith(COMPACT)), default=0)
        yield from (log for log in parts if log.index > since or log.name.endswith(COMPACT) or not log.rolled)


def _is_readable(log: LogFile, problems: list[str]) -> bool:
    name = without_status_suffix(log.name)
    if name.endswith(_UNSUPPORTED):
        problems.append(f"{log.path} is skipped: unsupported compression {name.rpartition('.')[2]}.")
    elif log.compressed and log.size > MAX_COMPRESSED_BYTES:
        size = f"{log.size / 2**20:,.0f} MiB"
        problems.append(
            f"{log.path} is skipped: a compressed log of {size}; the maximum is {MAX_COMPRESSED_BYTES // 2**20} MiB."
        )
    elif log.size == 0 and not log.in_progress:
        problems.append(f"{log.path} is empty.")
    else:
        return log.size > 0
    return False


def _event_logs(files: _HadoopFiles, logs: Sequence[LogFile], problems: list[str]) -> Iterator[LogFile]:
    """Keep files that begin as event logs do; of a log in several parts, one part must."""
    with ThreadPoolExecutor(_THREADS) as pool:
        heads = dict(zip((log.path for log in logs), pool.map(lambda log: _head(files, log), logs), strict=True))
    for _, group in groupby(logs, key=lambda log: log.log):
        parts = list(group)
        read = [log for log in parts if isinstance(heads[log.path], bytes)]
        problems += [f"{log.path} cannot be read: {heads[log.path]!s}" for log in parts if log not in read]
        if any(_starts_like_event_log(heads[log.path], log) for log in read):
            yield from read
        elif read:
            problems.append(f"{read[0].log} is not an event log: it does not begin with an event.")


def _starts_like_event_log(head: bytes | str, log: LogFile) -> bool:
    """Whether the file begins as an event log does; one in progress may hold only the first bytes so far."""
    if not isinstance(head, bytes):
        return False
    return head.startswith(EVENT_PREFIX) or (log.in_progress and EVENT_PREFIX.startswith(head))


def _head(files: _HadoopFiles, log: LogFile) -> bytes | str:
    """Return the first bytes of the log, or the error as a sentence."""
    try:
        return files.head(log)
    except Py4JError as error:
        return _error_message(error)


def _error_message(error: Py4JError) -> str:
    """Return Hadoop's message, on one line."""
    cause = error.java_exception if isinstance(error, Py4JJavaError) else error
    text = str(cause.getMessage() or cause) if isinstance(error, Py4JJavaError) else str(error)
    return text.strip().partition("\n")[0].removesuffix(".") + "."
