"""Finds event logs on any Hadoop file system."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, Self

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from blocklist.detection.log_file import (
    COMPACT,
    IN_PROGRESS,
    STATUS_PREFIX,
    Decoder,
    LogFile,
    decoder_for,
    is_hidden,
    without_status_suffix,
)

_THREADS: Final = 8
_JAVA_ERRORS: Final = (Py4JError, PySparkException)
"""PySpark turns some of Py4J's errors into its own, such as that of a name that is no path to Hadoop."""


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
        if not _is_text(path):
            problems.append(_skipped(path))
            continue
        try:
            below = {log.path: log for log in files.walk(path)}
        except _JAVA_ERRORS as error:
            problems.append(f"{path} cannot be read: {_error_message(error)}")
            continue
        if not below:
            problems.append(f"{path} contains no event log.")
        problems += map(_skipped, _names_that_are_not_text(files.local(path)))
        seen |= below
    usable = [
        log for log in without_compacted(sorted(seen.values(), key=lambda log: log.path)) if _is_readable(log, problems)
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

    def local(self, path: str) -> str | None:
        """The path for Python; None if it is not of this machine."""
        system, at = self._at(path)
        uri = system.makeQualified(at).toUri()
        return str(uri.getPath()) if uri.getScheme() == "file" else None

    def head(self, log: LogFile) -> bytes:
        """Return the first bytes of the log, decoded."""
        system, path = self._at(log.path)
        decode = decoder_for(log.name)
        stream = system.open(path)
        try:
            read: bytes = stream.readNBytes(COMPRESSED_HEAD if decode else HEAD)
        finally:
            stream.close()
        return decoded_head(decode, read) if decode else read

    def _at(self, path: str) -> tuple[Any, Any]:
        found = self.jvm.org.apache.hadoop.fs.Path(path)
        return found.getFileSystem(self.conf), found


def _names_that_are_not_text(folder: str | None) -> Iterator[str]:
    """The files and folders below whose names are not UTF-8: Java cannot open them, and Hadoop leaves them out."""
    for parent, folders, files in os.walk(folder) if folder else ():
        folders[:] = [name for name in folders if not is_hidden(name)]
        for name in sorted([*folders, *files]):
            if not is_hidden(name) and not _is_text(name):
                yield f"file:{parent}/{name}"
        folders[:] = [name for name in folders if _is_text(name)]


def _is_text(name: str) -> bool:
    """Whether a name is UTF-8. Python has lone surrogates for the bytes that are not."""
    return not any("\ud800" <= char <= "\udfff" for char in name)


def _skipped(path: str) -> str:
    return f"{path.encode(errors='replace').decode()} is skipped: its name is not UTF-8."


def _mark_last_in_progress(logs: Sequence[LogFile]) -> list[LogFile]:
    """Of a rolled log in progress, only the last part is still being written."""
    last = max((log.index for log in logs), default=0)
    return [LogFile(path=log.path, size=log.size, in_progress=log.in_progress or log.index == last) for log in logs]


def _is_readable(log: LogFile, problems: list[str]) -> bool:
    if reason := refusal(log):
        problems.append(f"{log.path} is skipped: {reason}.")
        return False
    if log.size == 0 and not log.in_progress:
        problems.append(f"{log.path} is empty.")
    return log.size > 0


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
            problems.append(f"{read[0].log} is not an event log: {NOT_AN_EVENT}.")


def _starts_like_event_log(head: bytes | str, log: LogFile) -> bool:
    return isinstance(head, bytes) and begins_with_event(head, is_open=log.in_progress)


def _head(files: _HadoopFiles, log: LogFile) -> bytes | str:
    """Return the first bytes of the log, or the error as a sentence."""
    try:
        return files.head(log)
    except _JAVA_ERRORS as error:
        return _error_message(error)


def _error_message(error: Exception) -> str:
    """Return Hadoop's message, on one line."""
    cause = error.java_exception if isinstance(error, Py4JJavaError) else None
    text = str(error if cause is None else cause.getMessage() or cause)
    return text.strip().partition("\n")[0].removesuffix(".") + "."


# Whether a file can be read as an event log: what its name, its size and its first bytes say.
#
# Used to find logs once, and while applications run; in the executors, too.

MAX_COMPRESSED_BYTES: Final = 256 * 1024 * 1024
"""Maximum size of a compressed log: it is held in memory. Spark rolls logs over at half of this size."""
HEAD: Final = 256
"""Number of bytes of a log that tell whether it begins with an event."""
COMPRESSED_HEAD: Final = 256 * 1024
"""Number of bytes of a compressed log that always contain these: zstd blocks have 128 KiB."""
NOT_AN_EVENT: Final = "it does not begin with an event"

_UNSUPPORTED: Final = ".lzf"
_EVENT: Final = re.compile(rb'\s*\{[^\n]*"Event"\s*:')
_BEGUN: Final = b'{"Event":'


def refusal(log: LogFile) -> str | None:
    """Why a file of this name and size is not read; None if it is."""
    name = without_status_suffix(log.name)
    if name.endswith(_UNSUPPORTED):
        return f"unsupported compression {name.rpartition('.')[2]}"
    if log.compressed and log.size > MAX_COMPRESSED_BYTES:
        maximum = MAX_COMPRESSED_BYTES // 2**20
        return f"a compressed log of {log.size / 2**20:,.0f} MiB; the maximum is {maximum} MiB"
    return None


def begins_with_event(head: bytes, *, is_open: bool = False) -> bool:
    """Whether a log of these first bytes begins with an event; one that `is_open` may hold only some of them so far."""
    return _EVENT.match(head) is not None or (is_open and _BEGUN.startswith(b"".join(head.split())))


def decoded_head(decode: Decoder, read: bytes) -> bytes:
    """The first bytes of a compressed log. Decodes no more than necessary: a few bytes may expand to gigabytes."""
    head = b""
    for at in range(0, len(read), HEAD):
        head += decode(read[at : at + HEAD])
        if len(head) >= HEAD:
            break
    return head[:HEAD]


def without_compacted(logs: Iterable[LogFile]) -> Iterator[LogFile]:
    """Drop the parts that a compacted part replaces, and one that is still being written. `logs`: sorted by path."""
    logs = (log for log in logs if not (log.rolled and log.name.endswith(COMPACT + IN_PROGRESS)))
    for _, group in groupby(logs, key=lambda log: log.folder if log.rolled else log.path):
        parts = list(group)
        since = max((log.index for log in parts if log.name.endswith(COMPACT)), default=0)
        yield from (log for log in parts if log.index > since or log.name.endswith(COMPACT) or not log.rolled)
