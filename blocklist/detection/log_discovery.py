"""Finds event logs on any Hadoop file system."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any, Final, Self

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from blocklist.detection.log_file import (
    COMPACT,
    IN_PROGRESS,
    LOCAL,
    STATUS_PREFIX,
    Decoder,
    LogFile,
    Unread,
    decoder_for,
    is_hidden,
    is_text,
    local_files,
    mark_last_in_progress,
    open_log,
    shown,
    without_status_suffix,
)

_THREADS: Final = 8
_MAX_NAMED: Final = 10
JAVA_ERRORS: Final = (Py4JError, PySparkException)
"""PySpark turns some of Py4J's errors into its own, such as that of a name that is no path to Hadoop."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DiscoveredLogs:
    """The logs, sorted by path, and one sentence for each problem.

    `failed` are the given paths with errors from which nothing is read.
    """

    logs: Sequence[LogFile]
    problems: Sequence[str] = field(default_factory=tuple)
    failed: Sequence[str] = field(default_factory=tuple)


def discover(spark: SparkSession, paths: Iterable[str]) -> DiscoveredLogs:
    """Find the event logs at and below these paths. An unreadable file or folder becomes a problem, no exception."""
    problems: list[str] = []
    files = _HadoopFiles.of(spark)
    seen: dict[str, LogFile] = {}
    given: dict[str, tuple[AbstractSet[str], bool]] = {}
    for path in paths:
        found = list(_files_at(files, path))
        unread = [it.sentence for it in found if isinstance(it, Unread)]
        logs = {it.path: it for it in found if isinstance(it, LogFile)}
        if not found:
            problems.append(f"{shown(path)} contains no event log.")
        problems += unread
        given[path] = logs.keys(), bool(unread)
        seen |= logs
    usable = [
        log for log in without_compacted(sorted(seen.values(), key=lambda log: log.path)) if _is_readable(log, problems)
    ]
    problems += _missing_parts(usable)
    heads = _heads(files, usable)
    kept = tuple(_event_logs(heads, usable, problems))
    read, unreadable = {log.path for log in kept}, {path for path, head in heads.items() if isinstance(head, str)}
    return DiscoveredLogs(
        logs=kept,
        problems=tuple(problems),
        failed=[
            path
            for path, (paths_below, has_errors) in given.items()
            if paths_below.isdisjoint(read) and (has_errors or not paths_below.isdisjoint(unreadable))
        ],
    )


def _files_at(files: _HadoopFiles, path: str) -> Iterator[LogFile | Unread]:
    """The files at or below a path that was given."""
    if not is_text(path):
        yield Unread(path, f"{shown(path)} is skipped: its name is not UTF-8.")
        return
    try:
        local = files.local(path)
        yield from files.walk(path) if local is None else local_files(local)
    except JAVA_ERRORS as error:
        yield Unread(path, f"{path} cannot be read: {error_message(error)}")


def _missing_parts(logs: Iterable[LogFile]) -> Iterator[str]:
    """A sentence for each rolled log with gaps. Spark numbers its parts from 1; a compacted one replaces the first."""
    for folder, parts in groupby((log for log in logs if log.rolled), key=lambda log: log.folder):
        found = list(parts)
        present = {part.index for part in found}
        compacted = any(part.name.removesuffix(IN_PROGRESS).endswith(COMPACT) for part in found)
        # A single part may have been given, or copied, by itself.
        first = min(present) if compacted or len(found) == 1 else 1
        # A number in a name may be anything.
        missing = list(islice((it for it in range(first, max(present)) if it not in present), _MAX_NAMED + 1))
        if missing:
            named = ", ".join(map(str, missing[:_MAX_NAMED])) + (" and more" if len(missing) > _MAX_NAMED else "")
            part = "part" if len(missing) == 1 else "parts"
            yield f"{folder} has no {part} {named}: what was in it is unknown."


@dataclass(frozen=True)
class _HadoopFiles:
    """Hadoop's FileSystem, through the driver's JVM."""

    jvm: Any
    conf: Any

    @classmethod
    def of(cls, spark: SparkSession) -> Self:
        context: Any = spark.sparkContext
        return cls(context._jvm, context._jsc.hadoopConfiguration())  # noqa: SLF001 - PySpark has no public way

    def walk(self, path: str) -> Iterator[LogFile | Unread]:
        """Yield all files at or below a path, except hidden ones. A path that is given explicitly may be hidden."""
        system, at = self._at(path)
        yield from self._below(system.getFileStatus(at))

    def _below(self, status: Any) -> Iterator[LogFile | Unread]:
        """An error concerns the folder alone in which it happens."""
        path = status.getPath().toString()
        if status.isSymlink():
            yield Unread(path, f"{path} is skipped: it is a link.")
        elif not status.isDirectory():
            in_progress = path.endswith(IN_PROGRESS)
            yield LogFile(path=path, size=status.getLen(), in_progress=in_progress, owner=status.getOwner())
        else:
            try:
                yield from self._inside(status)
            except JAVA_ERRORS as error:
                yield Unread(path, f"{path} cannot be read: {error_message(error)}")

    def _inside(self, folder: Any) -> Iterator[LogFile | Unread]:
        system = folder.getPath().getFileSystem(self.conf)
        named = {child.getPath().getName(): child for child in system.listStatus(folder.getPath())}
        inside = [found for name, child in named.items() if not is_hidden(name) for found in self._below(child)]
        if any(name.startswith(STATUS_PREFIX) and name.endswith(IN_PROGRESS) for name in named):
            inside = mark_last_in_progress(inside)
        yield from inside

    def local(self, path: str) -> str | None:
        """The path for Python; None if it is not of this machine."""
        system, at = self._at(path)
        uri = system.makeQualified(at).toUri()
        return str(uri.getPath()) if uri.getScheme() == "file" else None

    def head(self, log: LogFile) -> bytes:
        """Return the first bytes of the log, decoded."""
        decode = decoder_for(log.name)
        size = COMPRESSED_HEAD if decode else HEAD
        if log.path.startswith(LOCAL):
            with open_log(log.path.removeprefix(LOCAL), log.root) as file:
                read = file.read(size)
        else:
            system, path = self._at(log.path)
            stream = system.open(path)
            try:
                read = stream.readNBytes(size)
            finally:
                stream.close()
        return decoded_head(decode, read) if decode else read

    def _at(self, path: str) -> tuple[Any, Any]:
        found = self.jvm.org.apache.hadoop.fs.Path(path)
        return found.getFileSystem(self.conf), found


def _is_readable(log: LogFile, problems: list[str]) -> bool:
    if reason := refusal(log):
        problems.append(f"{log.path} is skipped: {reason}.")
        return False
    if log.size == 0 and not log.in_progress:
        problems.append(f"{log.path} is empty.")
    return log.size > 0


def _heads(files: _HadoopFiles, logs: Sequence[LogFile]) -> dict[str, bytes | str]:
    """The first bytes of each log by its path, or the error as a sentence."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip((log.path for log in logs), pool.map(lambda log: _head(files, log), logs), strict=True))


def _event_logs(heads: Mapping[str, bytes | str], logs: Sequence[LogFile], problems: list[str]) -> Iterator[LogFile]:
    """Keep files that begin as event logs do; of a log in several parts, one part must."""
    for _, group in groupby(logs, key=lambda log: log.log):
        parts = list(group)
        read = {log: head for log in parts if isinstance(head := heads[log.path], bytes)}
        problems += [f"{log.path} cannot be read: {heads[log.path]!s}" for log in parts if log not in read]
        if any(begins_with_event(head, is_open=log.in_progress) for log, head in read.items()):
            yield from read
        elif read:
            problems.append(f"{parts[0].log} is not an event log: {NOT_AN_EVENT}.")


def _head(files: _HadoopFiles, log: LogFile) -> bytes | str:
    """Return the first bytes of the log, or the error as a sentence."""
    try:
        return files.head(log)
    except JAVA_ERRORS as error:
        return error_message(error)
    except OSError as error:
        return f"{error.strerror or error}."


def error_message(error: Exception) -> str:
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
